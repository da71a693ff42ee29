-- name: get_job
select id, token, state, task, args, queue, priority, tenant, attempts, max_attempts, crashes,
       created_at, queued_at, due_at, claimed_at, finished_at, duration_seconds, worker, reason, held,
       cancel_requested, queue_paused, unfinished_parents, timeout_seconds, retry, metadata,
       unique_scope, unique_key, unique_until, result, error,
       gate, gate_key, needs, notes, start_by, finish_by
from tenure.all_jobs
where id = :id and (:tenant is null or tenant in (:tenant, ''));

-- name: last_job_id
select job_id from tenure.counter;

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
-- The head of each lane, found by hopping from lane to lane, one column after the other: a search
-- for a row greater than another starts at the row itself, and so walks the whole line.
with recursive line (queue) as (
    select min(queue) from tenure.ready
    union all
    select (select r.queue from tenure.ready r where r.queue > line.queue order by r.queue limit 1)
    from line where line.queue is not null
), kind (queue, needs) as (
    select line.queue, (select r.needs from tenure.ready r where r.queue = line.queue
                        order by r.needs limit 1)
    from line where line.queue is not null
    union all
    select kind.queue, (select r.needs from tenure.ready r
                        where r.queue = kind.queue and r.needs > kind.needs order by r.needs limit 1)
    from kind where kind.needs is not null
), lane (queue, needs, priority) as (
    select kind.queue, kind.needs,
           (select r.priority from tenure.ready r
            where r.queue = kind.queue and r.needs = kind.needs order by r.priority limit 1)
    from kind where kind.needs is not null
    union all
    select lane.queue, lane.needs,
           (select r.priority from tenure.ready r
            where r.queue = lane.queue and r.needs = lane.needs and r.priority > lane.priority
            order by r.priority limit 1)
    from lane where lane.priority is not null
)
select lane.queue, min(coalesce(j.queued_at, j.created_at)) as since,
       (:now - min(coalesce(j.queued_at, j.created_at))) / 1e6 as age_seconds
from lane cross join tenure.job as j on j.id = (
    select r.job_id from tenure.ready r
    where r.queue = lane.queue and r.needs = lane.needs and r.priority = lane.priority
    order by r.position limit 1)
where lane.priority is not null
group by lane.queue order by lane.queue;

-- name: is_busy
-- is_idle: has one of these queues a job that is ready, running or due soon? Those of paused queues do not count.
with open (queue) as (
    select b.value from json_each(:queues) as b
    where not exists (select 1 from tenure.queue p where p.name = b.value and p.paused_at is not null)
)
select exists (select 1 from open where exists (select 1 from tenure.ready r where r.queue = open.queue))
    or exists (select 1 from open where exists (select 1 from tenure.gated g where g.queue = open.queue))
    or exists (select 1 from tenure.holding h
               cross join tenure.job as j on j.id = h.job_id and j.token = h.token
               where j.queue in (select value from json_each(:queues)))
    or exists (select 1 from tenure.due d
               cross join tenure.job as j on j.id = d.job_id and j.token = d.token
               where d.due_at <= :now + cast(1e6 * :within_seconds as integer)
                 and j.queue in (select queue from open)) as busy;

-- name: job_events
select at, kind, token, worker, detail from tenure.event where job_id = :id order by seq;

-- name: get_notes
select n.job_id, n.fraction, n.message, n.reported_at
from json_each(:ids) as b cross join tenure.note as n on n.job_id = b.value;

-- name: get_note
select fraction, message, reported_at, checkpoint, saved_at from tenure.note where job_id = :id;

-- name: notes_of
-- annotate, settle, sweep, replay: what the attempts of these jobs have annotated so far.
select n.job_id as id, n.notes
from json_each(:ids) as b cross join tenure.note as n on n.job_id = b.value
where n.notes is not null;

-- name: clock
-- prune: retention is measured with this clock, not with that of the caller.
select :now as now;

-- name: missing_relations
-- Which of these tables, views and indexes do not exist.
select value from json_each(:names)
where not exists (select 1 from sqlite_master where name = 'tenure.' || value)
order by value;

-- name: late_work
-- How late the first due job is that no worker has promoted, and the first expired lease that none has swept.
with d as (select min(due_at) as due_at from tenure.due),
l as (
    select (:tick - expires_tick) / 1e6 as late, worker from tenure.lease indexed by tenure.lease_expires_tick
    where boot = :boot and expires_tick = (select min(expires_tick) from tenure.lease where boot = :boot)
    union all
    select (:now - expires_at) / 1e6, worker from tenure.lease indexed by tenure.lease_expires_tick
    where boot < :boot
    union all
    select (:now - expires_at) / 1e6, worker from tenure.lease indexed by tenure.lease_expires_tick
    where boot > :boot)
select (:now - (select due_at from d)) / 1e6 as due_seconds,
       (select min(job_id) from tenure.due where due_at = (select due_at from d)) as due_job,
       (select late from l order by late desc limit 1) as expired_seconds,
       (select worker from l order by late desc limit 1) as expired_worker;

-- name: lease_workers
-- The workers of leases that have not expired, and how long ago they were seen.
select l.worker, (:now - w.seen_at) / 1e6
from tenure.lease as l cross join tenure.worker as w on w.name = l.worker
where l.boot = :boot and l.expires_tick > :tick
group by l.worker, w.seen_at
order by l.worker;

-- name: ready_tasks
-- The tasks of jobs that have a ticket now, or that a worker without their task has put back, among the
-- oldest and the newest jobs.
select queue, task from (
    select * from (select queue, task, needs, priority, due_at, parked, position, gate, gate_key, reason
                   from tenure.job where id > 0 order by id limit :most)
    union all
    select * from (select queue, task, needs, priority, due_at, parked, position, gate, gate_key, reason
                   from tenure.job where id > 0 order by id desc limit :most)) as j
where j.parked is null
  and case when j.due_at is not null then j.reason = :put_back
      else exists (select 1 from tenure.ready r where r.queue = j.queue and r.needs = j.needs
                     and r.priority = j.priority and r.position = j.position)
           or exists (select 1 from tenure.gated g where g.queue = j.queue and g.gate = j.gate
                        and g.key = j.gate_key and g.priority = j.priority and g.position = j.position) end
group by queue, task
order by queue, task;

-- name: ahead_of_job
-- The number of tickets before a job that compete for the same slots, counted up to `most` per lane, from
-- the job towards the head of the line.
select sum((select count(*) from (
    select 1 from tenure.ready r
    where r.queue = j.queue and r.needs = n.value and (r.priority, r.position) < (j.priority, j.position)
    order by r.priority desc, r.position desc limit :most)))
from tenure.job j, json_each('[0,1,2,3]') as n
where j.id = :id and (n.value in (0, j.needs) or j.needs = 0);

-- name: running_tasks
-- The tasks of jobs that workers have claimed, among `most` of them.
select h.worker, j.queue, j.task, count(*) as jobs
from (select worker, job_id, token from tenure.holding limit :most) as h
     cross join tenure.job as j on j.id = h.job_id and j.token = h.token
group by h.worker, j.queue, j.task
order by jobs desc, h.worker, j.queue, j.task;

-- name: first_at_gate
-- The first job of a line at a gate, and how long it has waited.
select g.job_id, (:now - coalesce(j.queued_at, j.created_at)) / 1e6
from (select job_id from tenure.gated where queue = :queue and gate = :gate and key = :key
      order by priority, position limit 1) as g
     cross join tenure.job as j on j.id = g.job_id;

-- name: about
-- What the store is, and the version of its schema.
select 'SQLite' as engine, sqlite_version() as engine_version, version as schema_version, min_code,
       :now as now
from tenure.schema_version;
