-- Workflows: many jobs as one.
--
--     workflow   one row each: what was asked for, and how it ended
--     node       which job is which node; it stays while the job is live and while it is history
--     parent     who waits for whom, as before; a child below zero is the end of a workflow
--
-- A workflow is over when its last nodes are. They have an edge to its end, which is its id with a
-- minus; the settlement that writes the last of these edges writes the end, too. Other nodes never
-- touch the row of their workflow, unless they fail. What a workflow has of its own, jobs that are
-- in none do not pay for: their rows are as they were.

create table tenure.workflow (
    id bigint primary key,              -- drawn like that of a job
    created_at timestamptz not null,
    ended_at timestamptz,
    paused_at timestamptz,
    cancelled_at timestamptz,           -- when somebody asked for it
    finaliser_id bigint,
    failed boolean not null default false,      -- a node has failed
    cancelled boolean not null default false,   -- a node was cancelled
    stopping boolean not null default false,    -- one has failed, and the rest is still to be stopped
    tenant text collate "C" not null,
    name text collate "C" not null check (length(name) between 1 and 200),
    key text collate "C",
    on_failure text not null check (on_failure in ('finish', 'stop')),
    outcome text check (outcome in ('succeeded', 'failed', 'cancelled')),
    reason text,                        -- why it is paused or cancelled
    check ((ended_at is null) = (outcome is null))
);
create unique index workflow_key on tenure.workflow (tenant, name, key)
    where key is not null and ended_at is null;
create index workflow_ended_at on tenure.workflow (ended_at) where ended_at is not null;
create index workflow_stopping on tenure.workflow (id) where stopping;

create table tenure.node (
    job_id bigint primary key,
    workflow_id bigint not null,
    added_by bigint,                    -- the job that added it while it ran
    paused boolean not null default false,      -- it is held because its workflow is paused
    name text collate "C" not null check (length(name) between 1 and 200),
    rule text not null
        check (rule in ('all_succeeded', 'all_finished', 'any_succeeded', 'any_failed')),
    unique (workflow_id, name)
);
create index node_workflow on tenure.node (workflow_id, job_id);

-- Whether a child with a hundred thousand parents is free must not need a walk along all of them.
create index parent_unsuccessful on tenure.parent (job_id, parent_state)
    where parent_state is null or parent_state <> 'succeeded';
