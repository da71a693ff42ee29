-- name: lock_job
-- cancel, hold, unhold, move: the job row first, its ticket afterwards.
select id, token, queue, needs, priority, position, due_at, parked, held, cancel_requested, gate,
       gate_key, features
from tenure.job where id = :id and (:tenant::text is null or tenant = :tenant::text)
for update;

-- name: events_of_request
-- hold, unhold, move, replay, repeated: has the first try written its line?
select seq from tenure.event where job_id = :id and request_id = :request_id;

-- name: take_due_ticket
-- cancel, hold, move: matching the token; a void ticket is not this job's.
delete from tenure.due where due_at = :due_at and job_id = :id and token = :token returning job_id;

-- name: take_ready_ticket
-- cancel, hold, move: in a later statement than the one on `due`. Waits for a claim in flight.
delete from tenure.ready
where queue = :queue and needs = :needs and priority = :priority and position = :position
  and job_id = :id and token = :token
returning job_id;

-- name: take_gated_ticket
-- cancel, hold, move: the same for a job at a gate.
delete from tenure.gated
where queue = :queue and gate = :gate and key = :key and priority = :priority and position = :position
  and job_id = :id and token = :token
returning job_id;

-- name: request_cancel
-- cancel: a running job is asked to stop.
update tenure.job set cancel_requested = true, reason = :reason where id = :id;

-- name: set_held
-- hold, unhold: the flag; parked when its ticket was taken. If the pause of a workflow has held it, its
-- end will not touch it any more.
with noted as (
    update tenure.node set paused = false where job_id = :id and paused
)
update tenure.job
set held = :held, reason = :reason, parked = case when :park::boolean then 'held' else parked end
where id = :id;

-- name: change_queue
-- move: a job that stands nowhere (held, waiting) changes where it will stand.
update tenure.job
set queue = coalesce(:queue, queue), priority = coalesce(:priority::smallint, priority),
    due_at = case when :change_due::boolean then :due_at::timestamptz else due_at end
where id = :id;

-- name: move_deadlines
-- move to a later time: the job has as long to start and to finish as before. The bound is FAR_FUTURE. (`least`
-- passes over nulls.)
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now)
update tenure.job j
set start_by = case when start_by is not null then
        least(start_by + (:due_at::timestamptz - greatest(due_at, t.now)), '9000-01-01T00:00:00Z') end,
    finish_by = case when finish_by is not null then
        least(finish_by + (:due_at::timestamptz - greatest(due_at, t.now)), '9000-01-01T00:00:00Z') end
from t
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and (start_by is not null or finish_by is not null) and :due_at::timestamptz > greatest(due_at, t.now);

-- name: finished_job
-- replay, delete: lock the row of history.
select id, token, state::text as state, tenant, task, args::text as args, unique_scope, unique_key, unique_until,
       unique_seconds, features, worker, finished_at, reason, claimed_at, attempts, duration_seconds,
       case when json_typeof(error) = 'object' then (error::jsonb - 'traceback' - 'output')::text
            else error::text end as error
from tenure.history where id = :id and (:tenant::text is null or tenant = :tenant::text)
for update;

-- name: reopen_edges
-- replay: children that still wait have an unfinished parent again.
with waiting as materialized (
    select j.id
    from tenure.parent p,
         lateral (select id from tenure.job where id = p.job_id and parked = 'parents' for update) as j
    where p.parent_id = :id
    order by j.id
)
update tenure.parent p set parent_state = null from waiting
where p.parent_id = :id and p.job_id = waiting.id
returning p.job_id;

-- name: replay
-- replay: the row moves back. Token + 1, attempts 0.
with old as (
    delete from tenure.history where id = :id returning *
), new as materialized (
    select old.*, 1000 * nextval('tenure.position') as position, coalesce(:now::timestamptz, clock_timestamp()) as now,
           least((octet_length(args::text) + coalesce(octet_length(metadata::text), 0)
                  + coalesce(octet_length(retry::text), 0)) / 1024, 32767) as size_kb
    from old
), inserted as (
    insert into tenure.job (
        id, token, position, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
        max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata,
        error, reason, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
        keep_other_seconds, finish_by)
    select id, token + 1, position, created_at, now, timeout_seconds, unique_seconds, priority, 0,
           max_attempts, 0, features | :features::smallint, needs, size_kb, tenant, queue, task, args, retry,
           metadata, error, 'replayed',
           unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds, keep_other_seconds,
           finish_by
    from new
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue)
    select position, id, token + 1, priority, needs, size_kb, queue from new where gate is null
)
select id, features, queue, needs, priority, position, false as due_soon from new;

-- name: delete_finished
-- delete: only a row of history, locked by `finished_job`.
delete from tenure.history where id = :id;

-- name: forget_jobs
-- delete, prune: what hangs on jobs that are gone. Keys held for ever stay.
with gone as materialized (
    select (value #>> '{}')::bigint as id from json_array_elements(:ids::json)
), events as (
    delete from tenure.event where job_id = any (array(select id from gone))
), notes as (
    delete from tenure.note where job_id = any (array(select id from gone))
), nodes as (
    delete from tenure.node where job_id = any (array(select id from gone))
), steps as (
    delete from tenure.step where job_id = any (array(select id from gone))
)
delete from tenure.parent where job_id = any (array(select id from gone));

-- name: pause_queue
-- pause: a second pause changes the reason, not the time.
insert into tenure.queue (name, paused_at, reason)
values (:name, coalesce(:now::timestamptz, clock_timestamp()), :reason)
on conflict (name) do update
set paused_at = coalesce(queue.paused_at, excluded.paused_at), reason = excluded.reason;

-- name: claims_in_flight
-- pause: transactions that have taken tickets and have read which queues are paused, which only a
-- claim does. Once they have ended, no claim is older than the pause. (A statement gets its locks
-- before its snapshot, so a claim that shows no lock yet will see the pause.)
select distinct taker.virtualtransaction
from pg_catalog.pg_locks as taker join pg_catalog.pg_locks as reader using (virtualtransaction)
where taker.locktype = 'relation' and taker.granted
  and taker.relation in ('tenure.ready'::regclass, 'tenure.gated'::regclass)
  and taker.mode = 'RowExclusiveLock' and taker.pid is distinct from pg_backend_pid()
  and taker.database = (select oid from pg_catalog.pg_database where datname = current_database())
  and reader.locktype = 'relation' and reader.relation = 'tenure.queue'::regclass;

-- name: resume_queue
-- resume: zero rows mean that it was not paused.
delete from tenure.queue where name = :name returning name;

-- name: paused_queues
select name, paused_at, reason from tenure.queue where paused_at is not null order by name;

-- name: history_stretches
-- prune: stretches of time, oldest first, each served by exactly one partition: a day, or what lies
-- between days and so in the default partition. Only those that begin before the latest cut.
with day as (
    select to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC' as start
    from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'tenure.history'::regclass and c.relname ~ '^history_\d{8}$'
), edge as (
    select start from day
    union select start + interval '24 hours' from day
    union select '1970-01-01 00:00:00+00'::timestamptz
)
select start, stop
from (select start, lead(start, 1, '9000-01-01 00:00:00+00') over (order by start) as stop
      from edge) as stretch
where start < :latest::timestamptz and stop > :earliest::timestamptz
order by start;

-- name: walk_by_index
-- prune: each step of its walk reads on where the last one ended. Reading the whole partition and
-- sorting it is no choice, whatever the statistics say.
select set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);

-- name: prune_finished
-- prune: one step of a walk along the ids of one partition, which the range selects. Vacuum empties
-- the pruned part of an index, but not that of a table, so the next prune has little to walk. Jobs of
-- workflows are deleted with their workflow: see `prune_nodes`. Returns the deleted ids and, with a
-- null for id, how far the walk came.
with walked as materialized (
    select ctid as spot, id, state, features, finished_at, keep_until from tenure.history
    where finished_at >= :start::timestamptz and finished_at < :stop::timestamptz and id > :after
    order by id limit :most
), gone as (
    delete from tenure.history h
    where h.ctid = any (array(
              select spot from walked
              where features & {WORKFLOW} = 0 and keep_until is null
                and finished_at < case when state = 'succeeded' then :succeeded_before::timestamptz
                                       else :other_before::timestamptz end))
      and h.finished_at >= :start::timestamptz and h.finished_at < :stop::timestamptz
      and h.keep_until is null
      and h.finished_at < case when h.state = 'succeeded' then :succeeded_before::timestamptz
                               else :other_before::timestamptz end
    returning h.id
)
select null::bigint as id, :start::timestamptz as start, max(id) as after
from walked having count(*) > 0
union all
select id, null, null from gone;

-- name: prune_kept
-- prune: jobs that say themselves how long they are kept. One step of a walk along these times. A job
-- whose child still waits or runs is passed: the child may want its result. Whatever row of another
-- partition has the same place as one of these: it is due, too, or stays.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
walked as materialized (
    select ctid as spot, id, keep_until from tenure.history
    where keep_until is not null and features & 64 = 0 and keep_until <= (select now from t)
      and (keep_until, id) > (:start::timestamptz, :after)
    order by keep_until, id limit :most
), gone as (
    delete from tenure.history h
    where h.ctid = any (array(select spot from walked))
      and h.keep_until is not null and h.features & 64 = 0 and h.keep_until <= (select now from t)
      and not (h.features & {CHILDREN} <> 0 and exists (
          select from (select job_id from tenure.parent
                       where parent_id = any (array[h.id])
                         and parent_state is distinct from 'waiting' offset 0) as p,
               lateral (select from tenure.job where id = p.job_id offset 0) as j))
    returning h.id
), reached as (
    select keep_until, id from walked order by keep_until desc, id desc limit 1
)
select null::bigint as id, keep_until as start, id as after from reached
union all
select id, null, null from gone;

-- name: read_prune_clock
-- prune: one at a time decides.
select trusted_at, doubted_at from tenure.prune_clock for update;

-- name: write_prune_clock
-- prune: what it has decided.
insert into tenure.prune_clock (one, trusted_at, doubted_at)
values (1, :trusted_at::timestamptz, :doubted_at::timestamptz)
on conflict (one) do update set trusted_at = excluded.trusted_at, doubted_at = excluded.doubted_at;

-- name: prune_keys
-- prune: keys whose period is over and whose job is no longer live. One step of a walk along the
-- times at which they expired: keys of live jobs are passed once, not once per step. A replay may
-- have begun another period meanwhile: that is asked again once the key is locked.
delete from tenure.unique_key
where ctid = any (array(
    select k.ctid from tenure.unique_key k
    where k.expires_at >= :after::timestamptz
      and k.expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
      and not exists (select from tenure.job j where j.id = k.job_id offset 0)
    order by k.expires_at limit :most))
  and expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
returning expires_at;

-- name: prune_orphans
-- prune: delete rows of jobs whose whole day was dropped. One step of a walk along the ids. Returns
-- how far it came, or null at the end.
with walked as materialized (
    select job_id from (
        (select distinct job_id from tenure.event where job_id > :after order by job_id limit :most)
        union
        (select job_id from tenure.note where job_id > :after order by job_id limit :most)
        union
        (select distinct job_id from tenure.step where job_id > :after order by job_id limit :most)
        union
        (select distinct job_id from tenure.parent where job_id > :after order by job_id limit :most)
    ) as storied
    order by job_id limit :most
), orphan as materialized (
    select job_id from walked w
    where not exists (select from tenure.job j where j.id = w.job_id offset 0)
      and not exists (select from tenure.history h where h.id = w.job_id offset 0)
), events as (
    delete from tenure.event where job_id = any (array(select job_id from orphan))
), notes as (
    delete from tenure.note where job_id = any (array(select job_id from orphan))
), steps as (
    delete from tenure.step where job_id = any (array(select job_id from orphan))
), edges as (
    delete from tenure.parent where job_id = any (array(select job_id from orphan))
)
select max(job_id) as last_id from walked;

-- name: add_history_days
-- prune, copy: one transaction at a time. Two would keep each other from the default partition until
-- both gave up. The second one leaves the work to the first, and goes on.
select case when pg_try_advisory_xact_lock(7364882, 'tenure.job'::regclass::oid::int)
            then tenure.add_history_days(:days) else 0 end;

-- name: drop_history_days
select tenure.drop_history_days(:before);
