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

-- That a parent has succeeded is written on its edges, so that a child with a hundred thousand parents
-- is known to be free without a walk along all of them. A silent edge is that of a child with few
-- parents: its parent has succeeded when it is live no more and nothing else is written. (To write all
-- of them was a third of the work of the server in a random graph.)
alter table tenure.parent add column silent boolean not null default false;
create index parent_unsuccessful on tenure.parent (job_id, parent_state)
    where not silent and parent_state is null or parent_state <> 'succeeded';
create index parent_silent on tenure.parent (job_id) where silent;

create view tenure.edge as
    select p.job_id, p.parent_id,
           case when p.silent and p.parent_state is null
                     and not exists (select from tenure.job j where j.id = p.parent_id offset 0)
                then 'succeeded' else p.parent_state end as parent_state
    from tenure.parent p;

create or replace view tenure.live as
    select j.id, j.token,
           (case when j.parked = 'parents' then 'waiting'
                 when j.parked = 'held' then 'queued'
                 when j.due_at is not null then 'scheduled'
                 when j.gate is null
                      and exists (select from tenure.ready r
                                  where r.queue = j.queue and r.priority = j.priority
                                    and r.position = j.position and r.token = j.token) then 'queued'
                 when j.gate is not null
                      and exists (select from tenure.gated g
                                  where g.queue = j.queue and g.gate = j.gate and g.key = j.gate_key
                                    and g.priority = j.priority and g.position = j.position
                                    and g.token = j.token) then 'queued'
                 else 'running' end)::tenure.state as state,
           j.task, j.args, j.queue, j.priority, j.tenant, j.attempts, j.max_attempts, j.crashes,
           j.created_at, coalesce(j.queued_at, j.created_at) as queued_at, j.due_at,
           null::timestamptz as claimed_at, null::timestamptz as finished_at,
           null::double precision as duration_seconds, null::text as worker, j.reason, j.held,
           j.cancel_requested,
           exists (select from tenure.queue q
                   where q.name = j.queue and q.paused_at is not null) as queue_paused,
           case when j.parked = 'parents' then
               (select count(*) from tenure.edge e
                where e.job_id = j.id and e.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null::json as result, j.error, j.gate, j.gate_key
    from tenure.job j;
