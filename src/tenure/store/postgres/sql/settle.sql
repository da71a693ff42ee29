-- name: succeed
-- succeed: the happy path, one statement for the whole batch. Guarded by id and token and by the
-- worker's own lease row: it must exist, whatever its deadline says.
-- Jobs come grouped by lease, so that each lease is looked up once, and in columns: half the cost of
-- a small array for each (1.3 against 2.5 microseconds). They are locked in id order.
-- A job with a gate comes back with its line there, one with a unique key with that. One that is to be
-- kept for 0 seconds does not go to history, unless others want its result: `keep` gives the seconds by
-- queue, where the job has none of its own.
-- `= any (array[...])` and `offset 0`, here and elsewhere: with a plain join, a plan made while the
-- tables were empty walks the whole index of `job` for each batch, for ever.
with batch as materialized (
    select l.claimed_at, b.id, b.token, b.duration,
           case when json_typeof(b.result) <> 'null' then b.result end as result
    from json_to_recordset(:rows::json) as held (
             lease bigint, ids bigint[], tokens bigint[], durations double precision[], results json),
         lateral (select claimed_at from tenure.lease
                  where id = held.lease and worker = :worker offset 0) as l,
         lateral rows from (
             unnest(held.ids, held.tokens, held.durations), json_array_elements(held.results)
         ) as b (id, token, duration, result)
    order by b.id
), gone as (
    delete from tenure.job j using batch b
    where j.id = any (array[b.id]) and j.token = b.token
    returning j.*, b.claimed_at, b.result, b.duration
), ended as (
    select gone.*, coalesce(keep_succeeded_seconds, (:keep::json ->> queue)::double precision) as keep,
           coalesce(:now::timestamptz, clock_timestamp()) as now
    from gone
), kept as (
    insert into tenure.history (
        id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds, unique_seconds,
        state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue, task, args, worker,
        result, retry, metadata, unique_scope, unique_key, unique_until, gate, gate_key, keep_until,
        keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
    select id, token, created_at, claimed_at, now, duration, timeout_seconds, unique_seconds,
           'succeeded', priority, attempts + 1, max_attempts, crashes, features, needs, tenant, queue, task,
           args, :worker, result, retry, metadata, unique_scope, unique_key, unique_until, gate,
           gate_key, case when keep is not null then least(now + keep * interval '1 second', '9000-01-01 00:00:00+00') end,
           keep_succeeded_seconds, keep_other_seconds, start_by, finish_by
    from ended where keep is distinct from 0 or features & {CHILDREN | WORKFLOW} <> 0
), told as (
    insert into tenure.feed_new (
        job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker)
    select id, token, 'succeeded', attempts + 1, now, duration, tenant, queue, task, :worker
    from ended where exists (select from tenure.feed_reader r where r.lost_at is null)
)
select id, token, features, queue || e'\x1e' || gate || e'\x1e' || gate_key as line,
       case when unique_key is not null then json_build_array(tenant, unique_scope, unique_key)::text end as key,
       coalesce(keep_succeeded_seconds, (:keep::json ->> queue)::double precision) is distinct from 0
       or features & {CHILDREN | WORKFLOW} <> 0 as kept
from gone;

-- name: finish
-- fail, skip, abort, cancel, expire, sweep: the job moves to history. Guarded by id and token and, for a
-- worker, by its own lease row. `calls`: the hooks of its failure, unless it was the job of a hook.
with batch as materialized (
    select * from json_to_recordset(:rows::json) as b (
        id bigint, token bigint, lease bigint, worker text, state text, charged int, crashed int,
        error json, reason text, duration double precision)
    order by b.id
), gone as (
    delete from tenure.job j using batch b
    where j.id = any (array[b.id]) and j.token = b.token
      and (b.lease is null
           or exists (select from tenure.lease l
                      where l.id = b.lease and l.worker = b.worker offset 0))
    returning j.*, b.lease, b.worker, b.state, b.charged, b.crashed,
              coalesce(b.error, j.error) as last_error, b.reason as why, b.duration
), ended as (
    select gone.*, coalesce(keep_other_seconds, (:keep::json ->> queue)::double precision) as keep,
           coalesce(:now::timestamptz, clock_timestamp()) as now
    from gone
), kept as (
    insert into tenure.history (
        id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds, unique_seconds,
        state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue, task, args, worker,
        error, reason, retry, metadata, unique_scope, unique_key, unique_until, gate, gate_key, keep_until,
        keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
    select id, token, created_at, (select claimed_at from tenure.lease l where l.id = ended.lease),
           now, duration, timeout_seconds, unique_seconds,
           ended.state::tenure.state, priority, attempts + coalesce(charged, 0), max_attempts,
           crashes + coalesce(crashed, 0), features, needs, tenant, queue, task, args, worker, last_error, why, retry, metadata,
           unique_scope, unique_key, unique_until, gate, gate_key,
           case when keep is not null then least(now + keep * interval '1 second', '9000-01-01 00:00:00+00') end,
           keep_succeeded_seconds, keep_other_seconds, start_by, finish_by
    from ended where keep is distinct from 0 or features & {CHILDREN | WORKFLOW} <> 0
), told as (
    insert into tenure.feed_new (
        job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker,
        reason, error_type, error_message)
    select id, token, ended.state::tenure.state, attempts + coalesce(charged, 0), now, duration, tenant,
           queue, task, worker, why, last_error ->> 'type', left(last_error ->> 'message', 1000)
    from ended where exists (select from tenure.feed_reader r where r.lost_at is null)
)
select id, token, features, queue || e'\x1e' || gate || e'\x1e' || gate_key as line,
       case when unique_key is not null then json_build_array(tenant, unique_scope, unique_key)::text end as key,
       coalesce(keep_other_seconds, (:keep::json ->> queue)::double precision) is distinct from 0
       or features & {CHILDREN | WORKFLOW} <> 0 as kept, queue, task,
       case when state = 'failed' then (
           select json_build_object(
                      'hooks', json_agg(json_build_array(h.parameter, h.job) order by h.hook),
                      'failed', json_build_object(
                          'id', ended.id, 'token', ended.token, 'task', ended.task, 'args', ended.args,
                          'queue', ended.queue, 'tenant', ended.tenant, 'metadata', ended.metadata,
                          'attempts', ended.attempts + coalesce(ended.charged, 0),
                          'max_attempts', ended.max_attempts,
                          'crashes', ended.crashes + coalesce(ended.crashed, 0),
                          'reason', ended.why, 'error', ended.last_error, 'worker', ended.worker,
                          'finished_at', ended.now))::text
           from tenure.failure_hook h
           where h.task in ('', ended.task)
             and not exists (select from tenure.failure_hook own where own.hook = ended.task)
           having count(*) > 0) end as calls
from ended;

-- name: lock_leased
-- retry, fail, snooze, release, abort, skip, progress, checkpoint: lock what this worker truly holds.
-- The token's guard is read again after the lock is there.
select j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested, j.features, l.claimed_at,
       coalesce(j.id = any (l.once), false) as spent
from (select * from json_to_recordset(:rows::json) as r (id bigint, token bigint, lease bigint)
      order by r.id) as b,
     lateral (select claimed_at, once from tenure.lease
              where id = b.lease and worker = :worker offset 0) as l,
     lateral (select id, token, attempts, max_attempts, cancel_requested, features
              from tenure.job where id = b.id and token = b.token for update) as j
order by j.id;

-- name: add_tickets
-- retry, snooze, release, sweep, unhold, move, free: token + 1 and a new ticket at the end of the
-- queue, or none if the job is held. Called only for jobs locked in this transaction. Returns the
-- positions for `notify`, and 0 for a ticket that will be due within a moment. Tickets of gates: see
-- `add_gate_tickets`.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
batch as materialized (
    select b.*, nullif(greatest(coalesce(b.due_at, t.now + b.delay * interval '1 second'), t.now), t.now) as due
    from t, json_to_recordset(:rows::json) as b (
        id bigint, token bigint, delay double precision, due_at timestamptz, charged int,
        crashed int, reason text, error json, queue text, priority smallint, needs smallint)
), moved as (
    update tenure.job j
    set token = j.token + 1, attempts = j.attempts + coalesce(b.charged, 0),
        crashes = j.crashes + coalesce(b.crashed, 0), queued_at = t.now, due_at = b.due,
        position = case when b.due is null and not j.held then 1000 * nextval('tenure.position') end,
        parked = case when j.held then 'held' end,
        reason = case when j.held and j.reason is not null then j.reason else b.reason end,
        error = coalesce(b.error, j.error), queue = coalesce(b.queue, j.queue),
        priority = coalesce(b.priority, j.priority), needs = coalesce(b.needs, j.needs)
    from batch b, t
    where j.id = any (array[b.id]) and j.token = b.token
    returning j.id, j.token, j.queue, j.needs, j.priority, j.position, j.due_at, j.parked, j.crashes,
              j.features, j.gate, j.size_kb
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue, suspect)
    select position, id, token, priority, needs, size_kb, queue, crashes > 0
    from moved where parked is null and due_at is null and gate is null
), scheduled as (
    insert into tenure.due (due_at, job_id, token)
    select due_at, id, token from moved where parked is null and due_at is not null
)
select id, features, queue, needs, priority, position,
       coalesce(parked is null and due_at <= t.now + interval '1.5 seconds', false) as due_soon
from moved, t;

-- name: add_events
-- every transition: the lines of jobs' stories, in the transaction that makes them true.
insert into tenure.event (job_id, at, token, kind, worker, request_id, detail)
select b.job_id, coalesce(b.at, :now::timestamptz, clock_timestamp()), b.token, b.kind, b.worker,
       b.request_id, b.detail
from json_to_recordset(:rows::json) as b (
    n int, job_id bigint, at timestamptz, token bigint, kind text, worker text, request_id text,
    detail json)
order by b.n;

-- name: last_events
-- release of jobs whose task the worker does not have: the last entry of each job.
select e.job_id, e.seq, e.kind,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - e.at)::double precision as age_seconds,
       e.detail::text as detail
from unnest(array(select (value #>> '{}')::bigint from json_array_elements(:ids::json))) as b (id),
     lateral (select * from tenure.event where job_id = b.id order by seq desc limit 1) as e;

-- name: fold_events
-- release of jobs whose task the worker does not have: one more try is no new row. `at` stays.
update tenure.event e set token = b.token, worker = b.worker, detail = b.detail
from json_to_recordset(:rows::json) as b (job_id bigint, seq bigint, token bigint, worker text, detail json)
where e.job_id = any (array[b.job_id]) and e.seq = b.seq;

-- name: recorded_ends
-- Zero rows changed: how has this worker settled these tokens before? Not at all if a sweep took the
-- job back under this token: it writes the lost worker's name, but settled for it.
with b as materialized (
    select id, token from json_to_recordset(:rows::json) as b (id bigint, token bigint)
), ends as materialized (
    select h.id, h.token, h.state::text as kind, h.reason, h.result, h.error, null::json as detail,
           true as in_full, h.attempts = h.max_attempts as was_last
    from b, lateral (select id, token, state, reason, result, error, attempts, max_attempts
                     from tenure.history
                     where id = b.id and token = b.token and worker = :worker offset 0) as h
    union all
    select e.job_id, e.token, e.kind, e.detail ->> 'reason', null, e.detail -> 'error', e.detail,
           e.kind = any (array['retried', 'snoozed', 'released', 'unknown_task']), true
    from b, lateral (select job_id, token, kind, detail from tenure.event
                     where job_id = b.id and token = b.token and worker = :worker
                       and kind = any (string_to_array(:kinds, ' ')) offset 0) as e
)
select ends.id, ends.token, ends.kind, ends.reason, ends.result::text, ends.error::text,
       ends.detail::text, ends.in_full, ends.was_last,
       exists (select from tenure.event a
               where a.job_id = ends.id and a.token = ends.token and a.kind = 'cancel requested'
               offset 0) as asked
from ends
where not exists (select from tenure.event c
                  where c.job_id = ends.id and c.token = ends.token and c.kind = 'crashed' offset 0);

-- name: drop_leases
-- succeed, retry and the other settlements: only when none of their (job, token) is live, never
-- because a worker believes that it is done.
delete from tenure.lease l
where l.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and l.worker = :worker
  and not exists (
      select from json_array_elements(l.jobs) as pair,
           lateral (select from tenure.job j
                    where j.id = (pair ->> 0)::bigint and j.token = (pair ->> 1)::bigint offset 0) as live)
returning l.id;

-- name: drop_holds
-- succeed, retry and the other settlements: and what was noted of them at gates.
delete from tenure.gate_hold h
where h.lease = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and not exists (select from tenure.lease l where l.id = h.lease offset 0);

-- name: release_keys
-- succeed, fail, cancel, sweep and every other path to a final state: the key is given back, where it
-- is still mine. A key held for a period stays until the period is over; one held for ever stays. Such
-- a key notes how its job has ended: it may outlive the job.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
ended as materialized (
    select * from json_to_recordset(:rows::json) as b (
        tenant text, scope text, key text, job_id bigint, outcome text)
), freed as (
    delete from tenure.unique_key k using ended b, t
    where k.tenant = any (array[b.tenant]) and k.scope = b.scope and k.key = b.key and k.job_id = b.job_id
      and (k.until in ('started', 'finished') or k.until = 'period' and k.expires_at <= t.now)
)
update tenure.unique_key k set outcome = b.outcome from ended b, t
where k.tenant = any (array[b.tenant]) and k.scope = b.scope and k.key = b.key and k.job_id = b.job_id
  and (k.until = 'forever' or k.until = 'period' and k.expires_at > t.now);

-- name: forget_checkpoints
-- replay: the job starts from the beginning. Its notes stay.
update tenure.note
set fraction = null, message = null, reported_at = null, checkpoint = null, saved_at = null
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: note_parent_ends
-- free: write the parent's end on each of its edges, but no success on a silent edge, unless it
-- replaces an earlier end. Returns the children. An id below zero is the end of a workflow.
with told as (
    update tenure.parent p set parent_state = b.state::tenure.state
    from json_to_recordset(:rows::json) as b (id bigint, state text)
    where p.parent_id = any (array[b.id])
      and (not p.silent or b.state <> 'succeeded' or p.parent_state is not null)
    returning p.job_id
)
select job_id from told
union
select p.job_id
from json_to_recordset(:rows::json) as b (id bigint),
     lateral (select job_id, silent from tenure.parent
              where parent_id = any (array[b.id]) offset 0) as p
where p.silent;

-- name: hindered_parents
-- succeed, fail and the other settlements: parents of children that another transaction has locked,
-- and nodes whose end changes a workflow that another transaction has locked: last nodes and
-- unsuccessful ones. All other rows are locked here. (Which index to take: see `nodes_to_reopen`.)
with edge as materialized (
    select e.parent_id, e.job_id
    from json_array_elements(:ids::json) as b,
         lateral (select parent_id, job_id from tenure.parent
                  where parent_id = any (array[(b.value #>> '{}')::bigint])
                    and parent_state is distinct from 'waiting' offset 0) as e
), ours as materialized (
    select j.id
    from (select distinct job_id from edge order by job_id) as e,
         lateral (select id from tenure.job where id = e.job_id and parked = 'parents'
                  for update skip locked) as j
), flow as materialized (
    select parent_id, - job_id as id from edge where job_id < 0
    union all
    select n.job_id, n.workflow_id
    from json_array_elements(:losing::json) as b,
         lateral (select job_id, workflow_id from tenure.node
                  where job_id = any (array[(b.value #>> '{}')::bigint]) offset 0) as n
), told as materialized (
    select w.id
    from (select distinct id from flow order by id) as f,
         lateral (select id from tenure.workflow where id = f.id for update skip locked) as w
)
select e.parent_id
from edge as e,
     lateral (select from tenure.job where id = e.job_id and parked = 'parents' offset 0) as j
where not e.job_id = any (array(select id from ours))
union
select f.parent_id
from flow as f, lateral (select from tenure.workflow where id = f.id offset 0) as w
where not f.id = any (array(select id from told));

-- name: lock_freed
-- free: children locked in id order; whether they are free is decided by a later statement.
select j.id from tenure.job j
where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and j.parked = 'parents'
order by j.id
for update;

-- name: free_nodes
-- free: of the locked children, queue the nodes that wait only for the success of all their parents,
-- as `add_tickets` does. Returns these, and without a position the children that may be ready for
-- another decision: see `freed_children`. (Together the two took twice the time for a random graph.)
-- If all ends are written on the edges of a child, the last edge in the order of
-- `parent_unsuccessful` decides: if there is none, every parent has succeeded; an unfinished one
-- comes first.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
child as materialized (
    select j.id, j.token, j.features & {RULE} <> 0 as has_rule,
           j.features & {WORKFLOW | RULE} = {WORKFLOW} and j.gate is null and j.due_at is null and not j.held
           and not j.cancel_requested as is_plain,
           coalesce(
               (select 'unfinished' from tenure.parent p
                where p.job_id = j.id and p.silent and p.parent_state is null
                  and exists (select from tenure.job q where q.id = p.parent_id offset 0) limit 1),
               (select case when p.parent_state is null then 'unfinished' else 'lost' end
                from tenure.parent p
                where p.job_id = j.id
                  and (not p.silent and p.parent_state is null or p.parent_state <> 'succeeded')
                order by p.job_id desc, p.parent_state desc limit 1)) as missing
    from tenure.job j
    where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
      and j.parked = 'parents'
    order by j.id
), freed as (
    update tenure.job j
    set token = j.token + 1, queued_at = t.now, position = 1000 * nextval('tenure.position'),
        parked = null, reason = :reason
    from child c, t
    where c.is_plain and c.missing is null and j.id = any (array[c.id]) and j.token = c.token
    returning j.id, j.token, j.queue, j.needs, j.priority, j.position, j.crashes, j.size_kb
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue, suspect)
    select position, id, token, priority, needs, size_kb, queue, crashes > 0 from freed
)
select id, queue, needs, priority, position from freed
union all
select id, null, null, null, null from child
where not (is_plain and missing is null) and (has_rule or missing is distinct from 'unfinished');

-- name: freed_children
-- free: of the locked children, those whose rule may be decided: all without an unfinished parent, and
-- those for which one end may be enough. What a rule does not ask for is not looked for.
select j.id, j.token, j.due_at, j.cancel_requested, j.features, n.rule, j.unfinished,
       n.rule = 'any_succeeded'
       and (exists (select from tenure.parent p
                    where p.job_id = j.id and p.parent_state = 'succeeded' offset 0)
            or exists (select from tenure.parent p
                       where p.job_id = j.id and p.silent and p.parent_state is null
                         and not exists (select from tenure.job q where q.id = p.parent_id offset 0)
                       offset 0)) as any_succeeded,
       n.rule = 'any_failed'
       and exists (select from tenure.parent p
                   where p.job_id = j.id and p.parent_state = 'failed' offset 0) as any_failed,
       exists (select from tenure.parent p
               where p.job_id = j.id and p.parent_state <> 'succeeded' offset 0) as any_unsuccessful,
       j.held, j.queue, j.needs, j.priority, j.crashes, j.size_kb
from (select id, token, due_at, cancel_requested, features, held, queue, needs, priority, crashes, size_kb,
             exists (select from tenure.parent p
                     where p.job_id = job.id and p.silent and p.parent_state is null
                       and exists (select from tenure.job q where q.id = p.parent_id offset 0)
                     offset 0)
             or exists (select from tenure.parent p
                        where p.job_id = job.id and not p.silent and p.parent_state is null
                        offset 0) as unfinished
      from tenure.job
      where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
        and parked = 'parents' offset 0) as j
     left join lateral (select rule from tenure.node
                        where job_id = j.id and j.features & {RULE} <> 0 offset 0) as n on true
where not j.unfinished or n.rule in ('any_succeeded', 'any_failed')
order by j.id;

-- name: report_progress
-- progress: only for jobs locked as held in this transaction.
insert into tenure.note (job_id, token, fraction, message, reported_at)
select b.id, b.token, b.fraction, b.message, coalesce(:now::timestamptz, clock_timestamp())
from json_to_recordset(:rows::json) as b (id bigint, token bigint, fraction double precision, message text)
on conflict (job_id) do update
set token = excluded.token, fraction = excluded.fraction, message = excluded.message,
    reported_at = excluded.reported_at;

-- name: save_checkpoint
-- checkpoint: only for a job locked as held in this transaction.
insert into tenure.note (job_id, token, checkpoint, saved_at)
values (:id, :token, :checkpoint::json, coalesce(:now::timestamptz, clock_timestamp()))
on conflict (job_id) do update
set token = excluded.token, checkpoint = excluded.checkpoint, saved_at = excluded.saved_at;

-- name: annotate
-- annotate: only for jobs locked as held in this transaction; already merged with what was there.
insert into tenure.note (job_id, token, notes)
select b.id, b.token, b.notes
from json_to_recordset(:rows::json) as b (id bigint, token bigint, notes json)
on conflict (job_id) do update set token = excluded.token, notes = excluded.notes;

-- name: start_once
-- start_once: the mark that forbids another start. Guarded by id, token and the worker's own lease,
-- which must not have expired: so the sweep, which takes expired leases, sees this mark or prevents
-- it. A second call changes nothing, and returns the same.
update tenure.lease l
set once = case when :id = any (l.once) then l.once else array_append(l.once, :id::bigint) end
where l.id = :lease and l.worker = :worker
  and l.expires_at > coalesce(:now::timestamptz, clock_timestamp())
  and exists (select from json_array_elements(l.jobs) as pair
              where (pair ->> 0)::bigint = :id and (pair ->> 1)::bigint = :token)
  and exists (select from tenure.job j where j.id = :id and j.token = :token)
returning l.id;

-- name: mark_noted
-- progress, checkpoint, annotate: settle looks for notes only where this flag is.
update tenure.job set features = features | {NOTES}
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and features & {NOTES} = 0;
