-- Gates: which jobs wait there, and which may pass. There is one writer, so no locks are needed.

-- name: add_gate_tickets
-- enqueue, promote, retry, snooze, release, sweep, unhold, move, free, replay: write a ticket for
-- each of these jobs that is queued now, and a turn for each line, because this may also end an
-- attempt. The position grows, because the bell watches it.
insert into tenure.gated (queue, gate, key, priority, position, job_id, token, suspect, needs, size_kb)
select j.queue, j.gate, j.gate_key, j.priority, j.position, j.id, j.token, j.crashes > 0, j.needs,
       j.size_kb
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
where j.gate is not null and j.position is not null and j.parked is null and j.due_at is null;
update tenure.counter set turn = turn + json_array_length(:ids), position = position + 1;
insert into tenure.turn (queue, gate, priority, n, key)
select queue, gate, priority,
       (select c.turn from tenure.counter c) - json_array_length(:ids) + row_number() over (order by position),
       gate_key
from (select j.queue, j.gate, j.gate_key, min(j.priority) as priority, min(j.position) as position
      from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
      where j.gate is not null
      group by j.queue, j.gate, j.gate_key);

-- name: leave_gates
-- succeed, fail, skip, abort, cancel, sweep: write a turn for the line of each ended attempt, if the
-- line has a ticket. There is one writer, so a job that is enqueued later writes a turn of its own.
-- The position grows, because the bell watches it.
update tenure.counter set turn = turn + json_array_length(:rows), position = position + 1;
insert into tenure.turn (queue, gate, priority, n, key)
select queue, gate, priority, n, key
from (select b.value ->> 'queue' as queue, b.value ->> 'gate' as gate, b.value ->> 'key' as key,
             (select c.turn from tenure.counter c) - json_array_length(:rows) + b.key + 1 as n,
             (select g.priority from tenure.gated g
              where g.queue = b.value ->> 'queue' and g.gate = b.value ->> 'gate'
                and g.key = b.value ->> 'key'
              order by g.priority, g.position limit 1) as priority
      from json_each(:rows) as b)
where priority is not null;

-- name: open_gates
-- claim: the gates with waiting jobs in this queue, and with each the first ticket of the queue that
-- needs no gate, of those that are wanted.
with recursive hop (gate) as (
    select * from (select gate from tenure.turn where queue = :queue order by gate limit 1)
    union all
    select (select t.gate from tenure.turn t
            where t.queue = :queue and t.gate > hop.gate order by t.gate limit 1)
    from hop where hop.gate is not null
), head (priority, position) as (
    select * from (
        select (select r.priority from tenure.ready r where r.queue = :queue and r.needs = n.value
                order by r.priority, r.position limit 1) as priority,
               (select r.position from tenure.ready r where r.queue = :queue and r.needs = n.value
                order by r.priority, r.position limit 1) as position
        from json_each(:needs) as n)
    where priority is not null order by priority, position limit 1
)
select :queue, hop.gate, g.max_running, g.rate, coalesce(g.per_seconds, 1), g.burst,
       coalesce(g.keyed, 0),
       (select priority from head), (select position from head), :now
from hop left join tenure.gate as g on g.name = hop.gate
where hop.gate is not null
  and not exists (select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null);

-- name: due_turns
-- claim: the turns of a gate behind (past_priority, past_n).
select priority, n, key from tenure.turn
where queue = :queue and gate = :gate and (priority, n) > (:past_priority, :past_n)
  and (not_before is null or not_before <= :now)
order by priority, n limit :turns;

-- name: passed_gate
-- claim: for each worker, the number of jobs that have passed the gate. Some of them may have
-- finished.
select worker, sum(passed), 0 from tenure.gate_hold where gate = :gate group by worker;

-- name: live_at_gate
-- claim: for each worker, the number of jobs that have passed the gate and run.
select worker, sum(live), 0 from tenure.gate_live where gate = :gate group by worker;

-- name: live_in_line
-- claim: the same for one key, and how many of these jobs are of one queue.
select worker, sum(live), sum(live) filter (where queue = :queue) from tenure.gate_live
where gate = :gate and key = :key group by worker;

-- name: shares
-- claim: the permits of workers that have more jobs than permits.
select worker, permits from tenure.gate_share where gate = :gate and key = :key;

-- name: look_at_bucket
-- claim: what a bucket held, and how long ago.
select starts_left, (:now - filled_at) / 1e6 from tenure.bucket where gate = :gate and key = :key;

-- name: head_of_line
-- claim: the first tickets of a line.
select priority, position, suspect, needs, size_kb from tenure.gated
where queue = :queue and gate = :gate and key = :key order by priority, position limit :most;

-- name: take_gated
-- claim: up to `count` jobs from the head of a line, at most one of them a suspect. A void ticket is
-- returned without its job.
select t.queue, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested as ends, t.needs, j.queued_at, j.start_by
from (select * from tenure.gated
      where queue = :queue and gate = :gate and key = :key and (not suspect or position = :suspect)
      order by priority, position limit :count) as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.position = t.position
order by t.priority, t.position;

-- name: drop_gated
-- claim: consume their tickets, up to the last of them.
delete from tenure.gated
where queue = :queue and gate = :gate and key = :key and (priority, position) <= (:priority, :position)
  and (not suspect or position = :suspect);

-- name: hold_at_gates
-- claim: the jobs that have passed on a lease. Values are bound in this order.
insert into tenure.gate_hold (lease, queue, gate, key, worker, passed, jobs)
values (?, ?, ?, ?, ?, ?, ?);

-- name: permits_given
-- claim, repeated: does not happen on SQLite.
select 1 where false;

-- name: share_permits
-- claim: this worker has more jobs than permits there. It runs no more of them at once than it has
-- permits.
insert or replace into tenure.gate_share (gate, key, worker, permits)
select b.value ->> 'gate', b.value ->> 'key', :worker, b.value ->> 'permits' from json_each(:rows) as b;

-- name: end_shares
-- claim: this worker has a permit for each of its jobs there again.
delete from tenure.gate_share
where worker = :worker
  and (gate, key) in (select b.value ->> 'gate', b.value ->> 'key' from json_each(:rows) as b);

-- name: drop_turns
-- claim: delete the turns that are used up.
delete from tenure.turn
where (queue, gate, priority, n) in (
    select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'priority', b.value ->> 'n'
    from json_each(:rows) as b);

-- name: drop_spare_turns
-- claim: delete later turns of lines whose first turn is still there.
delete from tenure.turn
where (queue, gate, priority, n) in (
    select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'priority', b.value ->> 'n'
    from json_each(:rows) as b cross join tenure.turn as f
         on f.queue = b.value ->> 'queue' and f.gate = b.value ->> 'gate'
            and f.priority = b.value ->> 'first_priority' and f.n = b.value ->> 'first_n');

-- name: add_turns
-- claim: a turn at the end for each line that has more tickets. At most one turn of a line waits for
-- its next start.
update tenure.counter set turn = turn + json_array_length(:rows);
insert or ignore into tenure.turn (queue, gate, priority, n, key, not_before)
select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'priority',
       (select c.turn from tenure.counter c) - json_array_length(:rows) + b.key + 1,
       b.value ->> 'key', :now + cast(1e6 * (b.value ->> 'wait') as integer)
from json_each(:rows) as b;

-- name: fill_buckets
-- claim: how many more jobs may start by the rates.
insert or replace into tenure.bucket (gate, key, starts_left, filled_at)
select b.value ->> 'gate', b.value ->> 'key', b.value ->> 'starts_left', :now from json_each(:rows) as b;

-- name: declared_gates
-- gate: the limits that code declares.
select name, declared from tenure.gate
where declared is not null and name in (select value from json_each(:names));

-- name: make_gate
-- gate: `lock_gate`, for a gate that may not exist yet.
insert into tenure.gate (name) values (:name)
on conflict (name) do update set name = excluded.name
returning name, max_running, rate, per_seconds, burst, keyed, by_hand, declared;

-- name: set_gate
-- gate: the limits from now on.
insert or replace into tenure.gate (
    name, max_running, rate, per_seconds, burst, keyed, by_hand, declared)
values (:name, :max_running, :rate, :per_seconds, :burst, :keyed, :by_hand, :declared);

-- name: lock_gate
select name, max_running, rate, per_seconds, burst, keyed, by_hand, declared
from tenure.gate where name = :name;

-- name: reopen_gate
-- gate: every line with tickets gets a turn, and no turn waits for its next start.
delete from tenure.turn where gate = :name and not_before is not null;
insert into tenure.turn (queue, gate, priority, n, key)
select queue, gate, priority, (select c.turn from tenure.counter c) + row_number() over (order by position),
       key
from (select queue, gate, key, min(priority) as priority, min(position) as position
      from tenure.gated where gate = :name group by queue, gate, key);
update tenure.counter
set position = position + 1, turn = max(turn, coalesce((select max(n) from tenure.turn where gate = :name), 0));

-- name: drop_shares
-- gate: the limits have changed. Until a worker claims there again, each of its jobs uses a permit.
delete from tenure.gate_share where gate = :name;

-- name: turned_queues
select distinct queue from tenure.gated where gate = :name;

-- name: drop_gate
-- gate: delete a gate without waiting or running jobs.
delete from tenure.gate
where name = :name
  and not exists (select 1 from tenure.gated w where w.gate = :name)
  and not exists (select 1 from tenure.gate_live h where h.gate = :name and h.live > 0)
returning name;

-- name: drop_buckets
-- gate: delete the buckets of a gate that is gone.
delete from tenure.bucket where gate = :name;

-- name: list_gates
select g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed, g.by_hand, g.declared,
       coalesce((select sum(used) from tenure.gate_used u where u.gate = g.name), 0),
       (select count(*) from tenure.gated w where w.gate = g.name),
       (select count(distinct w.key) from tenure.gated w where w.gate = g.name)
from tenure.gate g
where :name is null or g.name = :name
order by g.name;

-- name: busiest_lines
select l.queue, l.key, l.waiting,
       coalesce((select sum(used) from tenure.gate_used u where u.gate = :name and u.key = l.key),
                (select sum(live) from tenure.gate_live h where h.gate = :name and h.key = l.key), 0)
from (select queue, key, count(*) as waiting from tenure.gated where gate = :name
      group by queue, key) as l
order by l.waiting desc, l.key limit :most;

-- name: before_job
select count(*) from (
    select 1 from tenure.gated g
    where g.queue = :queue and g.gate = :gate and g.key = :key
      and (g.priority, g.position) < (:priority, :position)
    limit :most);

-- name: gate_of_job
select j.position, g.max_running, g.rate, coalesce(g.per_seconds, 1), g.burst, coalesce(g.keyed, 0),
       coalesce((select sum(used) from tenure.gate_used u
                 where u.gate = j.gate and u.key = case when g.keyed then j.gate_key else '' end), 0),
       k.starts_left, (:now - k.filled_at) / 1e6
from tenure.job j
     left join tenure.gate g on g.name = j.gate
     left join tenure.bucket k
         on k.gate = j.gate and k.key = case when g.keyed then j.gate_key else '' end
where j.id = :id and j.gate is not null;

-- name: heal_holds
-- sweep: delete the rows that leases which are gone have left, and the shares of workers without jobs
-- at the gate.
delete from tenure.gate_hold as hold
where not exists (select 1 from tenure.lease l where l.id = hold.lease)
returning queue;
delete from tenure.gate_share as share
where not exists (select 1 from tenure.gate_hold h where h.gate = share.gate and h.worker = share.worker);

-- name: heal_turns
-- sweep: a line with tickets has a turn, or a running job whose end will write one.
insert into tenure.turn (queue, gate, priority, n, key)
select l.queue, l.gate,
       (select min(g.priority) from tenure.gated g
        where g.queue = l.queue and g.gate = l.gate and g.key = l.key),
       (select c.turn from tenure.counter c) + row_number() over (order by l.queue, l.gate, l.key), l.key
from (select queue, gate, key from tenure.gated
      except select queue, gate, key from tenure.turn
      except select queue, gate, key from tenure.gate_live where live > 0) as l
returning queue;
update tenure.counter
set position = position + 1, turn = max(turn, coalesce((select max(n) from tenure.turn), 0))
where exists (select 1 from tenure.turn where n > turn);

-- name: end_waits
-- sweep: claims look again at lines that wait for their next start.
update tenure.turn set not_before = null where not_before is not null;

-- name: any_gate
-- Has a gate been declared, or named by a job?
select name from tenure.gate union all select gate from tenure.turn limit 1;

-- name: peek_gates
-- peek: the queues with turns that a claim can use now, and the seconds until a line may start its
-- next job.
select q.value,
       exists (select 1 from tenure.turn n where n.queue = q.value
               and (n.not_before is null or n.not_before <= :now)),
       (select min(n.not_before) - :now from tenure.turn n
        where n.queue = q.value and n.not_before > :now) / 1e6
from json_each(:queues) as q
where not exists (select 1 from tenure.queue p where p.name = q.value and p.paused_at is not null);
