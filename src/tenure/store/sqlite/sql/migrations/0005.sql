-- Steps: what parts of a job have answered, so that a later attempt need not run them again.
create table tenure.step (
    job_id integer not null,
    name text not null,
    n integer not null check (n between 1 and 1000),
    token integer not null,             -- of the attempt that ran it
    recorded_at integer not null,
    bytes integer not null,             -- of the result
    function text not null,
    result text not null,
    primary key (job_id, name)
) strict;
