-- name: identity
-- copy: which tables these are, so that nothing is copied onto itself.
select file from pragma_database_list where name = 'main';

-- name: first_running
-- copy: is anything on a lease?
select count(*) as jobs, min(id) as first_id from tenure.live where state = 'running';

-- name: count_all
-- copy: everything that is copied, counted.
select state as kind, count(*) as rows from tenure.live group by state
union all
select state, count(*) from tenure.history group by state
union all
select 'unique keys', count(*) from tenure.unique_key
union all
select 'paused queues', count(*) from tenure.queue
union all
select 'gates', count(*) from tenure.gate
union all
select 'workflows', count(*) from tenure.workflow
union all
select 'schedules', count(*) from tenure.schedule
union all
select 'ticks', count(*) from tenure.tick
union all
select 'ends of the feed', count(*) from tenure.feed
union all
select 'readers of the feed', count(*) from tenure.feed_reader
union all
select 'failure hooks', count(*) from tenure.failure_hook
union all
select 'statistics', count(*) from tenure.statistic;

-- name: counters
-- copy: the highest id and the highest position that were ever drawn.
select job_id, position from tenure.counter;

-- name: raise_counters
-- copy: what is drawn from now on is higher than what is copied.
update tenure.counter set job_id = max(job_id, :job_id), position = max(position, :position);

-- name: lock_copy
-- The single writer needs no lock.
select 1;

-- name: next_jobs
-- copy: the next ids, live and finished, and about how many bytes hang on each.
select n.id, n.bytes
       + coalesce((select sum(100 + coalesce(length(e.detail), 0))
                   from tenure.event e where e.job_id = n.id), 0)
       + coalesce((select coalesce(length(o.checkpoint), 0) + coalesce(length(o.notes), 0) from tenure.note o where o.job_id = n.id), 0)
       + coalesce((select sum(100 + s.bytes) from tenure.step s where s.job_id = n.id), 0)
       + (select 50 * count(*) from tenure.parent p where p.job_id = n.id) as bytes
from (
    select * from (
        select id, length(args) + coalesce(length(metadata), 0) + coalesce(length(error), 0) as bytes
        from tenure.job where id > :after and id <= :last order by id limit :most)
    union all
    select * from (
        select id, length(args) + coalesce(length(metadata), 0) + coalesce(length(error), 0)
               + coalesce(length(result), 0)
        from tenure.history where id > :after and id <= :last order by id limit :most)
    order by id limit :most) as n
order by n.id;

-- name: job_rows
select j.id, j.token, j.position, j.created_at, j.due_at, j.queued_at, j.timeout_seconds,
       j.unique_seconds, j.priority, j.attempts, j.max_attempts, j.crashes, j.features, j.needs, j.size_kb, j.held,
       j.cancel_requested, j.tenant, j.queue, j.task, j.args, j.retry, j.metadata, j.error, j.reason,
       j.parked, j.unique_scope, j.unique_key, j.unique_until, j.gate, j.gate_key,
       j.keep_succeeded_seconds, j.keep_other_seconds, j.start_by, j.finish_by
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value;

-- name: ready_rows
-- copy: the live ticket of each job. Void ones stay behind.
select r.job_id, r.queue, r.needs, r.priority, r.position, r.token, r.suspect, r.size_kb
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
     cross join tenure.ready as r on r.queue = j.queue and r.needs = j.needs
        and r.priority = j.priority and r.position = j.position and r.job_id = j.id and r.token = j.token;

-- name: due_rows
select d.job_id, d.due_at, d.token
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
     cross join tenure.due as d on d.due_at = j.due_at and d.job_id = j.id and d.token = j.token;

-- name: history_rows
select h.id, h.token, h.created_at, h.claimed_at, h.finished_at, h.duration_seconds,
       h.timeout_seconds, h.unique_seconds, h.state, h.priority, h.attempts, h.max_attempts,
       h.crashes, h.features, h.needs, h.tenant, h.queue, h.task, h.args, h.worker, h.result, h.error,
       h.reason, h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.gate, h.gate_key,
       h.keep_until, h.keep_succeeded_seconds, h.keep_other_seconds, h.start_by, h.finish_by
from json_each(:ids) as b cross join tenure.history as h on h.id = b.value;

-- name: event_rows
select e.job_id, e.at, e.token, e.kind, e.worker, e.request_id, e.detail
from json_each(:ids) as b cross join tenure.event as e on e.job_id = b.value
order by e.job_id, e.seq;

-- name: note_rows
select n.job_id, n.token, n.fraction, n.message, n.reported_at, n.checkpoint, n.saved_at, n.notes
from json_each(:ids) as b cross join tenure.note as n on n.job_id = b.value;

-- name: step_rows
select s.job_id, s.name, s.n, s.token, s.recorded_at, s.bytes, s.function, s.result
from json_each(:ids) as b cross join tenure.step as s on s.job_id = b.value
order by s.job_id, s.n;

-- name: parent_rows
select p.job_id, p.parent_id, p.parent_state
from json_each(:ids) as b cross join tenure.parent as p on p.job_id = b.value
order by p.job_id, p.parent_id;

-- name: write_job
-- copy: one row of each table at a time; values are bound in this order.
insert into tenure.job (
    id, token, position, created_at, due_at, queued_at, timeout_seconds, unique_seconds, priority,
    attempts, max_attempts, crashes, features, needs, size_kb, held, cancel_requested, tenant, queue,
    task, args, retry, metadata, error, reason, parked, unique_scope, unique_key, unique_until, gate, gate_key,
    keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_ready
-- copy: the tickets of ready jobs.
insert into tenure.ready (job_id, queue, needs, priority, position, token, suspect, size_kb)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_due
-- copy: the tickets of scheduled jobs.
insert into tenure.due (job_id, due_at, token) values (?, ?, ?);

-- name: write_history
-- copy: finished jobs.
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds,
    unique_seconds, state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue,
    task, args, worker, result, error, reason, retry, metadata, unique_scope, unique_key, unique_until,
    gate, gate_key, keep_until, keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_event
-- copy: the target draws a new `seq`, which only gives the order of the events of a job.
insert into tenure.event (job_id, at, token, kind, worker, request_id, detail) values (?, ?, ?, ?, ?, ?, ?);

-- name: write_note
-- copy: progress and checkpoints.
insert into tenure.note (job_id, token, fraction, message, reported_at, checkpoint, saved_at, notes)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_step
-- copy: recorded steps.
insert into tenure.step (job_id, name, n, token, recorded_at, bytes, function, result)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_parent
-- copy: which job waits for which parent.
insert into tenure.parent (job_id, parent_id, parent_state) values (?, ?, ?);

-- name: next_unique_key
select tenant, scope, key from tenure.unique_key
where (tenant, scope, key) > (:tenant, :scope, :key)
order by tenant, scope, key limit :most;

-- name: unique_key_rows
select k.tenant, k.scope, k.key, k.job_id, k.until, k.fingerprint, k.expires_at, k.outcome
from json_each(:rows) as b
     cross join tenure.unique_key as k on k.tenant = b.value ->> 'tenant'
        and k.scope = b.value ->> 'scope' and k.key = b.value ->> 'key';

-- name: write_unique_key
-- copy: keys that are held.
insert into tenure.unique_key (tenant, scope, key, job_id, until, fingerprint, expires_at, outcome)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_queue
select name from tenure.queue where name > :name order by name limit :most;

-- name: queue_rows
select q.name, q.paused_at, q.reason
from json_each(:rows) as b cross join tenure.queue as q on q.name = b.value ->> 'name';

-- name: write_queue
-- copy: paused queues.
insert into tenure.queue (name, paused_at, reason) values (?, ?, ?);

-- name: gated_rows
-- copy: the live ticket of each job at a gate.
select g.job_id, g.queue, g.gate, g.key, g.priority, g.position, g.token, g.suspect, g.needs, g.size_kb
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
     cross join tenure.gated as g on g.queue = j.queue and g.gate = j.gate and g.key = j.gate_key
        and g.priority = j.priority and g.position = j.position and g.job_id = j.id and g.token = j.token;

-- name: write_gated
-- copy: the tickets of jobs at gates.
insert into tenure.gated (job_id, queue, gate, key, priority, position, token, suspect, needs, size_kb)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_gate
select name from tenure.gate where name > :name order by name limit :most;

-- name: gate_rows
select g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed, g.by_hand, g.declared
from json_each(:rows) as b cross join tenure.gate as g on g.name = b.value ->> 'name';

-- name: write_gate
-- copy: what gates allow.
insert into tenure.gate (name, max_running, rate, per_seconds, burst, keyed, by_hand, declared)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_schedule
select tenant, name from tenure.schedule
where (tenant, name) > (:tenant, :name)
order by tenant, name limit :most;

-- name: schedule_rows
select s.tenant, s.name, s.next_at, s.done_until, s.last_at, s.last_job_id, s.created_at,
       s.changed_at, s.paused_at, s.reason, s.timing, s.job, s.declared
from json_each(:rows) as b
     cross join tenure.schedule as s on s.tenant = b.value ->> 'tenant'
        and s.name = b.value ->> 'name';

-- name: write_schedule
-- copy: schedules, up to where their ticks are dealt with.
insert into tenure.schedule (
    tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
    reason, timing, job, declared)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_tick
select tenant, schedule, tick_at from tenure.tick
where (tenant, schedule, tick_at) > (:tenant, :schedule, :tick_at)
order by tenant, schedule, tick_at limit :most;

-- name: tick_rows
select t.tenant, t.schedule, t.tick_at, t.fired_at, t.job_id, t.triggered
from json_each(:rows) as b
     cross join tenure.tick as t on t.tenant = b.value ->> 'tenant'
        and t.schedule = b.value ->> 'schedule' and t.tick_at = b.value ->> 'tick_at';

-- name: write_tick
-- copy: ticks that were dealt with.
insert into tenure.tick (tenant, schedule, tick_at, fired_at, job_id, triggered)
values (?, ?, ?, ?, ?, ?);

-- name: next_workflows
select id from tenure.workflow where id > :after order by id limit :most;

-- name: workflow_rows
select id, created_at, ended_at, paused_at, cancelled_at, finaliser_id, failed, cancelled, stopping,
       tenant, name, key, on_failure, outcome, reason
from tenure.workflow
where id in (select value from json_each(:ids));

-- name: write_workflow
-- copy: workflows.
insert into tenure.workflow (
    id, created_at, ended_at, paused_at, cancelled_at, finaliser_id, failed, cancelled, stopping,
    tenant, name, key, on_failure, outcome, reason)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: node_rows
select n.job_id, n.workflow_id, n.name, n.rule, n.added_by, n.paused
from json_each(:ids) as b cross join tenure.node as n on n.job_id = b.value;

-- name: next_statistic
select span, at, queue, task, outcome, process from tenure.statistic
where (span, at, queue, task, outcome, process)
      > (cast(:span as integer), :at, :queue, :task, :outcome, :process)
order by span, at, queue, task, outcome, process limit :most;

-- name: statistic_rows
select s.span, s.at, s.queue, s.task, s.outcome, s.process, s.ends, s.wait_seconds, s.run_seconds,
       s.waits, s.runs
from json_each(:rows) as b
     cross join tenure.statistic as s
     on s.span = cast(b.value ->> 'span' as integer) and s.at = b.value ->> 'at'
        and s.queue = b.value ->> 'queue' and s.task = b.value ->> 'task'
        and s.outcome = b.value ->> 'outcome' and s.process = b.value ->> 'process';

-- name: write_statistic
-- copy: what has ended.
insert into tenure.statistic (
    span, at, queue, task, outcome, process, ends, wait_seconds, run_seconds, waits, runs)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_feed
select place from tenure.feed where place > :after order by place limit :most;

-- name: feed_rows
select f.place, f.job_id, f.token, f.state, f.attempts, f.finished_at, f.duration_seconds, f.tenant,
       f.queue, f.task, f.worker, f.reason, f.error_type, f.error_message
from json_each(:ids) as b cross join tenure.feed as f on f.place = b.value;

-- name: write_feed
-- copy: the ends that readers have not passed.
insert into tenure.feed (
    place, job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker,
    reason, error_type, error_message)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_feed_end
select name from tenure.feed_end where name > :name order by name limit :most;

-- name: feed_end_rows
select e.name, e.place
from json_each(:rows) as b cross join tenure.feed_end as e on e.name = b.value ->> 'name';

-- name: write_feed_end
-- copy: the last place of the feed.
insert into tenure.feed_end (name, place) values (?, ?);

-- name: next_feed_reader
select tenant, name from tenure.feed_reader
where (tenant, name) > (:tenant, :name)
order by tenant, name limit :most;

-- name: feed_reader_rows
select r.tenant, r.name, r.position, r.created_at, r.seen_at, r.lost_at, r.kept_seconds
from json_each(:rows) as b
     cross join tenure.feed_reader as r on r.tenant = b.value ->> 'tenant' and r.name = b.value ->> 'name';

-- name: write_feed_reader
-- copy: readers of the feed, at their positions.
insert into tenure.feed_reader (tenant, name, position, created_at, seen_at, lost_at, kept_seconds)
values (?, ?, ?, ?, ?, ?, ?);

-- name: next_failure_hook
select task, hook from tenure.failure_hook
where (task, hook) > (:task, :hook)
order by task, hook limit :most;

-- name: failure_hook_rows
select h.task, h.hook, h.parameter, h.job
from json_each(:rows) as b
     cross join tenure.failure_hook as h on h.task = b.value ->> 'task' and h.hook = b.value ->> 'hook';

-- name: write_failure_hook
-- copy: failure hooks.
insert into tenure.failure_hook (task, hook, parameter, job) values (?, ?, ?, ?);
