-- Steps: what parts of a job have answered, so that a later attempt need not run them again.
create table tenure.step (
    job_id bigint not null,
    token bigint not null,              -- of the attempt that ran it
    recorded_at timestamptz not null,
    n int not null check (n between 1 and 1000),
    bytes int not null,                 -- of the result
    name text collate "C" not null,
    function text not null,
    result json not null,
    primary key (job_id, name)
);
