-- name: begin_call
-- enqueue, succeed and the other settlements in the caller's transaction: what one call writes.
savepoint tenure_call;

-- name: undo_call
-- The call was refused: nothing of it stays. The savepoint is still there.
rollback to savepoint tenure_call;

-- name: keep_call
-- The call is a part of the caller's transaction from here on.
release savepoint tenure_call;

-- name: draw_ids
-- enqueue: never cached, because a rollback would issue a block twice.
update tenure.counter set job_id = job_id + :count returning job_id;

-- name: draw_positions
-- enqueue: never cached either.
update tenure.counter set position = position + :count returning position;

-- name: insert_job
-- enqueue: one job; values are bound in this order.
insert into tenure.job (
    id, position, created_at, due_at, timeout_seconds, priority, max_attempts, features, tenant, queue,
    task, args, retry, metadata, parked, unique_scope, unique_key, unique_until, unique_seconds, needs,
    size_kb, keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_plain_job
-- enqueue: one job that uses no feature; values are bound in this order.
insert into tenure.job (
    id, position, created_at, priority, max_attempts, tenant, queue, task, args, needs, size_kb)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: set_gate_of
-- enqueue: the gate of a job just inserted, and its position there; values are bound in this order.
update tenure.job set gate = ?, gate_key = ?, position = ? where id = ?;

-- name: insert_tickets
-- enqueue: the tickets of the jobs just inserted. Ids between the first and the last are theirs
-- alone: they were drawn in this transaction, and so grow with the rows.
insert into tenure.ready (queue, needs, priority, position, job_id, token, size_kb)
select queue, needs, priority, position, id, 1, size_kb from tenure.job
where id between :first and :last and position is not null;

-- name: insert_due
-- enqueue: the tickets of those among them that are due later.
insert into tenure.due (due_at, job_id, token)
select due_at, id, 1 from tenure.job
where id between :first and :last and due_at is not null and parked is null;

-- name: stored_jobs
select j.id, j.task, j.args, j.queue, j.tenant from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
union all
select h.id, h.task, h.args, h.queue, h.tenant from json_each(:ids) as b cross join tenure.history as h on h.id = b.value;

-- name: finished_among
select h.id from json_each(:ids) as b cross join tenure.history as h on h.id = b.value;

-- name: take_keys
-- enqueue, replay: the unique index decides.
insert into tenure.unique_key (tenant, scope, key, job_id, until, fingerprint, expires_at)
select b.value ->> 'tenant', b.value ->> 'scope', b.value ->> 'key', b.value ->> 'job_id',
       b.value ->> 'until', b.value ->> 'fingerprint',
       :now + cast(1e6 * (b.value ->> 'seconds') as integer)
from json_each(:rows) as b
where true
on conflict (tenant, scope, key) do nothing
returning job_id;

-- name: key_holders
select k.tenant, k.scope, k.key, k.job_id, k.fingerprint,
       k.expires_at is not null and k.expires_at <= :now
       and not exists (select 1 from tenure.job j where j.id = k.job_id) as over, k.expires_at, k.outcome,
       not exists (select 1 from tenure.job j where j.id = k.job_id)
       and not exists (select 1 from tenure.history h where h.id = k.job_id) as gone
from json_each(:rows) as b
     cross join tenure.unique_key as k on k.tenant = b.value ->> 'tenant' and k.scope = b.value ->> 'scope'
                               and k.key = b.value ->> 'key';

-- name: drop_key
-- enqueue, replay: a key whose period is over, or whose job has failed.
delete from tenure.unique_key
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id
  and expires_at is :expires_at and outcome is :outcome;

-- name: hold_key
-- replay: a key that was ours all the time.
update tenure.unique_key set outcome = null, expires_at = :now + cast(1e6 * :seconds as integer)
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id
returning job_id;

-- name: free_keys
-- delete: the keys of jobs that are deleted, where they are still theirs.
delete from tenure.unique_key
where (tenant, scope, key, job_id) in (
    select b.value ->> 'tenant', b.value ->> 'scope', b.value ->> 'key', b.value ->> 'job_id'
    from json_each(:rows) as b);

-- name: free_key
-- delete of a key by its name, whose job has ended.
delete from tenure.unique_key as k
where tenant = :tenant and scope = :scope and key = :key
  and not exists (select 1 from tenure.job j where j.id = k.job_id)
returning job_id;

-- name: find_key
select k.job_id,
       k.expires_at is not null and k.expires_at <= :now
       and not exists (select 1 from tenure.job j where j.id = k.job_id) as over, k.outcome
from tenure.unique_key k
where k.tenant = :tenant and k.scope = :scope and k.key = :key;

-- name: waiting_job
-- enqueue with Replace: what a job has been enqueued with.
select task, args from tenure.job where id = :id;

-- name: replace_job
-- enqueue with Replace: a job whose ticket was taken. Returns when it is due.
select case when :postpone then
           min(coalesce(:due_at, :now + cast(1e6 * :delay as integer), :now),
               coalesce(created_at + cast(1e6 * :at_most as integer), 9e18))
       else due_at end as due
from tenure.job where id = :id;
update tenure.job as job
set args = case when :change_args then :args else args end,
    metadata = case when :change_args then :metadata else metadata end,
    size_kb = case when :change_args then :size_kb else size_kb end,
    gate_key = case when :change_args and gate = :gate then :gate_key else gate_key end,
    due_at = case when parked is null then due_at else nullif(max(coalesce(new.due, 0), :now), :now) end,
    start_by = case when :postpone
                    then coalesce(:start_by, max(new.due, :now) + cast(1e6 * :start_within as integer))
                    else start_by end,
    finish_by = case when :postpone
                     then coalesce(:finish_by, max(new.due, :now) + cast(1e6 * :finish_within as integer))
                     else finish_by end
from (select case when :postpone then
                 min(coalesce(:due_at, :now + cast(1e6 * :delay as integer), :now),
                     coalesce(created_at + cast(1e6 * :at_most as integer), 9e18))
             else due_at end as due
      from tenure.job where id = :id) as new
where job.id = :id;

-- name: replaced_by_request
-- enqueue with Replace, repeated: the jobs that the first try has changed.
select j.id, j.task, j.args, j.tenant, j.unique_scope, j.unique_key
from tenure.event e cross join tenure.job as j on j.id = e.job_id
where e.request_id = :request_id and e.kind = 'replaced'
union all
select h.id, h.task, h.args, h.tenant, h.unique_scope, h.unique_key
from tenure.event e cross join tenure.history as h on h.id = e.job_id
where e.request_id = :request_id and e.kind = 'replaced';

-- name: mark_key
-- enqueue with Replace: the key tells what its job was enqueued with.
update tenure.unique_key set fingerprint = :fingerprint
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id;

-- name: lock_finished_parents
-- enqueue: the single writer needs no lock.
select h.id from json_each(:rows) as b
     cross join tenure.history as h on h.id = b.value ->> 'id' and h.tenant = b.value ->> 'tenant';

-- name: add_parents
-- enqueue: the edges of jobs that wait for others.
insert into tenure.parent (job_id, parent_id, parent_state)
select b.value ->> 'job_id', b.value ->> 'parent_id',
       (select h.state from tenure.history h where h.id = b.value ->> 'parent_id')
from json_each(:rows) as b;

-- name: mark_parents
-- enqueue: the parents learn that they have children.
update tenure.job as job set features = features | {CHILDREN}
from json_each(:rows) as b
where job.id = b.value ->> 'id' and job.tenant = b.value ->> 'tenant'
returning id;
