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
where state = :state::tenure.state and state <> 'succeeded' and id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_keyed_live
select id from tenure.job
where unique_key = :key and unique_key is not null and id < /*past*/ :past
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
select id from (select (value #>> '{}')::bigint as id from json_array_elements(:ids::json)) as i
where id < /*past*/ :past
order by id desc /*way*/ limit :scan;

-- name: walk_by_finish
-- No index has all finished jobs in this order: BRIN finds the blocks of a stretch of time, and
-- `since` keeps it short.
select finished_at as at, id from tenure.history
where finished_at <= :at::timestamptz and finished_at >= :since::timestamptz
  and (finished_at, id) < (:at::timestamptz, :past)
order by finished_at desc, id desc limit :scan;

-- name: walk_unsuccessful_by_finish
select finished_at as at, id from tenure.history
where state <> 'succeeded' and finished_at <= :at::timestamptz and finished_at >= :since::timestamptz
  and (finished_at, id) < (:at::timestamptz, :past)
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
select t.id, t.token, t.state::text as state, t.task, t.args::text as args, t.queue, t.priority, t.tenant,
       t.attempts, t.max_attempts, t.crashes, t.created_at, t.queued_at, t.due_at, t.claimed_at,
       t.finished_at, t.duration_seconds, t.worker, t.reason, t.held, t.cancel_requested,
       t.queue_paused, t.unfinished_parents, t.timeout_seconds, t.retry::text as retry,
       t.metadata::text as metadata, t.unique_scope, t.unique_key, t.unique_until,
       t.result::text as result, t.error::text as error, t.gate, t.gate_key, t.needs,
       t.notes::text as notes, t.start_by, t.finish_by
from tenure.live as t
where t.id >= :low and t.id <= :high
  and (:tenant::text is null or t.tenant in (:tenant::text, ''))
  and (true /*filter*/)
  and (:states::text is null or t.state::text = any (string_to_array(:states::text, ' ')))
order by t.id desc /*way*/ limit :most;

-- name: find_live_among
-- The same for ids that do not follow each other. The first of them come first.
select t.id, t.token, t.state::text as state, t.task, t.args::text as args, t.queue, t.priority, t.tenant,
       t.attempts, t.max_attempts, t.crashes, t.created_at, t.queued_at, t.due_at, t.claimed_at,
       t.finished_at, t.duration_seconds, t.worker, t.reason, t.held, t.cancel_requested,
       t.queue_paused, t.unfinished_parents, t.timeout_seconds, t.retry::text as retry,
       t.metadata::text as metadata, t.unique_scope, t.unique_key, t.unique_until,
       t.result::text as result, t.error::text as error, t.gate, t.gate_key, t.needs,
       t.notes::text as notes, t.start_by, t.finish_by
from json_array_elements_text(:ids::json) with ordinality as e (id, n),
     lateral (select * from tenure.live as j where j.id = e.id::bigint offset 0) as t
where (:tenant::text is null or t.tenant in (:tenant::text, ''))
  and (true /*filter*/)
  and (:states::text is null or t.state::text = any (string_to_array(:states::text, ' ')))
order by e.n limit :most;

-- name: find_finished
select t.id, t.token, t.state::text as state, t.task, t.args::text as args, t.queue, t.priority, t.tenant,
       t.attempts, t.max_attempts, t.crashes, t.created_at, t.created_at as queued_at,
       null::timestamptz as due_at, t.claimed_at, t.finished_at, t.duration_seconds, t.worker, t.reason,
       false as held, false as cancel_requested, false as queue_paused, 0 as unfinished_parents,
       t.timeout_seconds, t.retry::text as retry, t.metadata::text as metadata, t.unique_scope,
       t.unique_key, t.unique_until, t.result::text as result, t.error::text as error, t.gate,
       t.gate_key, t.needs,
       case when t.features & {NOTES} <> 0
            then (select n.notes::text from tenure.note n where n.job_id = t.id) end as notes, t.start_by, t.finish_by
from tenure.history as t
where t.id >= :low and t.id <= :high
  and (:tenant::text is null or t.tenant in (:tenant::text, ''))
  and (true /*filter*/)
  and (:states::text is null or t.state::text = any (string_to_array(:states::text, ' ')))
order by t.id desc /*way*/ limit :most;

-- name: find_finished_among
-- The same for ids that do not follow each other. The first of them come first.
select t.id, t.token, t.state::text as state, t.task, t.args::text as args, t.queue, t.priority, t.tenant,
       t.attempts, t.max_attempts, t.crashes, t.created_at, t.created_at as queued_at,
       null::timestamptz as due_at, t.claimed_at, t.finished_at, t.duration_seconds, t.worker, t.reason,
       false as held, false as cancel_requested, false as queue_paused, 0 as unfinished_parents,
       t.timeout_seconds, t.retry::text as retry, t.metadata::text as metadata, t.unique_scope,
       t.unique_key, t.unique_until, t.result::text as result, t.error::text as error, t.gate,
       t.gate_key, t.needs,
       case when t.features & {NOTES} <> 0
            then (select n.notes::text from tenure.note n where n.job_id = t.id) end as notes, t.start_by, t.finish_by
from json_array_elements_text(:ids::json) with ordinality as e (id, n),
     lateral (select * from tenure.history as j where j.id = e.id::bigint offset 0) as t
where (:tenant::text is null or t.tenant in (:tenant::text, ''))
  and (true /*filter*/)
  and (:states::text is null or t.state::text = any (string_to_array(:states::text, ' ')))
order by e.n limit :most;
