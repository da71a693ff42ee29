-- The searches of `list_jobs`. A walk returns the next ids along an index, at most `scan` of them; then
-- a find reads these jobs and keeps those that match. `true /*filter*/` is where the terms of the
-- filter go: see store/conditions.py. The marks `/*past*/` and `/*way*/` stand where the order of the
-- ids is turned round. A walk has one bound: with two, and with statistics that are out of date,
-- PostgreSQL read the whole range and sorted it.

-- name: walk_live
select id from tenure.job
where id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_finished
select id from tenure.history
where id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_unsuccessful
-- One final state other than success: its index holds nothing else. The literal condition is what
-- lets a prepared plan use the partial index.
select id from tenure.history
where state = :state and state <> 'succeeded' and id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_keyed_live
-- All live jobs with a feature: an index of keys would cost every job a little.
select id from tenure.job indexed by tenure.job_featured
where features <> 0 and :key <> '' and id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_keyed_finished
select id from tenure.history
where unique_key = :key and unique_key is not null and id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_with_error
-- The live jobs of which an attempt has failed.
select id from tenure.job
where error is not null and id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_nodes
select job_id as id from tenure.node
where workflow_id = :workflow and job_id < /*past*/ :past
order by job_id desc /*way*/ limit :scan;

-- name: walk_all_nodes
select job_id as id from tenure.node
where job_id < /*past*/ :past
order by job_id desc /*way*/ limit :scan;

-- name: walk_running
-- Leases are few. A job that is on a lease no more has another token or is finished.
select distinct job_id as id from tenure.holding
where job_id < /*past*/ :past
order by job_id desc /*way*/ limit :scan;

-- name: walk_ids
select value as id from json_each(:ids)
where value < /*past*/ :past
order by value desc /*way*/ limit :scan;

-- name: walk_by_finish
select finished_at as at, id from tenure.history
where finished_at <= :at and finished_at >= :since
  and (finished_at, id) < (:at, :past)
order by finished_at desc, id desc limit :scan;

-- name: walk_unsuccessful_by_finish
select finished_at as at, id from tenure.history
where state <> 'succeeded' and finished_at <= :at and finished_at >= :since
  and (finished_at, id) < (:at, :past)
order by finished_at desc, id desc limit :scan;

-- name: walk_ready
-- One lane after the other, each from its head.
select priority, position, job_id as id, token from tenure.ready
where queue = :queue and needs = :needs and (priority, position) > (:priority, :position)
order by priority, position limit :scan;

-- name: walk_gated
select gate, key, priority, position, job_id as id, token from tenure.gated
where queue = :queue and (gate, key, priority, position) > (:gate, :key, :priority, :position)
order by gate, key, priority, position limit :scan;

-- name: find_live
select t.id, t.token, t.state, t.task, t.args, t.queue, t.priority, t.tenant, t.attempts, t.max_attempts,
       t.crashes, t.created_at, t.queued_at, t.due_at, t.claimed_at, t.finished_at, t.duration_seconds,
       t.worker, t.reason, t.held, t.cancel_requested, t.queue_paused, t.unfinished_parents,
       t.timeout_seconds, t.retry, t.metadata, t.unique_scope, t.unique_key, t.unique_until, t.result,
       t.error, t.gate, t.gate_key, t.needs, t.notes, t.start_by, t.finish_by
from tenure.live as t
where t.id >= :low and t.id <= :high
  and (:tenant is null or t.tenant in (:tenant, ''))
  and (true /*filter*/)
  and (:states is null or instr(' ' || :states || ' ', ' ' || t.state || ' ') > 0)
order by t.id desc /*way*/ limit :most;

-- name: find_live_among
-- The same for ids that do not follow each other. The first of them come first.
select t.id, t.token, t.state, t.task, t.args, t.queue, t.priority, t.tenant, t.attempts, t.max_attempts,
       t.crashes, t.created_at, t.queued_at, t.due_at, t.claimed_at, t.finished_at, t.duration_seconds,
       t.worker, t.reason, t.held, t.cancel_requested, t.queue_paused, t.unfinished_parents,
       t.timeout_seconds, t.retry, t.metadata, t.unique_scope, t.unique_key, t.unique_until, t.result,
       t.error, t.gate, t.gate_key, t.needs, t.notes, t.start_by, t.finish_by
from json_each(:ids) as e cross join tenure.live as t on t.id = e.value
where (:tenant is null or t.tenant in (:tenant, ''))
  and (true /*filter*/)
  and (:states is null or instr(' ' || :states || ' ', ' ' || t.state || ' ') > 0)
order by e.key limit :most;

-- name: find_finished
select t.id, t.token, t.state, t.task, t.args, t.queue, t.priority, t.tenant, t.attempts, t.max_attempts,
       t.crashes, t.created_at, t.created_at as queued_at, null as due_at, t.claimed_at, t.finished_at,
       t.duration_seconds, t.worker, t.reason, 0 as held, 0 as cancel_requested, 0 as queue_paused,
       0 as unfinished_parents, t.timeout_seconds, t.retry, t.metadata, t.unique_scope, t.unique_key,
       t.unique_until, t.result, t.error, t.gate, t.gate_key, t.needs,
       case when t.features & {NOTES}
            then (select n.notes from tenure.note n where n.job_id = t.id) end as notes, t.start_by, t.finish_by
from tenure.history as t
where t.id >= :low and t.id <= :high
  and (:tenant is null or t.tenant in (:tenant, ''))
  and (true /*filter*/)
  and (:states is null or instr(' ' || :states || ' ', ' ' || t.state || ' ') > 0)
order by t.id desc /*way*/ limit :most;

-- name: find_finished_among
-- The same for ids that do not follow each other. The first of them come first.
select t.id, t.token, t.state, t.task, t.args, t.queue, t.priority, t.tenant, t.attempts, t.max_attempts,
       t.crashes, t.created_at, t.created_at as queued_at, null as due_at, t.claimed_at, t.finished_at,
       t.duration_seconds, t.worker, t.reason, 0 as held, 0 as cancel_requested, 0 as queue_paused,
       0 as unfinished_parents, t.timeout_seconds, t.retry, t.metadata, t.unique_scope, t.unique_key,
       t.unique_until, t.result, t.error, t.gate, t.gate_key, t.needs,
       case when t.features & {NOTES}
            then (select n.notes from tenure.note n where n.job_id = t.id) end as notes, t.start_by, t.finish_by
from json_each(:ids) as e cross join tenure.history as t on t.id = e.value
where (:tenant is null or t.tenant in (:tenant, ''))
  and (true /*filter*/)
  and (:states is null or instr(' ' || :states || ' ', ' ' || t.state || ' ') > 0)
order by e.key limit :most;
