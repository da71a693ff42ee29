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
-- Ids are known to the client before the insert. A block of more than 32 values always writes its
-- own WAL record, so the draw's commit is flushed and no crash can hand the same ids out again.
select nextval('tenure.job_id') from generate_series(1, :count);

-- name: insert_jobs
-- enqueue: the job and its ticket. The statement locks `ready` before it draws a position, because a
-- statement locks its target tables before it runs: the floors of the claimers rely on this. Returns
-- the first position in each lane for `notify`, and 0 for a ticket that will be due within a moment.
-- Tickets of gates: see `add_gate_tickets`.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
batch as materialized (
    select b.*, nullif(greatest(coalesce(b.due_at, t.now + b.delay * interval '1 second'), t.now), t.now) as due
    from t, json_to_recordset(:rows::json) as b (
        id bigint, task text, args json, queue text, priority smallint, delay double precision,
        due_at timestamptz, tenant text, max_attempts smallint, timeout double precision, retry json,
        metadata json, features smallint, parked text, unique_scope text, unique_key text,
        unique_until text, unique_seconds double precision, gate text, gate_key text, needs smallint,
        size_kb smallint, keep_succeeded double precision, keep_other double precision,
        start_by timestamptz, start_within double precision, finish_by timestamptz,
        finish_within double precision)
), new as materialized (
    select batch.*, case when due is null and parked is null then 1000 * nextval('tenure.position') end as position
    from batch
), inserted as (
    insert into tenure.job (
        id, position, created_at, due_at, timeout_seconds, unique_seconds, priority, max_attempts,
        features, tenant, queue, task, args, retry, metadata, parked, unique_scope, unique_key,
        unique_until, gate, gate_key, needs, size_kb, keep_succeeded_seconds, keep_other_seconds,
        start_by, finish_by)
    select id, position, t.now, due, timeout, unique_seconds, coalesce(priority, 0),
           coalesce(max_attempts, 5), coalesce(features, 0), coalesce(tenant, ''),
           coalesce(queue, 'default'), task, coalesce(args, 'null'), retry, metadata, parked,
           unique_scope, unique_key, unique_until, gate, gate_key, coalesce(needs, 0),
           coalesce(size_kb, 0), keep_succeeded, keep_other,
           coalesce(start_by, coalesce(due, t.now) + start_within * interval '1 second'),
           coalesce(finish_by, coalesce(due, t.now) + finish_within * interval '1 second')
    from new, t
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue)
    select position, id, 1, coalesce(priority, 0), coalesce(needs, 0), coalesce(size_kb, 0),
           coalesce(queue, 'default')
    from new where position is not null and gate is null
), scheduled as (
    insert into tenure.due (due_at, job_id, token)
    select due, id, 1 from new where due is not null and parked is null
)
select coalesce(queue, 'default') as queue, coalesce(needs, 0::smallint) as needs,
       coalesce(priority, 0::smallint) as priority, min(position) as position, position is null as due_soon
from new, t
where position is not null or (parked is null and due <= t.now + interval '1.5 seconds')
group by 1, 2, 3, 5;

-- name: draw_positions
-- enqueue in bulk: the first of a thousand positions. The empty insert takes the lock on `ready` before
-- the draw, because the floors of the claimers rely on this order.
with locked as (
    insert into tenure.ready (position, job_id, token, priority, queue)
    select 0, 0, 0, 0, '' where false
)
select 1000 * nextval('tenure.position') as first,
       coalesce(:now::timestamptz, clock_timestamp()) as now;

-- name: copy_jobs
-- enqueue: many jobs that are ready at once.
copy tenure.job (
    id, position, created_at, priority, max_attempts, features, needs, tenant, queue, task, size_kb,
    args, retry, metadata, timeout_seconds, unique_seconds, unique_scope, unique_key, unique_until,
    keep_succeeded_seconds, keep_other_seconds)
from stdin;

-- name: copy_tickets
-- enqueue: and their tickets.
copy tenure.ready (position, job_id, token, priority, needs, size_kb, queue) from stdin;

-- name: stored_jobs
-- Where did an enqueue whose COMMIT got no answer leave its jobs? Live or finished.
select j.id, j.task, j.args::text as args, j.queue, j.tenant
from unnest(array(select (value #>> '{}')::bigint from json_array_elements(:ids::json))) as b (id),
     lateral (select id, task, args, queue, tenant from tenure.job where id = b.id
              union all
              select id, task, args, queue, tenant from tenure.history where id = b.id) as j;

-- name: finished_among
-- Of these jobs, which are in history? A repeated enqueue asks after its insert, never before.
select h.id
from unnest(array(select (value #>> '{}')::bigint from json_array_elements(:ids::json))) as b (id),
     lateral (select id from tenure.history where id = b.id limit 1) as h;

-- name: take_keys
-- enqueue, replay: the unique index decides. Rows come sorted, so that two batches cannot deadlock.
insert into tenure.unique_key (tenant, scope, key, job_id, until, fingerprint, expires_at)
select b.tenant, b.scope, b.key, b.job_id, b.until, b.fingerprint,
       coalesce(:now::timestamptz, clock_timestamp()) + b.seconds * interval '1 second'
from json_to_recordset(:rows::json) as b (
    tenant text, scope text, key text, job_id bigint, until text, fingerprint text,
    seconds double precision)
on conflict (tenant, scope, key) do nothing
returning job_id;

-- name: key_holders
-- Who holds these keys? `over`: its period has ended and its job is no longer live.
select k.tenant, k.scope, k.key, k.job_id, k.fingerprint,
       k.expires_at is not null
       and k.expires_at <= coalesce(:now::timestamptz, clock_timestamp())
       and not exists (select from tenure.job j where j.id = k.job_id offset 0) as over, k.expires_at,
       k.outcome,
       not exists (select from tenure.job j where j.id = k.job_id offset 0)
       and not exists (select from tenure.history h where h.id = k.job_id offset 0) as gone
from json_to_recordset(:rows::json) as b (tenant text, scope text, key text),
     lateral (select * from tenure.unique_key u
              where u.tenant = b.tenant and u.scope = b.scope and u.key = b.key offset 0) as k;

-- name: drop_key
-- enqueue, replay: delete a key whose period is over, or whose job has failed. Guarded by the holder
-- and the ends that were read, and by the holder not being live: if another job has taken the key
-- meanwhile, it keeps it, and so does a job that is replayed meanwhile.
delete from tenure.unique_key
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id
  and expires_at is not distinct from :expires_at::timestamptz
  and outcome is not distinct from :outcome::text
  and not exists (select from tenure.job j where j.id = :job_id offset 0);

-- name: hold_key
-- replay: a key that the job never lost. A transaction that waits to delete it finds that it expires
-- later, and that its job has not ended.
update tenure.unique_key
set outcome = null,
    expires_at = coalesce(:now::timestamptz, clock_timestamp())
                 + :seconds::double precision * interval '1 second'
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id
returning job_id;

-- name: free_keys
-- delete: the keys of jobs that are deleted, where they are still theirs.
delete from tenure.unique_key k
using json_to_recordset(:rows::json) as b (tenant text, scope text, key text, job_id bigint)
where k.tenant = any (array[b.tenant]) and k.scope = b.scope and k.key = b.key and k.job_id = b.job_id;

-- name: free_key
-- delete of a key by its name, whose job has ended. One that is replayed at the same time has cleared `outcome`.
delete from tenure.unique_key k
where k.tenant = :tenant and k.scope = :scope and k.key = :key
  and (k.outcome is not null or not exists (select from tenure.job j where j.id = k.job_id offset 0))
returning k.job_id;

-- name: find_key
select k.job_id,
       k.expires_at is not null and k.expires_at <= coalesce(:now::timestamptz, clock_timestamp())
       and not exists (select from tenure.job j where j.id = k.job_id offset 0) as over, k.outcome
from tenure.unique_key k
where k.tenant = :tenant and k.scope = :scope and k.key = :key;

-- name: waiting_job
-- enqueue with Replace: what a job that is locked has been enqueued with.
select task, args::text as args from tenure.job where id = :id;

-- name: replace_job
-- enqueue with Replace: a job that is locked, and whose ticket was taken. Returns when it is due.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
new as materialized (
    select t.now, j.id,
           case when :postpone::boolean then
               least(coalesce(:due_at::timestamptz, t.now + :delay::double precision * interval '1 second', t.now),
                     j.created_at + :at_most::double precision * interval '1 second')
           else j.due_at end as due
    from t, tenure.job j where j.id = :id
)
update tenure.job j
set args = case when :change_args::boolean then :args::json else args end,
    metadata = case when :change_args::boolean then :metadata::json else metadata end,
    size_kb = case when :change_args::boolean then :size_kb::smallint else size_kb end,
    gate_key = case when :change_args::boolean and gate = :gate::text then :gate_key::text else gate_key end,
    due_at = case when parked is null then due_at else nullif(greatest(new.due, new.now), new.now) end,
    start_by = case when :postpone::boolean
                    then coalesce(:start_by::timestamptz, greatest(new.due, new.now)
                                  + :start_within::double precision * interval '1 second')
                    else start_by end,
    finish_by = case when :postpone::boolean
                     then coalesce(:finish_by::timestamptz, greatest(new.due, new.now)
                                   + :finish_within::double precision * interval '1 second')
                     else finish_by end
from new
where j.id = :id
returning new.due;

-- name: replaced_by_request
-- enqueue with Replace, repeated: the jobs that the first try has changed.
with changed as materialized (
    select job_id from tenure.event where request_id = :request_id and kind = 'replaced'
)
select j.id, j.task, j.args::text as args, j.tenant, j.unique_scope, j.unique_key
from changed, lateral (select * from tenure.job where id = changed.job_id offset 0) as j
union all
select h.id, h.task, h.args::text, h.tenant, h.unique_scope, h.unique_key
from changed, lateral (select * from tenure.history where id = changed.job_id offset 0) as h;

-- name: mark_key
-- enqueue with Replace: the key tells what its job was enqueued with.
update tenure.unique_key set fingerprint = :fingerprint
where tenant = :tenant and scope = :scope and key = :key and job_id = :job_id;

-- name: lock_finished_parents
-- enqueue: a finished parent cannot be replayed, deleted or pruned before the child is there.
select h.id
from json_to_recordset(:rows::json) as b (id bigint, tenant text),
     lateral (select id from tenure.history where id = b.id and tenant = b.tenant
              for key share) as h;

-- name: add_parents
-- enqueue: a job that waits for others. Only live or finished jobs of the same tenant count as
-- parents.
insert into tenure.parent (job_id, parent_id, parent_state)
select b.job_id, b.parent_id,
       (select state from tenure.history h where h.id = b.parent_id limit 1)
from json_to_recordset(:rows::json) as b (job_id bigint, parent_id bigint);

-- name: mark_parents
-- enqueue: locked in id order. A parent that settles at the same time sees the mark, or is seen
-- finished.
with locked as materialized (
    select j.id
    from json_to_recordset(:rows::json) as b (id bigint, tenant text),
         lateral (select id from tenure.job where id = b.id and tenant = b.tenant for update) as j
    order by j.id
)
update tenure.job j set features = features | {CHILDREN} from locked where j.id = any (array[locked.id])
returning j.id;
