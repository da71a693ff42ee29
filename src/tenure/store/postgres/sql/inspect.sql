-- name: get_job
select id, token, state::text as state, task, args::text as args, queue, priority, tenant, attempts, max_attempts,
       crashes, created_at, queued_at, due_at, claimed_at, finished_at, duration_seconds, worker,
       reason, held, cancel_requested, queue_paused, unfinished_parents, timeout_seconds,
       retry::text as retry, metadata::text as metadata, unique_scope, unique_key, unique_until, result::text as result,
       error::text as error, gate, gate_key, needs, notes::text as notes, start_by, finish_by
from tenure.all_jobs
where id = :id and (:tenant::text is null or tenant in (:tenant::text, ''));

-- name: last_job_id
select case when is_called then last_value else 0 end as last_id from tenure.job_id;

-- name: holders
-- Which lease holds these jobs?
select job_id, token, lease_id, worker, claimed_at, expires_at from tenure.holding
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: count_live
select queue, task, state::text as state, tenant, count(*) as jobs from tenure.live
where (:tenant::text is null or tenant in (:tenant::text, ''))
group by queue, task, state, tenant
order by queue, task, state, tenant;

-- name: count_finished
select queue, task, state::text as state, tenant, count(*) as jobs from tenure.history
where finished_at >= :since and finished_at < :before
  and (:tenant::text is null or tenant in (:tenant::text, ''))
group by queue, task, state, tenant
order by queue, task, state, tenant;

-- name: oldest_ready
-- The head of each lane, found by hopping from lane to lane, never by walking a line.
with recursive lane as (
    (select queue, needs, priority, position, job_id from tenure.ready
     order by queue, needs, priority, position limit 1)
    union all
    select n.queue, n.needs, n.priority, n.position, n.job_id
    from lane, lateral (
        select queue, needs, priority, position, job_id from tenure.ready r
        where (r.queue, r.needs, r.priority) > (lane.queue, lane.needs, lane.priority)
        order by queue, needs, priority, position limit 1) as n
)
select lane.queue, min(coalesce(j.queued_at, j.created_at)) as since,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp())
               - min(coalesce(j.queued_at, j.created_at)))::double precision as age_seconds
from lane, lateral (select created_at, queued_at from tenure.job where id = lane.job_id offset 0) as j
group by lane.queue order by lane.queue;

-- name: is_busy
-- is_idle: has one of these queues a job that is ready, running or due soon? Those of paused queues do not count.
with served as materialized (
    select value as queue from json_array_elements_text(:queues::json)
), open as materialized (
    select s.queue from served s
    where not exists (select from tenure.queue p where p.name = s.queue and p.paused_at is not null)
)
select exists (select from open, lateral (select from tenure.ready r where r.queue = open.queue limit 1) as r)
    or exists (select from open, lateral (select from tenure.gated g where g.queue = open.queue limit 1) as g)
    or exists (select from tenure.holding h,
                    lateral (select queue from tenure.job
                             where id = h.job_id and token = h.token offset 0) as j
               where j.queue in (select queue from served))
    or exists (select from (select job_id, token from tenure.due
                            where due_at <= (select coalesce(:now::timestamptz, clock_timestamp())
                                                    + :within_seconds * interval '1 second')
                            order by due_at offset 0) as d,
                    lateral (select queue from tenure.job
                             where id = d.job_id and token = d.token offset 0) as j
               where j.queue in (select queue from open)) as busy;

-- name: job_events
select at, kind, token, worker, detail::text as detail from tenure.event
where job_id = :id order by seq;

-- name: get_notes
select job_id, fraction, message, reported_at from tenure.note
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: get_note
select fraction, message, reported_at, checkpoint::text as checkpoint, saved_at from tenure.note where job_id = :id;

-- name: notes_of
-- annotate, settle, sweep, replay: what the attempts of these jobs have annotated so far.
select job_id as id, notes::text as notes from tenure.note
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and notes is not null;

-- name: clock
-- prune: retention is measured with this clock, not with that of the caller.
select coalesce(:now::timestamptz, clock_timestamp()) as now;

-- name: missing_relations
-- Which of these tables, views, indexes and sequences do not exist.
select value from json_array_elements_text(:names::json) where to_regclass('tenure.' || value) is null
order by value;

-- name: late_work
-- How late the first due job is that no worker has promoted, and the first expired lease that none has swept.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now)
select extract(epoch from t.now - d.due_at)::double precision as due_seconds, d.job_id as due_job,
       extract(epoch from t.now - l.expires_at)::double precision as expired_seconds, l.worker as expired_worker
from t
     left join lateral (select due_at, job_id from tenure.due where due_at > '-infinity'
                        order by due_at limit 1) as d on true
     left join lateral (select expires_at, worker from tenure.lease where expires_at > '-infinity'
                        order by expires_at limit 1) as l on true;

-- name: lease_workers
-- The workers of leases that have not expired, and how long ago they were seen.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now)
select l.worker, extract(epoch from t.now - w.seen_at)::double precision
from t, tenure.lease l join tenure.worker w on w.name = l.worker
where l.expires_at > t.now
group by l.worker, w.seen_at, t.now
order by l.worker;

-- name: ready_tasks
-- The tasks of jobs that have a ticket now, or that a worker without their task has put back, among the
-- oldest and the newest jobs.
select queue, task from (
    (select queue, task, needs, priority, due_at, parked, position, gate, gate_key, reason from tenure.job order by id limit :most)
    union all
    (select queue, task, needs, priority, due_at, parked, position, gate, gate_key, reason from tenure.job order by id desc limit :most)) as j
where j.parked is null
  and case when j.due_at is not null then j.reason = :put_back
      else exists (select 1 from tenure.ready r where r.queue = j.queue and r.needs = j.needs
                     and r.priority = j.priority and r.position = j.position offset 0)
           or exists (select 1 from tenure.gated g where g.queue = j.queue and g.gate = j.gate
                        and g.key = j.gate_key and g.priority = j.priority and g.position = j.position
                        offset 0) end
group by queue, task
order by queue, task;

-- name: ahead_of_job
-- The number of tickets before a job that compete for the same slots, counted up to `most` per lane, from
-- the job towards the head of the line.
select count(*) from (
    select from tenure.job j, unnest('{0,1,2,3}'::smallint[]) as n (needs), lateral (
        select from tenure.ready r
        where r.queue = j.queue and r.needs = n.needs and (r.priority, r.position) < (j.priority, j.position)
        order by r.queue desc, r.needs desc, r.priority desc, r.position desc limit :most) as ticket
    where j.id = :id and (n.needs in (0, j.needs) or j.needs = 0)) as ahead;

-- name: running_tasks
-- The tasks of jobs that workers have claimed, among `most` of them.
select h.worker, j.queue, j.task, count(*) as jobs
from (select worker, job_id, token from tenure.holding limit :most) as h,
     lateral (select queue, task, token from tenure.job where id = h.job_id offset 0) as j
where j.token = h.token
group by h.worker, j.queue, j.task
order by jobs desc, h.worker, j.queue, j.task;

-- name: first_at_gate
-- The first job of a line at a gate, and how long it has waited.
select g.job_id, extract(epoch from coalesce(:now::timestamptz, clock_timestamp())
                         - coalesce(j.queued_at, j.created_at))::double precision
from (select job_id from tenure.gated where queue = :queue and gate = :gate and key = :key
      order by priority, position limit 1) as g,
     lateral (select created_at, queued_at from tenure.job where id = g.job_id offset 0) as j;

-- name: about
-- What the store is, and the version of its schema.
select 'PostgreSQL' as engine, current_setting('server_version') as engine_version,
       v.version as schema_version, v.min_code, coalesce(:now::timestamptz, clock_timestamp()) as now
from tenure.schema_version v;
