-- The job table that people keep, look up and settle by hand. The comments here say only what differs
-- from PostgreSQL.


-- --- retention and keys --------------------------------------------------------------------------



-- --- attempts and notes --------------------------------------------------------------------------



-- --- finding jobs --------------------------------------------------------------------------------



-- --- statistics ----------------------------------------------------------------------------------



-- --- claiming by hand ----------------------------------------------------------------------------



-- --- the feed of finished jobs -------------------------------------------------------------------



-- --- deadlines and replacement -------------------------------------------------------------------

alter table tenure.job add column start_by integer;
alter table tenure.job add column finish_by integer;
alter table tenure.history add column start_by integer;
alter table tenure.history add column finish_by integer;
create index tenure.job_start_by on tenure.job (start_by, id)
    where start_by is not null and attempts = 0;

drop view tenure.jobs;
drop view tenure.live;

-- The live half of `jobs`.
create view tenure.live as
    select j.id, j.token,
           case when j.parked = 'parents' then 'waiting'
                when j.parked = 'held' then 'queued'
                when j.due_at is not null then 'scheduled'
                when j.gate is null
                     and exists (select 1 from tenure.ready r
                                 where r.queue = j.queue and r.needs = j.needs
                                   and r.priority = j.priority and r.position = j.position and r.token = j.token) then 'queued'
                when j.gate is not null
                     and exists (select 1 from tenure.gated g
                                 where g.queue = j.queue and g.gate = j.gate and g.key = j.gate_key
                                   and g.priority = j.priority and g.position = j.position
                                   and g.token = j.token) then 'queued'
                else 'running' end as state,
           j.task, j.args, j.queue, j.priority, j.tenant, j.attempts, j.max_attempts, j.crashes,
           j.created_at, coalesce(j.queued_at, j.created_at) as queued_at, j.due_at,
           null as claimed_at, null as finished_at, null as duration_seconds, null as worker,
           j.reason, j.held, j.cancel_requested,
           exists (select 1 from tenure.queue q
                   where q.name = j.queue and q.paused_at is not null) as queue_paused,
           case when j.parked = 'parents' then
               (select count(*) from tenure.parent p
                where p.job_id = j.id and p.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null as result, j.error, j.gate, j.gate_key, j.needs, j.start_by, j.finish_by
    from tenure.job j;

-- Where is my job? Every job with its state.
create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs, h.start_by, h.finish_by
    from tenure.history h;
