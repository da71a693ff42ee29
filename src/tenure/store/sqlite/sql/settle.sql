-- name: lease_of_worker
-- succeed: the worker's own lease row must exist, whatever its deadline says.
select claimed_at from tenure.lease where id = :id and worker = :worker;

-- name: open_batch
-- succeed: where a batch stands for a moment, in memory and for this connection alone.
create temp table if not exists tenure.batch (
    id integer, token integer, duration real, result text, claimed_at integer);
delete from temp.tenure.batch;

-- name: add_to_batch
-- succeed: one job; values are bound in this order.
insert into temp.tenure.batch values (?, ?, ?, json(?), ?);

-- name: succeed
-- succeed: the happy path, one statement for the whole batch. Guarded by id and token.
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds, unique_seconds,
    state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue, task, args, worker,
    result, retry, metadata, unique_scope, unique_key, unique_until, gate, gate_key,
    start_by, finish_by)
select j.id, j.token, j.created_at, b.claimed_at, :now, b.duration, j.timeout_seconds,
       j.unique_seconds, 'succeeded', j.priority, j.attempts + 1, j.max_attempts, j.crashes,
       j.features, j.needs, j.tenant, j.queue, j.task, j.args, :worker, b.result, j.retry, j.metadata,
       j.unique_scope, j.unique_key, j.unique_until, j.gate, j.gate_key, j.start_by, j.finish_by
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id and j.token = b.token;

-- name: succeed_keeping
-- succeed: the same if a job or the worker says how long jobs are kept. One that is kept for 0 seconds
-- does not go to history, unless others want its result.
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds, unique_seconds,
    state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue, task, args, worker,
    result, retry, metadata, unique_scope, unique_key, unique_until, gate, gate_key, keep_until,
    keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
select j.id, j.token, j.created_at, b.claimed_at, :now, b.duration, j.timeout_seconds,
       j.unique_seconds, 'succeeded', j.priority, j.attempts + 1, j.max_attempts, j.crashes,
       j.features, j.needs, j.tenant, j.queue, j.task, j.args, :worker, b.result, j.retry, j.metadata,
       j.unique_scope, j.unique_key, j.unique_until, j.gate, j.gate_key,
       min(:now + cast(1e6 * coalesce(j.keep_succeeded_seconds, case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end) as integer), :far_future),
       j.keep_succeeded_seconds, j.keep_other_seconds, j.start_by, j.finish_by
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id and j.token = b.token
where coalesce(j.keep_succeeded_seconds, case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end, 1) <> 0
   or j.features & {CHILDREN | WORKFLOW} <> 0;

-- name: drop_batch
-- succeed: all of the batch is in history now.
delete from tenure.job where id in (select id from temp.tenure.batch);

-- name: any_featured
-- succeed: does any live job have a gate, a key, children or notes to let go of? Often none has.
-- And is there a reader of the feed?
select exists (select 1 from tenure.job indexed by tenure.job_featured where features <> 0),
       exists (select 1 from tenure.feed_reader where lost_at is null);

-- name: feed_batch
-- succeed: the ends of the batch, for the readers of the feed.
insert into tenure.feed (
    place, job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker)
select (select e.place from tenure.feed_end e) + row_number() over (order by j.id), j.id, j.token,
       'succeeded', j.attempts + 1, :now, b.duration, j.tenant, j.queue, j.task, :worker
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id and j.token = b.token;
update tenure.feed_end set place = max(place, coalesce((select max(f.place) from tenure.feed f), 0));

-- name: has_readers
-- fail, skip, abort, cancel, sweep: is there a reader of the feed?
select 1 from tenure.feed_reader where lost_at is null limit 1;

-- name: feed_finished
-- fail, skip, abort, cancel, sweep: the same. The guards are those of `finish`.
insert into tenure.feed (
    place, job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker,
    reason, error_type, error_message)
select (select e.place from tenure.feed_end e) + row_number() over (order by j.id), j.id, j.token,
       b.value ->> 'state', j.attempts + coalesce(b.value ->> 'charged', 0), :now,
       b.value ->> 'duration', j.tenant, j.queue, j.task, b.value ->> 'worker', b.value ->> 'reason',
       coalesce(b.value -> 'error', j.error) ->> 'type',
       substr(coalesce(b.value -> 'error', j.error) ->> 'message', 1, 1000)
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
     left join tenure.lease as l on l.id = b.value ->> 'lease' and l.worker = b.value ->> 'worker'
where b.value ->> 'lease' is null or l.id is not null;
update tenure.feed_end set place = max(place, coalesce((select max(f.place) from tenure.feed f), 0));

-- name: features_of_batch
-- succeed: what this batch has of these, and the lines at gates in which attempts have ended.
select distinct j.features, j.queue || char(30) || j.gate || char(30) || j.gate_key as line
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id
where j.features <> 0;

-- name: featured_in_batch
-- succeed: those that have more to let go of than a gate (32).
select j.id, j.token, j.features, j.queue || char(30) || j.gate || char(30) || j.gate_key as line,
       case when j.unique_key is not null then json_array(j.tenant, j.unique_scope, j.unique_key) end as key,
       1 as kept
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id
where j.features & ~{GATE} <> 0;

-- name: moved_jobs
-- succeed: all that this worker holds of the batch, and which of it is in history now.
select j.id, j.token, j.features, j.queue || char(30) || j.gate || char(30) || j.gate_key as line,
       case when j.unique_key is not null then json_array(j.tenant, j.unique_scope, j.unique_key) end as key,
       exists (select 1 from tenure.history h where h.id = j.id) as kept
from temp.tenure.batch as b cross join tenure.job as j on j.id = b.id and j.token = b.token;

-- name: finish
-- fail, skip, abort, cancel, expire, sweep: the job moves to history. Guarded by id and token and,
-- for a worker, by its own lease row. `calls`: the hooks of its failure, unless it was the job of a hook.
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds, unique_seconds,
    state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue, task, args, worker,
    error, reason, retry, metadata, unique_scope, unique_key, unique_until, gate, gate_key, keep_until,
    keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
select j.id, j.token, j.created_at, l.claimed_at, :now, b.value ->> 'duration', j.timeout_seconds,
       j.unique_seconds, b.value ->> 'state', j.priority,
       j.attempts + coalesce(b.value ->> 'charged', 0), j.max_attempts,
       j.crashes + coalesce(b.value ->> 'crashed', 0), j.features, j.needs, j.tenant, j.queue, j.task, j.args,
       b.value ->> 'worker', coalesce(b.value -> 'error', j.error), b.value ->> 'reason', j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
       j.gate, j.gate_key,
       min(:now + cast(1e6 * coalesce(j.keep_other_seconds, case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end) as integer), :far_future),
       j.keep_succeeded_seconds, j.keep_other_seconds, j.start_by, j.finish_by
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
     left join tenure.lease as l on l.id = b.value ->> 'lease' and l.worker = b.value ->> 'worker'
where (b.value ->> 'lease' is null or l.id is not null)
  and (coalesce(j.keep_other_seconds, case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end, 1) <> 0
       or j.features & {CHILDREN | WORKFLOW} <> 0);
select j.id, j.token, j.features, j.queue || char(30) || j.gate || char(30) || j.gate_key as line,
       case when j.unique_key is not null then json_array(j.tenant, j.unique_scope, j.unique_key) end as key,
       coalesce(j.keep_other_seconds, case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end, 1) <> 0
       or j.features & {CHILDREN | WORKFLOW} <> 0 as kept, j.queue, j.task,
       case when b.value ->> 'state' = 'failed' then (
           select json_object(
                      'hooks', json_group_array(json_array(h.parameter, json(h.job))),
                      'failed', json_object(
                          'id', j.id, 'token', j.token, 'task', j.task, 'args', json(j.args),
                          'queue', j.queue, 'tenant', j.tenant, 'metadata', json(j.metadata),
                          'attempts', j.attempts + coalesce(b.value ->> 'charged', 0),
                          'max_attempts', j.max_attempts,
                          'crashes', j.crashes + coalesce(b.value ->> 'crashed', 0),
                          'reason', b.value ->> 'reason',
                          'error', json(coalesce(b.value -> 'error', j.error)),
                          'worker', b.value ->> 'worker',
                          'finished_at', strftime('%Y-%m-%dT%H:%M:%S', :now / 1000000, 'unixepoch')
                                         || printf('.%06dZ', :now % 1000000)))
           from tenure.failure_hook as h
           where h.task in ('', j.task)
             and not exists (select 1 from tenure.failure_hook own where own.hook = j.task)
           group by null) end as calls
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
     left join tenure.lease as l on l.id = b.value ->> 'lease' and l.worker = b.value ->> 'worker'
where b.value ->> 'lease' is null or l.id is not null;

-- name: drop_live
-- The second half of succeed and finish: what is in history is no longer live.
delete from tenure.job where id in (select value from json_each(:ids));

-- name: lock_leased
select j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested, j.features, l.claimed_at,
       l.once is not null and exists (select 1 from json_each(l.once) as o where o.value = j.id) as spent
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
     cross join tenure.lease as l on l.id = b.value ->> 'lease' and l.worker = :worker
order by j.id;

-- name: add_tickets
-- retry, snooze, release, sweep, unhold, move, free: token + 1 and a new ticket at the end of the
-- line, or none when the job is held. Called only for jobs whose token was checked in this
-- transaction.
update tenure.counter set position = position + json_array_length(:rows);
update tenure.job as job
set token = token + 1, attempts = attempts + coalesce(b.value ->> 'charged', 0),
    crashes = crashes + coalesce(b.value ->> 'crashed', 0), queued_at = :now,
    due_at = nullif(max(coalesce(b.value ->> 'due_at', :now + cast(1e6 * (b.value ->> 'delay') as integer), 0), :now), :now),
    position = case
        when held then null
        when coalesce(b.value ->> 'due_at', :now + cast(1e6 * (b.value ->> 'delay') as integer), 0) > :now then null
        else (select c.position from tenure.counter c) - json_array_length(:rows) + b.key + 1 end,
    parked = case when held then 'held' end,
    reason = case when held and reason is not null then reason else b.value ->> 'reason' end,
    error = coalesce(b.value -> 'error', error), queue = coalesce(b.value ->> 'queue', queue),
    priority = coalesce(b.value ->> 'priority', priority), needs = coalesce(b.value ->> 'needs', needs)
from json_each(:rows) as b
where job.id = b.value ->> 'id' and job.token = b.value ->> 'token'
returning id, features, queue, needs, priority, position,
          coalesce(parked is null and due_at <= :now + 1500000, 0) as due_soon;
insert into tenure.ready (queue, needs, priority, position, job_id, token, suspect, size_kb)
select j.queue, j.needs, j.priority, j.position, j.id, j.token, j.crashes > 0, j.size_kb
from json_each(:rows) as b cross join tenure.job as j on j.id = b.value ->> 'id'
where j.token = (b.value ->> 'token') + 1 and j.parked is null and j.due_at is null
  and j.gate is null;
insert into tenure.due (due_at, job_id, token)
select j.due_at, j.id, j.token
from json_each(:rows) as b cross join tenure.job as j on j.id = b.value ->> 'id'
where j.token = (b.value ->> 'token') + 1 and j.parked is null and j.due_at is not null;

-- name: add_events
-- every transition: the lines of jobs' stories, in the transaction that makes them true.
insert into tenure.event (job_id, at, token, kind, worker, request_id, detail)
select b.value ->> 'job_id', coalesce(b.value ->> 'at', :now), b.value ->> 'token',
       b.value ->> 'kind', b.value ->> 'worker', b.value ->> 'request_id', b.value -> 'detail'
from json_each(:rows) as b order by b.key;

-- name: last_events
-- release of jobs whose task the worker does not have: the last entry of each job.
select e.job_id, e.seq, e.kind, (:now - e.at) / 1e6 as age_seconds, e.detail
from json_each(:ids) as b
     cross join tenure.event as e
     on e.seq = (select max(l.seq) from tenure.event l where l.job_id = b.value);

-- name: fold_events
-- release of jobs whose task the worker does not have: one more try is no new row. `at` stays.
update tenure.event as e
set token = b.value ->> 'token', worker = b.value ->> 'worker', detail = b.value -> 'detail'
from json_each(:rows) as b
where e.seq = b.value ->> 'seq';

-- name: recorded_ends
select h.id, h.token, h.state as kind, h.reason, h.result, h.error, null as detail, 1 as in_full,
       h.attempts = h.max_attempts as was_last,
       exists (select 1 from tenure.event e where e.job_id = h.id and e.token = h.token
               and e.kind = 'cancel requested') as asked
from json_each(:rows) as b
     cross join tenure.history as h on h.id = b.value ->> 'id' and h.token = b.value ->> 'token'
where h.worker = :worker
  and not exists (select 1 from tenure.event e where e.job_id = h.id
                  and e.token = h.token and e.kind = 'crashed')
union all
select e.job_id, e.token, e.kind, e.detail ->> 'reason', null, e.detail -> 'error', e.detail,
       e.kind in ('retried', 'snoozed', 'released', 'unknown_task'), 1,
       exists (select 1 from tenure.event a where a.job_id = e.job_id and a.token = e.token
               and a.kind = 'cancel requested')
from json_each(:rows) as b
     cross join tenure.event as e on e.job_id = b.value ->> 'id' and e.token = b.value ->> 'token'
where e.worker = :worker and instr(' ' || :kinds || ' ', ' ' || e.kind || ' ') > 0
  and not exists (select 1 from tenure.event c where c.job_id = e.job_id
                  and c.token = e.token and c.kind = 'crashed');

-- name: drop_leases
-- succeed, retry and the other settlements: only when none of their (job, token) is live, never
-- because a worker believes that it is done.
delete from tenure.lease as lease
where id in (select value from json_each(:ids)) and worker = :worker
  and not exists (select 1 from json_each(lease.jobs) as pair
                       cross join tenure.job as j on j.id = pair.value ->> 0
                  where j.token = pair.value ->> 1)
returning id;

-- name: drop_holds
-- succeed, retry and the other settlements: and what was noted of them at gates.
delete from tenure.gate_hold as hold
where lease in (select value from json_each(:ids))
  and not exists (select 1 from tenure.lease l where l.id = hold.lease);

-- name: release_keys
-- succeed, fail, cancel, sweep and every other path to a final state: the key is given back, where it
-- is still mine.
delete from tenure.unique_key
where (tenant, scope, key, job_id) in (
          select b.value ->> 'tenant', b.value ->> 'scope', b.value ->> 'key', b.value ->> 'job_id'
          from json_each(:rows) as b)
  and (until in ('started', 'finished') or until = 'period' and expires_at <= :now);
update tenure.unique_key as k set outcome = b.value ->> 'outcome'
from json_each(:rows) as b
where k.tenant = b.value ->> 'tenant' and k.scope = b.value ->> 'scope' and k.key = b.value ->> 'key'
  and k.job_id = b.value ->> 'job_id';

-- name: forget_checkpoints
-- replay: the job starts from the beginning. Its notes stay.
update tenure.note
set fraction = null, message = null, reported_at = null, checkpoint = null, saved_at = null
where job_id in (select value from json_each(:ids));

-- name: note_parent_ends
-- free: write the parent's end on each of its edges. Returns the children.
update tenure.parent as parent set parent_state = b.value ->> 'state'
from json_each(:rows) as b
where parent.parent_id = b.value ->> 'id'
returning job_id;

-- name: hindered_parents
-- The single writer needs no lock.
select parent_id from tenure.parent
where false and parent_id in (select value from json_each(:ids) union select value from json_each(:losing));

-- name: lock_freed
-- The single writer needs no lock.
select 1;

-- name: freed_children
-- Whether a parent is unfinished is looked up first, in a small index: most children wait on, and
-- their jobs are not read. The other looks go along edges that did not succeed, or stop at the first.
select j.id, j.token, j.due_at, j.cancel_requested, j.features, n.rule,
       n.rule in ('any_succeeded', 'any_failed')
       and exists (select 1 from tenure.parent p indexed by tenure.parent_unfinished
                   where p.job_id = j.id and p.parent_state is null) as unfinished,
       n.rule = 'any_succeeded'
       and exists (select 1 from tenure.parent p where p.job_id = j.id and p.parent_state = 'succeeded') as any_succeeded,
       n.rule = 'any_failed'
       and exists (select 1 from tenure.parent p indexed by tenure.parent_failed
                   where p.job_id = j.id and p.parent_state = 'failed') as any_failed,
       exists (select 1 from tenure.parent p where p.job_id = j.id and p.parent_state <> 'succeeded')
           as any_unsuccessful,
       j.held, j.queue, j.needs, j.priority, j.crashes, j.size_kb
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
     left join tenure.node as n on n.job_id = j.id and j.features & {RULE}
where (not exists (select 1 from tenure.parent p indexed by tenure.parent_unfinished
                   where p.job_id = b.value and p.parent_state is null)
       or exists (select 1 from tenure.node as r
                  where r.job_id = b.value and r.rule in ('any_succeeded', 'any_failed')))
  and j.parked = 'parents'
order by j.id;

-- name: free
-- free: a job that waited for its parents is queued, with a new token.
update tenure.job
set token = token + 1, queued_at = ?, due_at = null, position = ?, parked = null, reason = ?
where id = ? and token = ?;

-- name: free_tickets
-- free: the tickets of these.
insert into tenure.ready (queue, needs, priority, position, job_id, token, suspect, size_kb)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: report_progress
-- progress: only for jobs held in this transaction.
insert into tenure.note (job_id, token, fraction, message, reported_at)
select b.value ->> 'id', b.value ->> 'token', b.value ->> 'fraction', b.value ->> 'message', :now
from json_each(:rows) as b
where true
on conflict (job_id) do update
set token = excluded.token, fraction = excluded.fraction, message = excluded.message,
    reported_at = excluded.reported_at;

-- name: save_checkpoint
-- checkpoint: only for a job locked as held in this transaction.
insert into tenure.note (job_id, token, checkpoint, saved_at)
values (:id, :token, :checkpoint, :now)
on conflict (job_id) do update
set token = excluded.token, checkpoint = excluded.checkpoint, saved_at = excluded.saved_at;

-- name: annotate
-- annotate: only for jobs held in this transaction; already merged with what was there.
insert into tenure.note (job_id, token, notes)
select b.value ->> 'id', b.value ->> 'token', b.value -> 'notes'
from json_each(:rows) as b
where true
on conflict (job_id) do update set token = excluded.token, notes = excluded.notes;

-- name: start_once
-- start_once: the mark that forbids another start. Guarded by id, token and the worker's own lease,
-- which must not have expired. A second call changes nothing, and returns the same.
update tenure.lease as lease
set once = case when exists (select 1 from json_each(once) as o where o.value = :id) then once
                else json_insert(coalesce(once, '[]'), '$[#]', :id) end
where id = :lease and worker = :worker and boot = :boot and expires_tick > :tick
  and exists (select 1 from json_each(lease.jobs) as pair
              where pair.value ->> 0 = :id and pair.value ->> 1 = :token)
  and exists (select 1 from tenure.job j where j.id = :id and j.token = :token)
returning id;

-- name: mark_noted
-- progress, checkpoint, annotate: settle looks for notes only where this flag is.
update tenure.job set features = features | {NOTES}
where id in (select value from json_each(:ids)) and features & {NOTES} = 0;
