-- name: lock_live_jobs
-- cancel, hold, unhold, move of many: in id order, as everywhere. The same columns as `lock_job`.
select id, token, queue, needs, priority, position, due_at, parked, held, cancel_requested, gate,
       gate_key, features
from tenure.job
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and (:tenant::text is null or tenant = :tenant::text)
order by id
for update;

-- name: done_jobs
-- cancel, hold, unhold, move, replay of many, repeated: for which of them has the first try written its line?
select distinct job_id from tenure.event
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and request_id = :request_id;

-- name: set_held_jobs
-- hold, unhold of many: as `set_held`; parked when their tickets were taken.
with noted as (
    update tenure.node set paused = false
    where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
      and paused
)
update tenure.job
set held = :held, reason = :reason,
    parked = case when id = any (array(select (value #>> '{}')::bigint from json_array_elements(:park::json)))
                  then 'held' else parked end
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: change_queues
-- move of many: jobs that stand nowhere (held, waiting) change where they will stand.
update tenure.job
set queue = coalesce(:queue, queue), priority = coalesce(:priority::smallint, priority),
    due_at = case when :change_due::boolean then :due_at::timestamptz else due_at end
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: finished_jobs
-- cancel, replay, delete of many: lock the rows of history, in id order. The same columns as `finished_job`;
-- only a job with a key needs its arguments.
select id, token, state::text as state, tenant, task,
       case when unique_key is null then '' else args::text end as args, unique_scope, unique_key, unique_until,
       unique_seconds, features, worker, finished_at, reason, claimed_at, attempts, duration_seconds,
       case when json_typeof(error) = 'object' then (error::jsonb - 'traceback' - 'output')::text
            else error::text end as error
from tenure.history
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and (:tenant::text is null or tenant = :tenant::text)
order by id
for update;

-- name: reopen_edges_of
-- replay of many: as `reopen_edges`. Returns the parents that have waiting children. (Which index to take:
-- see `nodes_to_reopen`.)
with wanted as materialized (
    select (value #>> '{}')::bigint as id from json_array_elements(:ids::json)
), waiting as materialized (
    select j.id, p.parent_id
    from wanted,
         lateral (select job_id, parent_id from tenure.parent
                  where parent_id = any (array[wanted.id])
                    and parent_state is distinct from 'waiting' offset 0) as p,
         lateral (select id from tenure.job where id = p.job_id and parked = 'parents' for update) as j
    order by j.id
)
update tenure.parent p set parent_state = null from waiting
where p.parent_id = any (array[waiting.parent_id]) and p.job_id = any (array[waiting.id])
returning p.parent_id;

-- name: replay_jobs
-- replay of many: as `replay`, in the order of the rows.
with wanted as materialized (
    select (r.value ->> 'id')::bigint as id, (r.value ->> 'features')::smallint as more, r.n
    from json_array_elements(:rows::json) with ordinality as r (value, n)
), old as (
    delete from tenure.history where id = any (array(select id from wanted)) returning *
), new as materialized (
    select placed.*, 1000 * nextval('tenure.position') as position,
           coalesce(:now::timestamptz, clock_timestamp()) as now,
           least((octet_length(args::text) + coalesce(octet_length(metadata::text), 0)
                  + coalesce(octet_length(retry::text), 0)) / 1024, 32767) as size_kb
    from (select old.*, wanted.more from old join wanted using (id) order by wanted.n) as placed
), inserted as (
    insert into tenure.job (
        id, token, position, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
        max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata,
        error, reason, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
        keep_other_seconds, finish_by)
    select id, token + 1, position, created_at, now, timeout_seconds, unique_seconds, priority, 0,
           max_attempts, 0, features | more, needs, size_kb, tenant, queue, task, args, retry, metadata, error, 'replayed',
           unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds, keep_other_seconds, finish_by
    from new
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue)
    select position, id, token + 1, priority, needs, size_kb, queue from new where gate is null
)
select id, features, queue, needs, priority, position, false as due_soon from new;

-- name: open_nodes
-- delete of many: the nodes of workflows that have not ended.
select n.job_id from tenure.node n join tenure.workflow w on w.id = n.workflow_id
where n.job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and w.ended_at is null;

-- name: delete_finished_jobs
-- delete of many: only rows of history, locked by `finished_jobs`.
delete from tenure.history
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: forget_steps_of
-- replay of many: the jobs start from the beginning.
delete from tenure.step
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));
