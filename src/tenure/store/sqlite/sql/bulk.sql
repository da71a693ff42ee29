-- name: lock_live_jobs
-- cancel, hold, unhold, move of many. The same columns as `lock_job`.
select j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.held,
       j.cancel_requested, j.gate, j.gate_key, j.features
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
where :tenant is null or j.tenant = :tenant
order by j.id;

-- name: done_jobs
-- cancel, hold, unhold, move, replay of many, repeated: for which of them has the first try written its line?
select distinct job_id from tenure.event
where job_id in (select value from json_each(:ids)) and request_id = :request_id;

-- name: set_held_jobs
-- hold, unhold of many: as `set_held`; parked when their tickets were taken.
update tenure.node set paused = 0 where job_id in (select value from json_each(:ids)) and paused;
update tenure.job
set held = :held, reason = :reason,
    parked = case when id in (select value from json_each(:park)) then 'held' else parked end
where id in (select value from json_each(:ids));

-- name: change_queues
-- move of many: jobs that stand nowhere (held, waiting) change where they will stand.
update tenure.job as job
set queue = coalesce(:queue, queue), priority = coalesce(:priority, priority),
    due_at = case when :change_due then :due_at else due_at end
where id in (select value from json_each(:ids));

-- name: finished_jobs
-- cancel, replay, delete of many. The same columns as `finished_job`; only a job with a key needs its arguments.
select h.id, h.token, h.state, h.tenant, h.task, case when h.unique_key is null then '' else h.args end as args,
       h.unique_scope, h.unique_key, h.unique_until, h.unique_seconds, h.features, h.worker, h.finished_at,
       h.reason, h.claimed_at, h.attempts, h.duration_seconds,
       json_remove(h.error, '$.traceback', '$.output') as error
from json_each(:ids) as b cross join tenure.history as h on h.id = b.value
where :tenant is null or h.tenant = :tenant
order by h.id;

-- name: reopen_edges_of
-- replay of many: as `reopen_edges`. Returns the parents that have waiting children.
update tenure.parent as parent set parent_state = null
where parent_id in (select value from json_each(:ids))
  and exists (select 1 from tenure.job j where j.id = parent.job_id and j.parked = 'parents')
returning parent_id;

-- name: replay_jobs
-- replay of many: as `replay`, in the order of the rows.
insert into tenure.job (
    id, token, position, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
    max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata, error,
    reason, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
    keep_other_seconds, finish_by)
select h.id, h.token + 1, c.position + 1 + b.key, h.created_at, :now, h.timeout_seconds, h.unique_seconds,
       h.priority, 0, h.max_attempts, 0, h.features | (b.value ->> 'features'), h.needs,
       min((length(cast(h.args as blob)) + coalesce(length(cast(h.metadata as blob)), 0)
            + coalesce(length(cast(h.retry as blob)), 0)) / 1024, 32767),
       h.tenant, h.queue, h.task, h.args, h.retry, h.metadata, h.error, 'replayed', h.unique_scope, h.unique_key, h.unique_until, h.gate, h.gate_key,
       h.keep_succeeded_seconds, h.keep_other_seconds, h.finish_by
from json_each(:rows) as b cross join tenure.history as h on h.id = b.value ->> 'id' cross join tenure.counter c
order by b.key
returning id, features, queue, needs, priority, position, 0 as due_soon;
update tenure.counter set position = position + json_array_length(:rows);
insert into tenure.ready (queue, needs, priority, position, job_id, token, size_kb)
select j.queue, j.needs, j.priority, j.position, j.id, j.token, j.size_kb
from json_each(:rows) as b cross join tenure.job as j on j.id = b.value ->> 'id'
where j.gate is null;
delete from tenure.history where id in (select b.value ->> 'id' from json_each(:rows) as b);

-- name: open_nodes
-- delete of many: the nodes of workflows that have not ended.
select n.job_id
from json_each(:ids) as b
     cross join tenure.node as n on n.job_id = b.value
     cross join tenure.workflow as w on w.id = n.workflow_id
where w.ended_at is null;

-- name: delete_finished_jobs
-- delete of many: only rows of history.
delete from tenure.history where id in (select value from json_each(:ids));

-- name: forget_steps_of
-- replay of many: the jobs start from the beginning.
delete from tenure.step where job_id in (select value from json_each(:ids));
