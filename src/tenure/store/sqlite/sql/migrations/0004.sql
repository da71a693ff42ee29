-- Workflows: the same tables as on PostgreSQL, where they are explained.

create table tenure.workflow (
    id integer primary key,
    created_at integer not null,
    ended_at integer,
    paused_at integer,
    cancelled_at integer,
    finaliser_id integer,
    failed integer not null default 0 check (failed = 0 or failed = 1),
    cancelled integer not null default 0 check (cancelled = 0 or cancelled = 1),
    stopping integer not null default 0 check (stopping = 0 or stopping = 1),
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    key text,
    on_failure text not null check (on_failure = 'finish' or on_failure = 'stop'),
    outcome text check (outcome = 'succeeded' or outcome = 'failed' or outcome = 'cancelled'),
    reason text,
    check ((ended_at is null) = (outcome is null))
) strict;
create unique index tenure.workflow_key on tenure.workflow (tenant, name, key)
    where key is not null and ended_at is null;
create index tenure.workflow_ended_at on tenure.workflow (ended_at) where ended_at is not null;
create index tenure.workflow_stopping on tenure.workflow (id) where stopping = 1;

create table tenure.node (
    job_id integer primary key,
    workflow_id integer not null,
    added_by integer,
    paused integer not null default 0 check (paused = 0 or paused = 1),
    name text not null check (length(name) between 1 and 200),
    rule text not null
        check (rule = 'all_succeeded' or rule = 'all_finished' or rule = 'any_succeeded'
               or rule = 'any_failed'),
    unique (workflow_id, name)
) strict;
create index tenure.node_workflow on tenure.node (workflow_id, job_id);

create index tenure.parent_unfinished on tenure.parent (job_id) where parent_state is null;
create index tenure.parent_failed on tenure.parent (job_id) where parent_state = 'failed';
