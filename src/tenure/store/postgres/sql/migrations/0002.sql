-- The job table that people keep, look up and settle by hand.


-- --- retention and keys --------------------------------------------------------------------------



-- --- attempts and notes --------------------------------------------------------------------------

-- What the attempts of the job have annotated: an object.
alter table tenure.note add column notes json;

-- The ids of its jobs that start at most once, and have started. Only `start_once` writes it, so that
-- no heartbeat can take such a mark away.
alter table tenure.lease add column once bigint[];

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
           null::json as result, j.error, j.gate, j.gate_key, j.needs,
           case when j.features & 4 <> 0 then        -- it has a row in `note`
               (select told.notes from tenure.note told where told.job_id = j.id) end as notes
    from tenure.job j;

-- Every job, as Tenure itself reads it: without its lease, which is looked up for running jobs alone.
create view tenure.all_jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs,
           case when h.features & 4 <> 0 then
               (select told.notes from tenure.note told where told.job_id = h.id) end
    from tenure.history h;

-- Where is my job? Every job with its state, its worker and its notes, for people. The columns of
-- version 1 come first, in their order: so the view keeps its grants.
create or replace view tenure.jobs as
    select j.id, j.token, j.state, j.task, j.args, j.queue, j.priority, j.tenant, j.attempts,
           j.max_attempts, j.crashes, j.created_at, j.queued_at, j.due_at, l.claimed_at,
           j.finished_at, j.duration_seconds, l.worker, j.reason, j.held, j.cancel_requested,
           j.queue_paused, j.unfinished_parents, j.timeout_seconds, j.retry, j.metadata,
           j.unique_scope, j.unique_key, j.unique_until, j.result, j.error, j.gate, j.gate_key,
           j.needs, l.expires_at, j.notes
    from tenure.live j left join tenure.holding l on l.job_id = j.id and l.token = j.token
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs, null,
           case when h.features & 4 <> 0 then
               (select told.notes from tenure.note told where told.job_id = h.id) end
    from tenure.history h;


-- --- finding jobs --------------------------------------------------------------------------------

-- For people who look for jobs. A job that succeeds at once and has no key pays nothing for these.
create index history_unsuccessful_finished on tenure.history (finished_at, id) where state <> 'succeeded';
create index history_key on tenure.history (unique_key, id) where unique_key is not null;
create index job_key on tenure.job (unique_key, id) where unique_key is not null;
create index job_error on tenure.job (id) where error is not null;



-- --- statistics ----------------------------------------------------------------------------------



-- --- claiming by hand ----------------------------------------------------------------------------



-- --- the feed of finished jobs -------------------------------------------------------------------



-- --- deadlines and replacement -------------------------------------------------------------------
