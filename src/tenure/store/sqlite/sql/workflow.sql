-- name: add_workflow
-- enqueue: the row of a workflow. Zero rows mean that another one holds its key.
insert into tenure.workflow (id, created_at, tenant, name, key, on_failure, finaliser_id)
values (:id, :now, :tenant, :name, :key, :on_failure, :finaliser)
on conflict (tenant, name, key) where key is not null and ended_at is null do nothing
returning id;

-- name: keyed_workflow
select id from tenure.workflow
where tenant = :tenant and name = :name and key = :key and ended_at is null;

-- name: add_ends
-- enqueue, replay: what the end of the workflow, or its finaliser, has to wait for.
insert into tenure.parent (job_id, parent_id)
select :child, b.value from json_each(:ids) as b
where true
on conflict (job_id, parent_id) do update set parent_state = null;

-- name: workflows_of
select distinct n.workflow_id from json_each(:ids) as b cross join tenure.node as n on n.job_id = b.value;

-- name: lock_workflows
-- The single writer needs no lock.
select w.id, w.stopping
from json_each(:ids) as b cross join tenure.workflow as w on w.id = b.value order by w.id;

-- name: mark_workflows
-- fail, cancel, sweep: a node did not succeed. Returns the workflows whose other nodes must be
-- stopped. The reason of a workflow says that it was stopped, until a replay opens it again.
update tenure.workflow as w
set failed = w.failed or b.value ->> 'failed', cancelled = w.cancelled or b.value ->> 'cancelled',
    stopping = w.stopping or (b.value ->> 'failed' and w.on_failure = 'stop'
                              and w.reason is not :stopped)
from json_each(:rows) as b
where w.id = b.value ->> 'id'
  and (b.value ->> 'cancelled' and not w.cancelled
       or b.value ->> 'failed' and (not w.failed
                                    or w.on_failure = 'stop' and w.reason is not :stopped))
returning id, stopping;

-- name: end_workflows
-- succeed, fail, skip, abort, cancel, sweep, free: the end, exactly once.
update tenure.workflow as w
set ended_at = :now, stopping = 0,
    outcome = case when failed then 'failed' when cancelled then 'cancelled' else 'succeeded' end
where id in (select value from json_each(:ids)) and ended_at is null
  and not exists (select 1 from tenure.parent p indexed by tenure.parent_unfinished
                  where p.job_id = - w.id and p.parent_state is null)
returning id;

-- name: begin_work
-- The single writer needs no lock.
select 1;

-- name: workflow_row
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id = :id and (:tenant is null or w.tenant = :tenant);

-- name: workflow_seen
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id = :id and (:tenant is null or w.tenant in (:tenant, ''));

-- name: list_workflows
select w.id, w.name, w.key, w.tenant, w.on_failure, w.created_at, w.ended_at, w.outcome, w.paused_at,
       w.cancelled_at, w.finaliser_id, w.reason, w.failed, w.stopping
from tenure.workflow w
where w.id < :below and (:tenant is null or w.tenant in (:tenant, ''))
  and (:name is null or w.name = :name)
  and (not :open or w.ended_at is null)
order by w.id desc limit :most;

-- name: count_nodes
select state, count(*) as jobs
from (select l.state from tenure.node n cross join tenure.live as l on l.id = n.job_id
      where n.workflow_id = :id
      union all
      select h.state from tenure.node n cross join tenure.history as h on h.id = n.job_id
      where n.workflow_id = :id)
group by state;

-- name: list_nodes
with part as materialized (
    select * from tenure.node where workflow_id = :id and job_id > :after
    order by job_id limit :most
)
select n.job_id, n.name, l.task, l.state, n.rule, l.reason, n.added_by
from part as n cross join tenure.live as l on l.id = n.job_id
union all
select n.job_id, n.name, h.task, h.state, n.rule, h.reason, n.added_by
from part as n cross join tenure.history as h on h.id = n.job_id
order by 1;

-- name: unfinished_parents
select parent_id from tenure.parent where job_id = :id and parent_state is null;

-- name: node_edges
select p.job_id, p.parent_id from json_each(:ids) as b cross join tenure.parent as p on p.job_id = b.value
order by p.job_id, p.parent_id;

-- name: named_nodes
select n.name, n.job_id, n.rule, coalesce(j.parked = 'parents', 0) as waits,
       coalesce(j.task, h.task) as task, coalesce(j.args, h.args) as args, n.added_by
from json_each(:names) as b
     cross join tenure.node as n on n.workflow_id = :id and n.name = b.value
     left join tenure.job as j on j.id = n.job_id
     left join tenure.history as h on h.id = n.job_id
order by n.job_id;

-- name: node_of
select n.workflow_id, n.name, w.tenant, w.ended_at is null as is_open
from tenure.node n cross join tenure.workflow as w on w.id = n.workflow_id
where n.job_id = :id;

-- name: nodes_above
with recursive up (low, high) as (
    select value, value from json_each(:ids)
    union
    select up.low, p.parent_id
    from up cross join tenure.parent as p on p.job_id = up.high and p.parent_state is null
)
select low as node, high as ancestor from up;

-- name: lock_waiting
select id from tenure.job where id = :id and parked = 'parents';

-- name: lock_jobs
select j.id from json_each(:ids) as b cross join tenure.job as j on j.id = b.value order by j.id;

-- name: add_edges
-- enqueue: edges to nodes that are there already. A parent that has ended counts at once.
insert into tenure.parent (job_id, parent_id, parent_state)
select b.value ->> 'job_id', b.value ->> 'parent_id',
       (select h.state from tenure.history h where h.id = b.value ->> 'parent_id')
from json_each(:rows) as b
where true
on conflict (job_id, parent_id) do nothing;

-- name: lock_nodes
select j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.held, j.cancel_requested,
       j.gate, j.gate_key, n.rule, n.paused
from tenure.node n cross join tenure.job as j on j.id = n.job_id
where n.workflow_id = :id and n.job_id > :after
order by n.job_id limit :most;

-- name: take_due_tickets
-- cancel, pause: matching the tokens.
delete from tenure.due
where (due_at, job_id, token) in (
    select b.value ->> 'due_at', b.value ->> 'id', b.value ->> 'token' from json_each(:rows) as b)
returning job_id;

-- name: take_ready_tickets
-- cancel, pause: matching the tokens.
delete from tenure.ready
where (queue, needs, priority, position, job_id, token) in (
    select b.value ->> 'queue', b.value ->> 'needs', b.value ->> 'priority', b.value ->> 'position', b.value ->> 'id',
           b.value ->> 'token'
    from json_each(:rows) as b)
returning job_id;

-- name: take_gated_tickets
-- cancel, pause: the same for jobs at gates.
delete from tenure.gated
where (queue, gate, key, priority, position, job_id, token) in (
    select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'gate_key', b.value ->> 'priority',
           b.value ->> 'position', b.value ->> 'id', b.value ->> 'token'
    from json_each(:rows) as b)
returning job_id;

-- name: request_cancels
-- cancel: running jobs are asked to stop.
update tenure.job set cancel_requested = 1, reason = :reason
where id in (select value from json_each(:ids)) and not cancel_requested
returning id, token;

-- name: hold_nodes
-- pause: held by their workflow; parked when their tickets were taken.
update tenure.node set paused = 1 where job_id in (select value from json_each(:ids));
update tenure.job
set held = 1, reason = :reason,
    parked = case when id in (select value from json_each(:taken)) then 'held' else parked end
where id in (select value from json_each(:ids));

-- name: unhold_nodes
-- resume: what the pause held, and nothing else.
update tenure.node set paused = 0 where job_id in (select value from json_each(:ids));
update tenure.job set held = 0, reason = null where id in (select value from json_each(:ids));

-- name: cancel_workflow
-- cancel: an operator cancelled it; or a stop after a failed node is done.
update tenure.workflow
set cancelled_at = case when :asked then coalesce(cancelled_at, :now) else cancelled_at end,
    stopping = 0, reason = coalesce(:reason, reason)
where id = :id;

-- name: pause_workflow
-- pause, resume: nodes that are added meanwhile are held, too. That it was stopped is not forgotten.
update tenure.workflow
set paused_at = case when :paused then :now end,
    reason = case when reason = :stopped then reason else :reason end
where id = :id;

-- name: stopping_workflows
select id from tenure.workflow indexed by tenure.workflow_stopping
where stopping = 1 order by id limit :most;

-- name: nodes_in_state
select n.job_id from tenure.node n cross join tenure.history as h on h.id = n.job_id
where n.workflow_id = :id and h.state = :state
order by n.job_id;

-- name: nodes_to_reopen
-- replay: these nodes and, from each, what was skipped or cancelled below it.
with recursive back (id) as (
    select value from json_each(:ids)
    union
    select n.job_id
    from back cross join tenure.parent as p on p.parent_id = back.id
         cross join tenure.node as n on n.job_id = p.job_id
         cross join tenure.history as h on h.id = n.job_id
    where n.workflow_id = :id and (h.state = 'skipped' or h.state = 'cancelled')
)
select id from back order by id;

-- name: finished_nodes
select h.id, h.token, h.state, h.tenant, h.task, h.args, h.unique_scope, h.unique_key, h.unique_until,
       h.unique_seconds, h.features, h.worker, h.finished_at, h.reason, h.claimed_at,
       h.attempts, h.duration_seconds, json_remove(h.error, '$.traceback', '$.output') as error
from json_each(:ids) as b cross join tenure.history as h on h.id = b.value
order by h.id;

-- name: reopen_nodes
-- replay: they wait again, under a token that no lease of the past has. What a pause of the past has
-- held is held no more.
update tenure.node set paused = 0 where job_id in (select value from json_each(:ids)) and paused;
insert into tenure.job (
    id, token, created_at, queued_at, timeout_seconds, unique_seconds, priority, attempts,
    max_attempts, crashes, features, needs, size_kb, tenant, queue, task, args, retry, metadata, error,
    reason, parked, unique_scope, unique_key, unique_until, gate, gate_key, keep_succeeded_seconds,
    keep_other_seconds, finish_by)
select h.id, h.token + 1, h.created_at, :now, h.timeout_seconds, h.unique_seconds, h.priority, 0,
       h.max_attempts, 0, h.features | {CHILDREN}, h.needs,
       min((length(cast(h.args as blob)) + coalesce(length(cast(h.metadata as blob)), 0)
            + coalesce(length(cast(h.retry as blob)), 0)) / 1024, 32767),
       h.tenant, h.queue, h.task, h.args, h.retry, h.metadata,
       h.error, 'replayed', 'parents', h.unique_scope, h.unique_key, h.unique_until, h.gate, h.gate_key,
       h.keep_succeeded_seconds, h.keep_other_seconds, h.finish_by
from json_each(:ids) as b cross join tenure.history as h on h.id = b.value;
delete from tenure.history where id in (select value from json_each(:ids));

-- name: wait_again
-- replay: a finaliser whose ticket was taken.
update tenure.job set parked = 'parents', position = null, due_at = null where id = :id;

-- name: neighbours
-- replay: the parents of these nodes, and the nodes of their workflow below them.
select p.parent_id as id, 0 as below
from json_each(:ids) as b cross join tenure.parent as p on p.job_id = b.value
union
select n.job_id, 1
from json_each(:ids) as b cross join tenure.parent as p on p.parent_id = b.value
     cross join tenure.node as n on n.job_id = p.job_id
where n.workflow_id = :id;

-- name: started_too_soon
-- replay: of these locked nodes, those that wait for no parent.
select j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.held, j.cancel_requested,
       j.gate, j.gate_key, j.features
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
where j.parked is not 'parents' order by j.id;

-- name: nodes_wait_again
-- replay: nodes whose tickets were taken, or that are held.
update tenure.job set parked = 'parents', position = null
where id in (select value from json_each(:ids));

-- name: await_parents
-- replay: edges to these nodes from parents that are live.
update tenure.parent set parent_state = null
where job_id in (select value from json_each(:ids))
  and exists (select 1 from tenure.job as j where j.id = parent_id);

-- name: waiting_children
select distinct j.id
from json_each(:ids) as b cross join tenure.parent as p on p.parent_id = b.value
     cross join tenure.job as j on j.id = p.job_id
where j.parked = 'parents'
order by j.id;

-- name: reopen_ends
-- replay: edges from these parents to children that wait.
update tenure.parent set parent_state = null
where parent_id in (select value from json_each(:ids))
  and job_id in (select value from json_each(:children));

-- name: reopen_workflow
-- replay: it is open again, and as good as what is left of its nodes.
update tenure.workflow as w
set ended_at = null, outcome = null, cancelled_at = null, stopping = 0, reason = null,
    failed = exists (select 1 from tenure.node n cross join tenure.history as h on h.id = n.job_id
                     where n.workflow_id = w.id and h.state = 'failed'),
    cancelled = exists (select 1 from tenure.node n cross join tenure.history as h on h.id = n.job_id
                        where n.workflow_id = w.id and h.state = 'cancelled')
where id = :id;

-- name: parent_ends
select p.parent_id as id, n.name, h.task, p.parent_state as state, h.result
from (select * from tenure.parent where job_id = :id and parent_id > :after
      order by parent_id limit :most) as p
     left join tenure.node as n on n.job_id = p.parent_id
     left join tenure.history as h on h.id = p.parent_id and p.parent_state is not null
order by p.parent_id;

-- name: due_workflows
select id from tenure.workflow as w indexed by tenure.workflow_ended_at
where ended_at is not null and ended_at < max(:succeeded_before, :other_before)
  and ended_at < case when outcome = 'succeeded' then :succeeded_before else :other_before end
  and not exists (select 1 from tenure.node n cross join tenure.history as h on h.id = n.job_id
                  where n.workflow_id = w.id and h.keep_until > :now)
order by ended_at, id limit :most;

-- name: prune_nodes
-- prune: delete some jobs of a workflow that is due, and return them.
delete from tenure.history
where id in (select n.job_id from tenure.node n cross join tenure.workflow as w on w.id = n.workflow_id
             where n.workflow_id = :id and w.ended_at is not null order by n.job_id limit :most);
delete from tenure.node
where job_id in (select n.job_id from tenure.node n cross join tenure.workflow as w on w.id = n.workflow_id
                 where n.workflow_id = :id and w.ended_at is not null order by n.job_id limit :most)
returning job_id;

-- name: drop_workflow
-- prune: the row, once its jobs are gone, and the edges to its end.
delete from tenure.workflow as w
where id = :id and ended_at is not null
  and not exists (select 1 from tenure.node n where n.workflow_id = w.id);
delete from tenure.parent
where job_id = - :id and not exists (select 1 from tenure.workflow w where w.id = :id);

-- name: oldest_workflow
select min(created_at) as created_at from tenure.workflow;

-- name: write_node
-- enqueue, copy: which job is which node; values are bound in this order.
insert into tenure.node (job_id, workflow_id, name, rule, added_by, paused) values (?, ?, ?, ?, ?, ?);

-- name: add_nodes
-- enqueue: the same from a batch.
insert into tenure.node (job_id, workflow_id, name, rule, added_by, paused)
select b.value ->> 0, b.value ->> 1, b.value ->> 2, b.value ->> 3, b.value ->> 4, b.value ->> 5
from json_each(:rows) as b;
