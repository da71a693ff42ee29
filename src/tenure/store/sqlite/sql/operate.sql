-- name: lock_job
select id, token, queue, needs, priority, position, due_at, parked, held, cancel_requested, gate,
       gate_key, features
from tenure.job where id = :id and (:tenant is null or tenant = :tenant);

-- name: events_of_request
-- hold, unhold, move, replay, repeated: has the first try written its line?
select seq from tenure.event where job_id = :id and request_id = :request_id;

-- name: take_due_ticket
-- cancel, hold, move: matching the token; a void ticket is not this job's.
delete from tenure.due where due_at = :due_at and job_id = :id and token = :token returning job_id;

-- name: take_ready_ticket
-- cancel, hold, move: matching the token.
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
update tenure.node set paused = 0 where job_id = :id and paused;
update tenure.job set held = :held, reason = :reason, parked = case when :park then 'held' else parked end
where id = :id;

-- name: change_queue
-- move: a job that stands nowhere (held, waiting) changes where it will stand.
update tenure.job as job
set queue = coalesce(:queue, queue), priority = coalesce(:priority, priority),
    due_at = case when :change_due then :due_at else due_at end
where id = :id;

-- name: move_deadlines
-- move to a later time: the job has as long to start and to finish as before. The bound is FAR_FUTURE.
update tenure.job as job
set start_by = min(start_by + :due_at - max(coalesce(due_at, 0), :now), 221845392000000000),
    finish_by = min(finish_by + :due_at - max(coalesce(due_at, 0), :now), 221845392000000000)
where id in (select value from json_each(:ids)) and (start_by is not null or finish_by is not null)
  and :due_at > max(coalesce(due_at, 0), :now);

-- name: finished_job
select id, token, state, tenant, task, args, unique_scope, unique_key, unique_until,
       unique_seconds, features, worker, finished_at, reason, claimed_at, attempts, duration_seconds,
       json_remove(error, '$.traceback', '$.output') as error
from tenure.history where id = :id and (:tenant is null or tenant = :tenant);

-- name: reopen_edges
-- replay: children that still wait have an unfinished parent again.
update tenure.parent as parent set parent_state = null
where parent_id = :id
  and exists (select 1 from tenure.job j where j.id = parent.job_id and j.parked = 'parents')
returning job_id;

-- name: replay
-- replay: the row moves back. Token + 1, attempts 0.
update tenure.counter set position = position + 1;
insert into tenure.job (
    id, token, position, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
    max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata, error,
    reason, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
    keep_other_seconds, finish_by)
select h.id, h.token + 1, c.position, h.created_at, :now, h.timeout_seconds, h.unique_seconds, h.priority,
       0, h.max_attempts, 0, h.features | :features, h.needs,
       min((length(cast(h.args as blob)) + coalesce(length(cast(h.metadata as blob)), 0)
            + coalesce(length(cast(h.retry as blob)), 0)) / 1024, 32767),
       h.tenant, h.queue, h.task, h.args, h.retry, h.metadata,
       h.error, 'replayed', h.unique_scope, h.unique_key, h.unique_until, h.gate, h.gate_key,
       h.keep_succeeded_seconds, h.keep_other_seconds, h.finish_by
from tenure.history h, tenure.counter c where h.id = :id
returning id, features, queue, needs, priority, position, 0 as due_soon;
insert into tenure.ready (queue, needs, priority, position, job_id, token, size_kb)
select queue, needs, priority, position, id, token, size_kb from tenure.job where id = :id and gate is null;
delete from tenure.history where id = :id;

-- name: delete_finished
-- delete: only a row of history, locked by `finished_job`.
delete from tenure.history where id = :id;

-- name: forget_jobs
-- delete, prune: what hangs on jobs that are gone. Keys held for ever stay.
delete from tenure.event where job_id in (select value from json_each(:ids));
delete from tenure.note where job_id in (select value from json_each(:ids));
delete from tenure.step where job_id in (select value from json_each(:ids));
delete from tenure.parent where job_id in (select value from json_each(:ids));
delete from tenure.node where job_id in (select value from json_each(:ids));

-- name: pause_queue
-- pause: a second pause changes the reason, not the time.
insert into tenure.queue as queue (name, paused_at, reason) values (:name, :now, :reason)
on conflict (name) do update
set paused_at = coalesce(queue.paused_at, excluded.paused_at), reason = excluded.reason;

-- name: claims_in_flight
-- The single writer has none.
select 1 where false;

-- name: resume_queue
-- resume: zero rows mean that it was not paused.
delete from tenure.queue where name = :name returning name;

-- name: paused_queues
select name, paused_at, reason from tenure.queue where paused_at is not null order by name;

-- name: history_stretches
-- prune: history is one table, and its index on the time leads along it.
select :earliest as start, :latest as stop where :latest > :earliest;

-- name: walk_by_index
-- The statement below names its index.
select 1;

-- name: prune_finished
-- prune: one step of a walk along the times. First how far it comes, then the ids that are gone.
select null as id, walked.finished_at as start, walked.id as after
from (select finished_at, id from tenure.history indexed by tenure.history_finished_at
      where (finished_at, id) > (:start, :after) and finished_at < :stop
      order by finished_at, id limit :most) as walked
order by walked.finished_at desc, walked.id desc limit 1;
delete from tenure.history
where id in (
    select id
    from (select id, state, features, finished_at, keep_until from tenure.history indexed by tenure.history_finished_at
          where (finished_at, id) > (:start, :after) and finished_at < :stop
          order by finished_at, id limit :most)
    where features & {WORKFLOW} = 0 and keep_until is null
      and finished_at < case when state = 'succeeded' then :succeeded_before else :other_before end)
returning id, null as start, null as after;

-- name: prune_kept
-- prune: jobs that say themselves how long they are kept. One step of a walk along these times. A job
-- whose child still waits or runs is passed: the child may want its result.
select null as id, walked.keep_until as start, walked.id as after
from (select keep_until, id from tenure.history indexed by tenure.history_keep_until
      where keep_until is not null and features & 64 = 0
        and (keep_until, id) > (:start, :after) and keep_until <= :now
      order by keep_until, id limit :most) as walked
order by walked.keep_until desc, walked.id desc limit 1;
delete from tenure.history
where id in (
    select w.id
    from (select id, features from tenure.history indexed by tenure.history_keep_until
          where keep_until is not null and features & 64 = 0
            and (keep_until, id) > (:start, :after) and keep_until <= :now
          order by keep_until, id limit :most) as w
    where w.features & {CHILDREN} = 0
       or not exists (select 1 from tenure.parent p cross join tenure.job as j on j.id = p.job_id
                      where p.parent_id = w.id))
returning id, null as start, null as after;

-- name: read_prune_clock
-- prune: the single writer needs no lock.
select trusted_at, doubted_at from tenure.prune_clock;

-- name: write_prune_clock
-- prune: what it has decided.
insert into tenure.prune_clock (one, trusted_at, doubted_at) values (1, :trusted_at, :doubted_at)
on conflict (one) do update set trusted_at = excluded.trusted_at, doubted_at = excluded.doubted_at;

-- name: prune_keys
-- prune: keys whose period is over and whose job is no longer live. One step of a walk along the
-- times at which they expired: keys of live jobs are passed once, not once per step.
delete from tenure.unique_key
where (tenant, scope, key) in (
    select k.tenant, k.scope, k.key from tenure.unique_key k
    where k.expires_at >= :after and k.expires_at <= :now
      and not exists (select 1 from tenure.job j where j.id = k.job_id)
    order by k.expires_at limit :most)
returning expires_at;

-- name: prune_orphans
-- Nothing is dropped by the day here, so nothing is orphaned.
select null;

-- name: add_history_days
select 0;

-- name: drop_history_days
select 0;
