-- name: get_job
select id, token, state, task, args, queue, priority, tenant, attempts, max_attempts, crashes,
       created_at, queued_at, due_at, claimed_at, finished_at, duration_seconds, worker, reason, held,
       cancel_requested, queue_paused, unfinished_parents, timeout_seconds, retry, metadata,
       unique_scope, unique_key, unique_until, result, error,
       gate, gate_key
from tenure.jobs
where id = :id and (:tenant is null or tenant in (:tenant, ''));

-- name: list_live
-- A bounded walk down the ids: at most `scan` rows are looked at, whatever the filter.
select id, token, state, task, args, queue, priority, tenant, attempts, max_attempts, crashes,
       created_at, queued_at, due_at, claimed_at, finished_at, duration_seconds, worker, reason, held,
       cancel_requested, queue_paused, unfinished_parents, timeout_seconds, retry, metadata,
       unique_scope, unique_key, unique_until, result, error,
       gate, gate_key
from tenure.live
where id in (
        select j.id from (select id, tenant, queue, task from tenure.job
                          where id < :below order by id desc limit :scan) as j
        where (:tenant is null or j.tenant in (:tenant, ''))
          and (:queue is null or j.queue = :queue)
          and (:task is null or j.task = :task))
  and (:states is null or instr(' ' || :states || ' ', ' ' || state || ' ') > 0)
order by id desc
limit :most;

-- name: live_floor
select min(id) as lowest_id, count(*) as rows from (select id from tenure.job where id < :below order by id desc limit :scan);

-- name: list_finished
select id, token, state, task, args, queue, priority, tenant, attempts, max_attempts, crashes,
       created_at, created_at as queued_at, null as due_at, claimed_at, finished_at,
       duration_seconds, worker, reason, 0 as held, 0 as cancel_requested, 0 as queue_paused,
       0 as unfinished_parents, timeout_seconds, retry, metadata, unique_scope, unique_key, unique_until, result, error,
       gate, gate_key
from (select * from tenure.history where id < :below order by id desc limit :scan)
where (:tenant is null or tenant in (:tenant, ''))
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:states is null or instr(' ' || :states || ' ', ' ' || state || ' ') > 0)
order by id desc
limit :most;

-- name: list_unsuccessful
-- One final state other than success: the index holds nothing else, so the walk is as long as the
-- list. The literal condition is what lets a prepared plan use the partial index.
select id, token, state, task, args, queue, priority, tenant, attempts, max_attempts, crashes,
       created_at, created_at as queued_at, null as due_at, claimed_at, finished_at,
       duration_seconds, worker, reason, 0 as held, 0 as cancel_requested, 0 as queue_paused,
       0 as unfinished_parents, timeout_seconds, retry, metadata, unique_scope, unique_key, unique_until, result, error,
       gate, gate_key
from (select * from tenure.history
      where state = :state and state <> 'succeeded' and id < :below
      order by id desc limit :scan)
where (:tenant is null or tenant in (:tenant, ''))
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
order by id desc
limit :most;

-- name: unsuccessful_floor
select min(id) as lowest_id, count(*) as rows from (
    select id from tenure.history
    where state = :state and state <> 'succeeded' and id < :below
    order by id desc limit :scan);

-- name: finished_floor
select min(id) as lowest_id, count(*) as rows from (select id from tenure.history where id < :below order by id desc limit :scan);

-- name: holders
select job_id, token, lease_id, worker, claimed_at, expires_at from tenure.holding
where job_id in (select value from json_each(:ids));

-- name: count_live
select queue, task, state, tenant, count(*) as jobs from tenure.live
where (:tenant is null or tenant in (:tenant, ''))
group by queue, task, state, tenant
order by queue, task, state, tenant;

-- name: count_finished
select queue, task, state, tenant, count(*) as jobs from tenure.history
where finished_at >= :since and finished_at < :before
  and (:tenant is null or tenant in (:tenant, ''))
group by queue, task, state, tenant
order by queue, task, state, tenant;

-- name: oldest_ready
-- The head of each lane, found by hopping from lane to lane. Two plain comparisons per hop: a search
-- for a pair greater than another starts at the pair itself, and so walks the whole line.
with recursive lane (queue, priority) as (
    select * from (select queue, priority from tenure.ready order by queue, priority limit 1)
    union all
    select case when exists (select 1 from tenure.ready r
                             where r.queue = lane.queue and r.priority > lane.priority)
                then lane.queue
                else (select r.queue from tenure.ready r where r.queue > lane.queue
                      order by r.queue limit 1) end,
           coalesce((select r.priority from tenure.ready r
                     where r.queue = lane.queue and r.priority > lane.priority
                     order by r.priority limit 1),
                    (select r.priority from tenure.ready r where r.queue > lane.queue
                     order by r.queue, r.priority limit 1))
    from lane where lane.queue is not null
)
select lane.queue, min(coalesce(j.queued_at, j.created_at)) as since,
       (:now - min(coalesce(j.queued_at, j.created_at))) / 1e6 as age_seconds
from lane cross join tenure.job as j on j.id = (
    select r.job_id from tenure.ready r where r.queue = lane.queue and r.priority = lane.priority
    order by r.position limit 1)
where lane.queue is not null
group by lane.queue order by lane.queue;

-- name: job_events
select at, kind, token, worker, detail from tenure.event where job_id = :id order by seq;

-- name: get_note
select fraction, message, reported_at, checkpoint, saved_at from tenure.note where job_id = :id;

-- name: clock
-- prune: retention is judged by this, not by the clock of whoever asks.
select :now as now;

-- name: about
-- What the store is, and the version of its schema.
select 'SQLite' as engine, sqlite_version() as engine_version, version as schema_version, min_code,
       :now as now
from tenure.schema_version;
