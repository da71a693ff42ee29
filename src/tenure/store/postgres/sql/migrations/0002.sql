-- The job table that people keep, look up and settle by hand.


-- --- retention and keys --------------------------------------------------------------------------



-- --- attempts and notes --------------------------------------------------------------------------



-- --- finding jobs --------------------------------------------------------------------------------



-- --- statistics ----------------------------------------------------------------------------------



-- --- claiming by hand ----------------------------------------------------------------------------



-- --- the feed of finished jobs -------------------------------------------------------------------



-- --- deadlines and replacement -------------------------------------------------------------------

-- A job ends as skipped if no attempt was used by `start_by`. `finish_by` is a deadline for people.
alter table tenure.job add column start_by timestamptz;
alter table tenure.job add column finish_by timestamptz;
alter table tenure.history add column start_by timestamptz;
alter table tenure.history add column finish_by timestamptz;

-- Jobs that may expire. A job that has used an attempt is not among them.
create index job_start_by on tenure.job (start_by, id)
    where start_by is not null and attempts = 0;

-- The live half of `jobs`.
create or replace view tenure.live as
    select j.id, j.token,
           (case when j.parked = 'parents' then 'waiting'
                 when j.parked = 'held' then 'queued'
                 when j.due_at is not null then 'scheduled'
                 when j.gate is null
                      and exists (select from tenure.ready r
                                  where r.queue = j.queue and r.needs = j.needs
                                    and r.priority = j.priority and r.position = j.position and r.token = j.token) then 'queued'
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
           null::json as result, j.error, j.gate, j.gate_key, j.needs, j.start_by, j.finish_by
    from tenure.job j;

-- Where is my job? Every job with its state.
create or replace view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs, h.start_by, h.finish_by
    from tenure.history h;
