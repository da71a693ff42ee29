-- name: add_workflow
-- enqueue: the row of a workflow. Zero rows mean that another one holds its key.
insert into tenure.workflow (id, created_at, tenant, name, key, on_failure, finaliser_id)
values (:id, coalesce(:now::timestamptz, clock_timestamp()), :tenant, :name, :key::text, :on_failure,
        :finaliser::bigint)
on conflict (tenant, name, key) where key is not null and ended_at is null do nothing
returning id;

-- name: keyed_workflow
-- enqueue, replay: who holds this key?
select id from tenure.workflow
where tenant = :tenant and name = :name and key = :key and ended_at is null;

-- name: add_ends
-- enqueue, replay: what the end of the workflow, or its finaliser, has to wait for. An edge that has
-- seen an end before waits again.
insert into tenure.parent as p (job_id, parent_id)
select :child, b.value::text::bigint from json_array_elements(:ids::json) as b
on conflict (job_id, parent_id) do update set parent_state = null;

-- name: workflows_of
select distinct workflow_id from tenure.node
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: lock_workflows
-- succeed, fail, sweep, cancel: workflows after jobs and leases, in the order of their ids. Whether
-- they are over is decided by a later statement.
select w.id, w.stopping from tenure.workflow w
where w.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by w.id
for update;

-- name: mark_workflows
-- fail, cancel, sweep: a node did not succeed. Returns the workflows whose other nodes must be
-- stopped. The reason of a workflow says that it was stopped, until a replay opens it again.
update tenure.workflow w
set failed = w.failed or b.failed, cancelled = w.cancelled or b.cancelled,
    stopping = w.stopping or (b.failed and w.on_failure = 'stop'
                              and w.reason is distinct from :stopped::text)
from json_to_recordset(:rows::json) as b (id bigint, failed boolean, cancelled boolean)
where w.id = any (array[b.id])
  and (b.cancelled and not w.cancelled
       or b.failed and (not w.failed
                        or w.on_failure = 'stop' and w.reason is distinct from :stopped::text))
returning w.id, w.stopping;

-- name: end_workflows
-- succeed, fail, skip, abort, cancel, sweep, free: the end, exactly once, of workflows that were
-- locked by an earlier statement.
update tenure.workflow w
set ended_at = coalesce(:now::timestamptz, clock_timestamp()), stopping = false,
    outcome = case when w.failed then 'failed' when w.cancelled then 'cancelled' else 'succeeded' end
where w.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and w.ended_at is null
  and not exists (select from tenure.parent p
                  where p.job_id = - w.id and p.parent_state is null offset 0)
returning w.id;

-- name: begin_work
-- cancel, pause, resume, replay and additions: one of them at a time for each workflow. What settles
-- its nodes does not take this lock.
select pg_advisory_xact_lock(hashtextextended('tenure.workflow'::regclass::oid::text, :id));

-- name: workflow_row
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id = :id and (:tenant::text is null or w.tenant = :tenant::text);

-- name: workflow_seen
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id = :id and (:tenant::text is null or w.tenant in (:tenant::text, ''));

-- name: list_workflows
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id < :below and (:tenant::text is null or w.tenant in (:tenant::text, ''))
  and (:name::text is null or w.name = :name::text)
  and (not :open::boolean or w.ended_at is null)
order by w.id desc limit :most;

-- name: count_nodes
select s.state, count(*) as jobs
from tenure.node n, lateral (
    select state::text as state from tenure.live where id = n.job_id
    union all
    select state::text as state from tenure.history where id = n.job_id) as s
where n.workflow_id = :id
group by s.state;

-- name: list_nodes
select n.job_id, n.name, s.task, s.state, n.rule, s.reason, n.added_by
from (select * from tenure.node where workflow_id = :id and job_id > :after
      order by job_id limit :most) as n,
     lateral (select task, state::text as state, reason from tenure.live where id = n.job_id
              union all
              select task, state::text, reason from tenure.history where id = n.job_id) as s
order by n.job_id;

-- name: unfinished_parents
select parent_id from tenure.edge
where job_id = any (array[:id::bigint]) and parent_state is null;

-- name: node_edges
select job_id, parent_id from tenure.parent
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by job_id, parent_id;

-- name: named_nodes
-- Nodes by name, with where they stand and what they are. `waits`: nothing has let it go yet.
select n.name, n.job_id, n.rule, coalesce(j.parked = 'parents', false) as waits,
       coalesce(j.task, h.task) as task, coalesce(j.args, h.args)::text as args, n.added_by
from json_array_elements_text(:names::json) as b (name),
     lateral (select * from tenure.node where workflow_id = :id and name = b.name offset 0) as n
     left join lateral (select parked, task, args from tenure.job
                        where id = n.job_id offset 0) as j on true
     left join lateral (select task, args from tenure.history
                        where id = n.job_id and j.task is null limit 1) as h on true
order by n.job_id;

-- name: node_of
select n.workflow_id, n.name, w.tenant, w.ended_at is null as is_open
from tenure.node n join tenure.workflow w on w.id = n.workflow_id
where n.job_id = :id;

-- name: nodes_above
-- Whom these nodes wait for, near and far: pairs of a node and one above it.
with recursive up as (
    select (value #>> '{}')::bigint as low, (value #>> '{}')::bigint as high
    from json_array_elements(:ids::json)
    union
    select up.low, p.parent_id
    from up, lateral (select parent_id from tenure.edge
                      where job_id = any (array[up.high]) and parent_state is null offset 0) as p
)
select low as node, high as ancestor from up;

-- name: lock_waiting
-- enqueue, replay, cancel: the finaliser, if it still waits.
select id from tenure.job where id = :id and parked = 'parents' for update;

-- name: lock_jobs
-- enqueue: locked in id order, wherever they stand. Whether they still wait is read afterwards.
select j.id from tenure.job j
where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by j.id
for update;

-- name: add_edges
-- enqueue: edges to nodes that are there already. A parent that has ended counts at once.
insert into tenure.parent (job_id, parent_id, parent_state)
select b.job_id, b.parent_id,
       (select state from tenure.history h where h.id = b.parent_id limit 1)
from json_to_recordset(:rows::json) as b (job_id bigint, parent_id bigint)
on conflict (job_id, parent_id) do nothing;

-- name: lock_nodes
-- cancel, pause, resume: the live jobs of a workflow, locked in id order, a page at a time.
select j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.held, j.cancel_requested,
       j.gate, j.gate_key, n.rule, n.paused
from tenure.node n,
     lateral (select * from tenure.job where id = n.job_id for update) as j
where n.workflow_id = :id and n.job_id > :after
order by n.job_id limit :most;

-- name: take_due_tickets
-- cancel, pause: matching the tokens.
delete from tenure.due d
using json_to_recordset(:rows::json) as b (id bigint, token bigint, due_at timestamptz)
where d.due_at = any (array[b.due_at]) and d.job_id = b.id and d.token = b.token
returning d.job_id;

-- name: take_ready_tickets
-- cancel, pause: in a later statement than the one on `due`. Waits for claims in flight.
delete from tenure.ready r
using json_to_recordset(:rows::json) as b (
    id bigint, token bigint, queue text, needs smallint, priority smallint, position bigint)
where r.queue = any (array[b.queue]) and r.needs = b.needs and r.priority = b.priority and r.position = b.position
  and r.job_id = b.id and r.token = b.token
returning r.job_id;

-- name: take_gated_tickets
-- cancel, pause: the same for jobs at gates.
delete from tenure.gated g
using json_to_recordset(:rows::json) as b (
    id bigint, token bigint, queue text, priority smallint, position bigint, gate text, gate_key text)
where g.queue = any (array[b.queue]) and g.gate = b.gate and g.key = b.gate_key
  and g.priority = b.priority and g.position = b.position and g.job_id = b.id and g.token = b.token
returning g.job_id;

-- name: request_cancels
-- cancel: running jobs are asked to stop.
update tenure.job set cancel_requested = true, reason = :reason
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and not cancel_requested
returning id, token;

-- name: hold_nodes
-- pause: held by their workflow; parked when their tickets were taken.
with noted as (
    update tenure.node set paused = true
    where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
)
update tenure.job
set held = true, reason = :reason,
    parked = case when id = any (array(select (value #>> '{}')::bigint
                                       from json_array_elements(:taken::json)))
                  then 'held' else parked end
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: unhold_nodes
-- resume: what the pause held, and nothing else.
with noted as (
    update tenure.node set paused = false
    where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
)
update tenure.job set held = false, reason = null
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: cancel_workflow
-- cancel: an operator cancelled it; or a stop after a failed node is done.
update tenure.workflow
set cancelled_at = case when :asked::boolean
                        then coalesce(cancelled_at, :now::timestamptz, clock_timestamp())
                        else cancelled_at end,
    stopping = false, reason = coalesce(:reason, reason)
where id = :id;

-- name: pause_workflow
-- pause, resume: nodes that are added meanwhile are held, too. That it was stopped is not forgotten.
update tenure.workflow
set paused_at = case when :paused::boolean then coalesce(:now::timestamptz, clock_timestamp()) end,
    reason = case when reason = :stopped then reason else :reason end
where id = :id;

-- name: stopping_workflows
select id from tenure.workflow where stopping order by id limit :most;

-- name: nodes_in_state
select n.job_id
from tenure.node n, lateral (select state from tenure.history where id = n.job_id limit 1) as h
where n.workflow_id = :id and h.state = :state::tenure.state
order by n.job_id;

-- name: nodes_to_reopen
-- replay: these nodes and, from each, what was skipped or cancelled below it. (No edge says
-- 'waiting': it is asked so that no index has all that is needed; on empty tables a wrong one would
-- be taken for ever.)
with recursive back as (
    select (value #>> '{}')::bigint as id from json_array_elements(:ids::json)
    union
    select n.job_id
    from back,
         lateral (select job_id from tenure.parent
                  where parent_id = any (array[back.id])
                    and parent_state is distinct from 'waiting' offset 0) as p,
         lateral (select job_id from tenure.node
                  where job_id = any (array[p.job_id]) and workflow_id = :id offset 0) as n,
         lateral (select state from tenure.history where id = n.job_id limit 1) as h
    where h.state in ('skipped', 'cancelled')
)
select id from back order by id;

-- name: finished_nodes
-- replay: lock the rows of history, in id order. The same columns as `finished_job`.
select id, token, state::text as state, tenant, task, args::text as args, unique_scope, unique_key, unique_until,
       unique_seconds, features, worker, finished_at, reason, claimed_at, attempts, duration_seconds,
       case when json_typeof(error) = 'object' then (error::jsonb - 'traceback' - 'output')::text
            else error::text end as error
from tenure.history
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by id
for update;

-- name: reopen_nodes
-- replay: they wait again, under a token that no lease of the past has. What a pause of the past has
-- held is held no more.
with noted as (
    update tenure.node set paused = false
    where paused
      and job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
), old as (
    delete from tenure.history
    where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
    returning *
)
insert into tenure.job (
    id, token, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
    max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata, error,
    reason, parked, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
    keep_other_seconds, finish_by)
select id, token + 1, created_at, coalesce(:now::timestamptz, clock_timestamp()), timeout_seconds,
       unique_seconds, priority, 0, max_attempts, 0, features | {CHILDREN}, needs,
       least((octet_length(args::text) + coalesce(octet_length(metadata::text), 0)
              + coalesce(octet_length(retry::text), 0)) / 1024, 32767),
       tenant, queue, task, args, retry,
       metadata, error, 'replayed', 'parents', unique_scope, unique_key, unique_until, gate, gate_key,
       keep_succeeded_seconds, keep_other_seconds, finish_by
from old;

-- name: wait_again
-- replay: a finaliser whose ticket was taken.
update tenure.job set parked = 'parents', position = null, due_at = null where id = :id;

-- name: neighbours
-- replay: the parents of these nodes, and the nodes of their workflow below them.
select p.parent_id as id, false as below
from json_array_elements(:ids::json) as b,
     lateral (select parent_id from tenure.parent
              where job_id = any (array[(b.value #>> '{}')::bigint]) offset 0) as p
union
select n.job_id, true
from json_array_elements(:ids::json) as b,
     lateral (select job_id from tenure.parent
              where parent_id = any (array[(b.value #>> '{}')::bigint])
                and parent_state is distinct from 'waiting' offset 0) as p,
     lateral (select job_id from tenure.node
              where job_id = any (array[p.job_id]) and workflow_id = :id offset 0) as n;

-- name: started_too_soon
-- replay: of these locked nodes, those that wait for no parent.
select j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.held, j.cancel_requested,
       j.gate, j.gate_key, j.features
from tenure.job j
where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and j.parked is distinct from 'parents'
order by j.id;

-- name: nodes_wait_again
-- replay: nodes whose tickets were taken, or that are held.
update tenure.job set parked = 'parents', position = null
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: await_parents
-- replay: edges to these nodes from parents that are live.
update tenure.parent p set parent_state = null
where p.job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and exists (select from tenure.job j where j.id = p.parent_id offset 0);

-- name: waiting_children
-- replay: locked in id order; they wait for the new ends of their parents.
select j.id
from (select distinct e.job_id
      from json_array_elements(:ids::json) as b,
           lateral (select job_id from tenure.parent
                    where parent_id = any (array[(b.value #>> '{}')::bigint])
                      and parent_state is distinct from 'waiting' offset 0) as e) as p,
     lateral (select id from tenure.job where id = p.job_id and parked = 'parents' for update) as j
order by j.id;

-- name: reopen_ends
-- replay: edges from these parents to children that wait.
update tenure.parent p set parent_state = null
where p.parent_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and p.job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:children::json)));

-- name: reopen_workflow
-- replay: it is open again, and as good as what is left of its nodes.
update tenure.workflow w
set ended_at = null, outcome = null, cancelled_at = null, stopping = false, reason = null,
    failed = exists (select from tenure.node n, tenure.history h
                     where n.workflow_id = w.id and h.id = n.job_id and h.state = 'failed'),
    cancelled = exists (select from tenure.node n, tenure.history h
                        where n.workflow_id = w.id and h.id = n.job_id and h.state = 'cancelled')
where w.id = :id;

-- name: parent_ends
-- The parents of a job, those that have ended with their results; a page of them.
select p.parent_id as id, n.name, h.task, p.parent_state::text as state, h.result::text as result
from (select * from tenure.edge where job_id = :id and parent_id > :after
      order by parent_id limit :most) as p
     left join tenure.node n on n.job_id = p.parent_id
     left join lateral (select task, result from tenure.history
                        where id = p.parent_id and p.parent_state is not null limit 1) as h on true
order by p.parent_id;

-- name: due_workflows
-- prune: workflows whose last job ended long ago, and of which no job is kept for longer.
select id from tenure.workflow w
where ended_at < greatest(:succeeded_before::timestamptz, :other_before::timestamptz)
  and ended_at < case when outcome = 'succeeded' then :succeeded_before::timestamptz
                      else :other_before::timestamptz end
  and not exists (
      select from tenure.node n,
           lateral (select from tenure.history h
                    where h.id = n.job_id and h.keep_until > coalesce(:now::timestamptz, clock_timestamp())
                    offset 0) as kept
      where n.workflow_id = w.id)
order by ended_at, id limit :most;

-- name: prune_nodes
-- prune: delete some jobs of a workflow that is due, and return them.
with part as materialized (
    select n.job_id from tenure.node n, tenure.workflow w
    where n.workflow_id = :id and w.id = n.workflow_id and w.ended_at is not null
    order by n.job_id limit :most
), gone as (
    delete from tenure.history where id = any (array(select job_id from part))
)
delete from tenure.node where job_id = any (array(select job_id from part)) returning job_id;

-- name: drop_workflow
-- prune: the row, once its jobs are gone, and the edges to its end.
with gone as (
    delete from tenure.workflow w
    where w.id = :id and w.ended_at is not null
      and not exists (select from tenure.node n where n.workflow_id = w.id offset 0)
    returning w.id
)
delete from tenure.parent where job_id = any (array(select - id from gone));

-- name: oldest_workflow
-- prune: days of history that are younger than this have jobs of workflows.
select min(created_at) as created_at from tenure.workflow;

-- name: write_edges
-- enqueue: which job of a workflow waits for which parent.
copy tenure.parent (job_id, parent_id, silent) from stdin;

-- name: write_node
-- enqueue, copy: which job is which node.
copy tenure.node (job_id, workflow_id, name, rule, added_by, paused) from stdin;

-- name: add_nodes
-- enqueue: the same through any connection.
insert into tenure.node (job_id, workflow_id, name, rule, added_by, paused)
select (b ->> 0)::bigint, (b ->> 1)::bigint, b ->> 2, b ->> 3, (b ->> 4)::bigint, (b ->> 5)::boolean
from json_array_elements(:rows::json) as b;
