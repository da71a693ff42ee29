-- name: identity
-- copy: which tables these are, so that nothing is copied onto itself.
select pg_postmaster_start_time()::text, current_database()::text, 'tenure.job'::regclass::oid::text;

-- name: first_running
-- copy: is anything on a lease?
select count(*) as jobs, min(id) as first_id from tenure.live where state = 'running';

-- name: count_all
-- copy: everything that is copied, counted.
select state::text as kind, count(*) as rows from tenure.live group by state
union all
select state::text, count(*) from tenure.history group by state
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
select case when i.is_called then i.last_value else 0 end as job_id,
       case when p.is_called then 1000 * p.last_value + 999 else 0 end as position
from tenure.job_id as i, tenure.position as p;

-- name: raise_counters
-- copy: what is drawn from now on is higher than what is copied.
select case when :job_id::bigint > case when i.is_called then i.last_value else 0 end
            then setval('tenure.job_id', :job_id::bigint) end,
       case when :position::bigint / 1000 > case when p.is_called then p.last_value else 0 end
            then setval('tenure.position', :position::bigint / 1000) end
from tenure.job_id as i, tenure.position as p;

-- name: lock_copy
-- copy: one at a time. History has no unique index on the id that would tell two of them apart.
select pg_advisory_xact_lock(7364882, 'tenure.job'::regclass::oid::int);

-- name: next_jobs
-- copy: the next ids, live and finished, and about how many bytes hang on each.
select n.id, n.bytes
       + coalesce((select sum(100 + coalesce(octet_length(e.detail::text), 0))
                   from tenure.event e where e.job_id = n.id), 0)::bigint
       + coalesce((select coalesce(octet_length(o.checkpoint::text), 0) + coalesce(octet_length(o.notes::text), 0)
                   from tenure.note o where o.job_id = n.id), 0)
       + coalesce((select sum(100 + s.bytes) from tenure.step s where s.job_id = n.id), 0)
       + (select 50 * count(*) from tenure.parent p where p.job_id = n.id) as bytes
from (
    (select id, octet_length(args::text) + coalesce(octet_length(metadata::text), 0)
            + coalesce(octet_length(error::text), 0) as bytes
     from tenure.job where id > :after and id <= :last order by id limit :most)
    union all
    (select id, octet_length(args::text) + coalesce(octet_length(metadata::text), 0)
            + coalesce(octet_length(error::text), 0) + coalesce(octet_length(result::text), 0)
     from tenure.history where id > :after and id <= :last order by id limit :most)
    order by id limit :most) as n
order by n.id;

-- name: job_rows
select id, token, position, created_at, due_at, queued_at, timeout_seconds, unique_seconds, priority,
       attempts, max_attempts, crashes, features, needs, size_kb, held, cancel_requested, tenant, queue, task,
       args::text as args, retry::text as retry, metadata::text as metadata, error::text as error, reason, parked, unique_scope,
       unique_key, unique_until, gate, gate_key, keep_succeeded_seconds, keep_other_seconds, start_by,
       finish_by
from tenure.job
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: ready_rows
-- copy: the live ticket of each job. Void ones stay behind.
select r.job_id, r.queue, r.needs, r.priority, r.position, r.token, r.suspect, r.size_kb
from (select id, token, queue, needs, priority, position from tenure.job
      where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))) as j,
     lateral (select * from tenure.ready
              where queue = j.queue and needs = j.needs and priority = j.priority
                and position = j.position
                and job_id = j.id and token = j.token offset 0) as r;

-- name: due_rows
select d.job_id, d.due_at, d.token
from (select id, token, due_at from tenure.job
      where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))) as j,
     lateral (select * from tenure.due
              where due_at = j.due_at and job_id = j.id and token = j.token offset 0) as d;

-- name: history_rows
select id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds,
       unique_seconds, state::text as state, priority, attempts, max_attempts, crashes, features, needs, tenant,
       queue, task, args::text as args, worker, result::text as result, error::text as error, reason, retry::text as retry,
       metadata::text as metadata, unique_scope, unique_key, unique_until, gate, gate_key,
       keep_until, keep_succeeded_seconds, keep_other_seconds, start_by, finish_by
from tenure.history
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: event_rows
select job_id, at, token, kind, worker, request_id, detail::text as detail
from tenure.event
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by job_id, seq;

-- name: note_rows
select job_id, token, fraction, message, reported_at, checkpoint::text as checkpoint, saved_at,
       notes::text as notes
from tenure.note
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: step_rows
select job_id, name, n, token, recorded_at, bytes, function, result::text as result
from tenure.step
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by job_id, n;

-- name: parent_rows
select job_id, parent_id, parent_state::text as parent_state
from tenure.edge
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
order by job_id, parent_id;

-- name: write_job
-- copy: COPY keeps JSON to the letter, which a batch taken apart by the server does not.
copy tenure.job (
    id, token, position, created_at, due_at, queued_at, timeout_seconds, unique_seconds, priority,
    attempts, max_attempts, crashes, features, needs, size_kb, held, cancel_requested, tenant, queue,
    task, args, retry, metadata, error, reason, parked, unique_scope, unique_key, unique_until, gate, gate_key,
    keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
from stdin;

-- name: write_ready
-- copy: the tickets of ready jobs.
copy tenure.ready (job_id, queue, needs, priority, position, token, suspect, size_kb) from stdin;

-- name: write_due
-- copy: the tickets of scheduled jobs.
copy tenure.due (job_id, due_at, token) from stdin;

-- name: write_history
-- copy: finished jobs.
copy tenure.history (
    id, token, created_at, claimed_at, finished_at, duration_seconds, timeout_seconds,
    unique_seconds, state, priority, attempts, max_attempts, crashes, features, needs, tenant, queue,
    task, args, worker, result, error, reason, retry, metadata, unique_scope, unique_key, unique_until,
    gate, gate_key, keep_until, keep_succeeded_seconds, keep_other_seconds, start_by, finish_by)
from stdin;

-- name: write_event
-- copy: the target draws a new `seq`, which only gives the order of the events of a job.
copy tenure.event (job_id, at, token, kind, worker, request_id, detail) from stdin;

-- name: write_note
-- copy: progress and checkpoints.
copy tenure.note (job_id, token, fraction, message, reported_at, checkpoint, saved_at, notes) from stdin;

-- name: write_step
-- copy: recorded steps.
copy tenure.step (job_id, name, n, token, recorded_at, bytes, function, result) from stdin;

-- name: write_parent
-- copy: which job waits for which parent.
copy tenure.parent (job_id, parent_id, parent_state) from stdin;

-- name: next_unique_key
select tenant, scope, key from tenure.unique_key
where (tenant, scope, key) > (:tenant, :scope, :key)
order by tenant, scope, key limit :most;

-- name: unique_key_rows
select k.tenant, k.scope, k.key, k.job_id, k.until, k.fingerprint, k.expires_at, k.outcome
from json_to_recordset(:rows::json) as b (tenant text, scope text, key text),
     lateral (select * from tenure.unique_key u
              where u.tenant = b.tenant and u.scope = b.scope and u.key = b.key offset 0) as k;

-- name: write_unique_key
-- copy: keys that are held.
copy tenure.unique_key (tenant, scope, key, job_id, until, fingerprint, expires_at, outcome) from stdin;

-- name: next_queue
select name from tenure.queue where name > :name order by name limit :most;

-- name: queue_rows
select q.name, q.paused_at, q.reason
from json_to_recordset(:rows::json) as b (name text),
     lateral (select * from tenure.queue where name = b.name offset 0) as q;

-- name: write_queue
-- copy: paused queues.
copy tenure.queue (name, paused_at, reason) from stdin;

-- name: gated_rows
-- copy: the live ticket of each job at a gate.
select g.job_id, g.queue, g.gate, g.key, g.priority, g.position, g.token, g.suspect, g.needs, g.size_kb
from (select id, token, queue, gate, gate_key, priority, position from tenure.job
      where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
        and gate is not null) as j,
     lateral (select * from tenure.gated
              where queue = j.queue and gate = j.gate and key = j.gate_key
                and priority = j.priority and position = j.position
                and job_id = j.id and token = j.token offset 0) as g;

-- name: write_gated
-- copy: the tickets of jobs at gates.
copy tenure.gated (job_id, queue, gate, key, priority, position, token, suspect, needs, size_kb)
from stdin;

-- name: next_gate
select name from tenure.gate where name > :name order by name limit :most;

-- name: gate_rows
select g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed, g.by_hand, g.declared::text as declared
from json_to_recordset(:rows::json) as b (name text),
     lateral (select * from tenure.gate where name = b.name offset 0) as g;

-- name: write_gate
-- copy: what gates allow.
copy tenure.gate (name, max_running, rate, per_seconds, burst, keyed, by_hand, declared) from stdin;

-- name: next_schedule
select tenant, name from tenure.schedule
where (tenant, name) > (:tenant, :name)
order by tenant, name limit :most;

-- name: schedule_rows
select s.tenant, s.name, s.next_at, s.done_until, s.last_at, s.last_job_id, s.created_at,
       s.changed_at, s.paused_at, s.reason, s.timing::text as timing, s.job::text as job, s.declared::text as declared
from json_to_recordset(:rows::json) as b (tenant text, name text),
     lateral (select * from tenure.schedule
              where tenant = b.tenant and name = b.name offset 0) as s;

-- name: write_schedule
-- copy: schedules, up to where their ticks are dealt with.
copy tenure.schedule (
    tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
    reason, timing, job, declared)
from stdin;

-- name: next_tick
select tenant, schedule, tick_at from tenure.tick
where (tenant, schedule, tick_at) > (:tenant, :schedule, :tick_at::timestamptz)
order by tenant, schedule, tick_at limit :most;

-- name: tick_rows
select t.tenant, t.schedule, t.tick_at, t.fired_at, t.job_id, t.triggered
from json_to_recordset(:rows::json) as b (tenant text, schedule text, tick_at timestamptz),
     lateral (select * from tenure.tick
              where tenant = b.tenant and schedule = b.schedule and tick_at = b.tick_at
              offset 0) as t;

-- name: write_tick
-- copy: ticks that were dealt with.
copy tenure.tick (tenant, schedule, tick_at, fired_at, job_id, triggered) from stdin;

-- name: next_workflows
select id from tenure.workflow where id > :after order by id limit :most;

-- name: workflow_rows
select id, created_at, ended_at, paused_at, cancelled_at, finaliser_id, failed, cancelled, stopping,
       tenant, name, key, on_failure, outcome, reason
from tenure.workflow
where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: write_workflow
-- copy: workflows.
copy tenure.workflow (
    id, created_at, ended_at, paused_at, cancelled_at, finaliser_id, failed, cancelled, stopping,
    tenant, name, key, on_failure, outcome, reason)
from stdin;

-- name: node_rows
select job_id, workflow_id, name, rule, added_by, paused
from tenure.node
where job_id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: next_statistic
select span, at, queue, task, outcome, process from tenure.statistic
where (span, at, queue, task, outcome, process)
      > (:span::int, :at::timestamptz, :queue, :task, :outcome, :process)
order by span, at, queue, task, outcome, process limit :most;

-- name: statistic_rows
select s.span, s.at, s.queue, s.task, s.outcome, s.process, s.ends, s.wait_seconds, s.run_seconds,
       s.waits::text as waits, s.runs::text as runs
from json_to_recordset(:rows::json) as b (
         span int, at timestamptz, queue text, task text, outcome text, process text),
     lateral (select * from tenure.statistic
              where span = b.span and at = b.at and queue = b.queue and task = b.task
                and outcome = b.outcome and process = b.process offset 0) as s;

-- name: write_statistic
-- copy: what has ended.
copy tenure.statistic (
    span, at, queue, task, outcome, process, ends, wait_seconds, run_seconds, waits, runs)
from stdin;

-- name: next_feed
select place from tenure.feed where place > :after order by place limit :most;

-- name: feed_rows
select place, job_id, token, state::text as state, attempts, finished_at, duration_seconds, tenant,
       queue, task, worker, reason, error_type, error_message
from tenure.feed
where place = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: write_feed
-- copy: the ends that readers have not passed.
copy tenure.feed (
    place, job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task, worker,
    reason, error_type, error_message)
from stdin;

-- name: next_feed_end
select name from tenure.feed_end where name > :name order by name limit :most;

-- name: feed_end_rows
select e.name, e.place
from json_to_recordset(:rows::json) as b (name text),
     lateral (select * from tenure.feed_end where name = b.name offset 0) as e;

-- name: write_feed_end
-- copy: the last place of the feed.
copy tenure.feed_end (name, place) from stdin;

-- name: next_feed_reader
select tenant, name from tenure.feed_reader
where (tenant, name) > (:tenant, :name)
order by tenant, name limit :most;

-- name: feed_reader_rows
select r.tenant, r.name, r.position, r.created_at, r.seen_at, r.lost_at, r.kept_seconds
from json_to_recordset(:rows::json) as b (tenant text, name text),
     lateral (select * from tenure.feed_reader where tenant = b.tenant and name = b.name offset 0) as r;

-- name: write_feed_reader
-- copy: readers of the feed, at their positions.
copy tenure.feed_reader (tenant, name, position, created_at, seen_at, lost_at, kept_seconds) from stdin;

-- name: next_failure_hook
select task, hook from tenure.failure_hook
where (task, hook) > (:task, :hook)
order by task, hook limit :most;

-- name: failure_hook_rows
select h.task, h.hook, h.parameter, h.job::text as job
from json_to_recordset(:rows::json) as b (task text, hook text),
     lateral (select * from tenure.failure_hook where task = b.task and hook = b.hook offset 0) as h;

-- name: write_failure_hook
-- copy: failure hooks.
copy tenure.failure_hook (task, hook, parameter, job) from stdin;
