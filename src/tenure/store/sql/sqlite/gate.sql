-- Who waits at gates, and who may pass. The single writer needs no locks.

-- name: stand_at_gates
-- enqueue, promote, retry, snooze, release, sweep, unhold, move, free, replay: tickets of jobs that
-- have just been put in line, and a turn for each line.
insert into tenure.gated (queue, gate, key, priority, place, job_id, token, suspect)
select j.queue, j.gate, j.gate_key, j.priority, j.place, j.id, j.token, j.crashes > 0
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
where j.gate is not null and j.place is not null and j.parked is null and j.due_at is null;
update tenure.counter set turn = turn + json_array_length(:ids);
insert into tenure.turn (queue, gate, priority, n, key)
select queue, gate, priority,
       (select c.turn from tenure.counter c) - json_array_length(:ids) + row_number() over (order by place),
       gate_key
from (select j.queue, j.gate, j.gate_key, min(j.priority) as priority, min(j.place) as place
      from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
      where j.gate is not null and j.place is not null and j.parked is null and j.due_at is null
      group by j.queue, j.gate, j.gate_key);

-- name: leave_gates
-- succeed, fail, skip, abort, cancel, retry, snooze, release, sweep: the end of an attempt frees what
-- it held, and writes a turn. The bell listens to places.
update tenure.counter set turn = turn + json_array_length(:ids), place = place + 1;
insert into tenure.turn (queue, gate, priority, n, key)
select f.queue, f.gate,
       coalesce((select g.priority from tenure.gated g
                 where g.queue = f.queue and g.gate = f.gate and g.key = f.key
                 order by g.priority, g.place limit 1), 0),
       (select c.turn from tenure.counter c) - json_array_length(:ids) + row_number() over (), f.key
from (select distinct h.queue, h.gate, h.key
      from json_each(:ids) as b cross join tenure.gate_hold as h on h.job_id = b.value) as f;
delete from tenure.gate_hold where job_id in (select value from json_each(:ids));

-- name: open_gates
-- claim: the gates at which somebody waits in this queue, and the head of its line of jobs without a
-- gate.
with recursive hop (gate) as (
    select * from (select gate from tenure.turn where queue = :queue order by gate limit 1)
    union all
    select (select t.gate from tenure.turn t
            where t.queue = :queue and t.gate > hop.gate order by t.gate limit 1)
    from hop where hop.gate is not null
)
select :queue, hop.gate, g.max_running, g.rate, coalesce(g.per_seconds, 1), g.burst,
       coalesce(g.keyed, 0),
       (select priority from tenure.ready where queue = :queue order by priority, place limit 1),
       (select place from tenure.ready where queue = :queue order by priority, place limit 1), :now
from hop left join tenure.gate as g on g.name = hop.gate
where hop.gate is not null
  and not exists (select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null);

-- name: due_turns
-- claim: whose turn it is at a gate.
select priority, n, key from tenure.turn
where queue = :queue and gate = :gate and (not_before is null or not_before <= :now)
order by priority, n limit :turns;

-- name: running_at_gate
-- claim: how many have passed it, in all.
select count(*) from tenure.gate_hold where gate = :gate;

-- name: look_at_line
-- claim: how many of a line run, whether some of this queue do, and what its bucket held.
select (select count(*) from tenure.gate_hold where gate = :gate and key = :key),
       exists (select 1 from tenure.gate_hold where gate = :gate and key = :key and queue = :queue),
       (select tokens from tenure.bucket where gate = :gate and key = :bucket),
       (select (:now - filled_at) / 1e6 from tenure.bucket where gate = :gate and key = :bucket);

-- name: head_of_line
-- claim: the first tickets of a line.
select priority, place, suspect from tenure.gated
where queue = :queue and gate = :gate and key = :key order by priority, place limit :most;

-- name: take_gated
-- claim: the jobs of these tickets. A void ticket comes back without its job.
select t.queue, t.priority, t.place, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested, t.suspect
from json_each(:rows) as b
     cross join tenure.gated as t on t.queue = b.value ->> 'queue' and t.gate = b.value ->> 'gate'
        and t.key = b.value ->> 'key' and t.priority = b.value ->> 'priority'
        and t.place = b.value ->> 'place'
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.place = t.place;

-- name: drop_gated
-- claim: these tickets are consumed.
delete from tenure.gated
where (queue, gate, key, priority, place) in (
    select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'key', b.value ->> 'priority',
           b.value ->> 'place'
    from json_each(:rows) as b);

-- name: hold_at_gates
-- claim: each of these jobs holds a place at its gate as long as its attempt lasts.
insert or replace into tenure.gate_hold (job_id, token, gate, key, queue)
select j.id, j.token, j.gate, j.gate_key, j.queue
from json_each(:ids) as b cross join tenure.job as j on j.id = b.value;

-- name: drop_turns
-- claim: turns that are used up go.
delete from tenure.turn
where (queue, gate, priority, n) in (
    select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'priority', b.value ->> 'n'
    from json_each(:rows) as b);

-- name: add_turns
-- claim: lines that go on waiting, at the end of the turns. One turn of a line at most waits for a
-- token.
update tenure.counter set turn = turn + json_array_length(:rows);
insert or ignore into tenure.turn (queue, gate, priority, n, key, not_before)
select b.value ->> 'queue', b.value ->> 'gate', b.value ->> 'priority',
       (select c.turn from tenure.counter c) - json_array_length(:rows) + b.key + 1,
       b.value ->> 'key', :now + cast(1e6 * (b.value ->> 'wait') as integer)
from json_each(:rows) as b;

-- name: fill_buckets
-- claim: what is left of the tokens.
insert or replace into tenure.bucket (gate, key, tokens, filled_at)
select b.value ->> 'gate', b.value ->> 'key', b.value ->> 'tokens', :now from json_each(:rows) as b;

-- name: declared_gates
select name, declared, by_hand from tenure.gate
where name in (select value from json_each(:names));

-- name: set_gate
-- gate: what is allowed from now on.
insert or replace into tenure.gate (
    name, max_running, rate, per_seconds, burst, keyed, by_hand, declared)
values (:name, :max_running, :rate, :per_seconds, :burst, :keyed, :by_hand, :declared);

-- name: lock_gate
select name, max_running, rate, per_seconds, burst, keyed, by_hand, declared
from tenure.gate where name = :name;

-- name: reopen_gate
-- gate: everybody who waits there gets a turn, and nobody waits for a token any more.
delete from tenure.turn where gate = :name and not_before is not null;
insert into tenure.turn (queue, gate, priority, n, key)
select queue, gate, priority, (select c.turn from tenure.counter c) + row_number() over (order by place),
       key
from (select queue, gate, key, min(priority) as priority, min(place) as place
      from tenure.gated where gate = :name group by queue, gate, key);
update tenure.counter
set place = place + 1, turn = max(turn, coalesce((select max(n) from tenure.turn where gate = :name), 0));

-- name: turned_queues
select distinct queue from tenure.gated where gate = :name;

-- name: drop_gate
-- gate: forget one at which nobody waits and nothing runs.
delete from tenure.gate
where name = :name
  and not exists (select 1 from tenure.gated w where w.gate = :name)
  and not exists (select 1 from tenure.gate_hold h where h.gate = :name)
returning name;

-- name: drop_buckets
-- gate: and the tokens of one that is gone.
delete from tenure.bucket where gate = :name;

-- name: list_gates
select g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed, g.by_hand, g.declared,
       (select count(*) from tenure.gate_hold h where h.gate = g.name),
       (select count(*) from tenure.gated w where w.gate = g.name),
       (select count(distinct w.key) from tenure.gated w where w.gate = g.name)
from tenure.gate g
where :name is null or g.name = :name
order by g.name;

-- name: busiest_lines
select l.queue, l.key, l.waiting,
       (select count(*) from tenure.gate_hold h where h.gate = :name and h.key = l.key)
from (select queue, key, count(*) as waiting from tenure.gated where gate = :name
      group by queue, key) as l
order by l.waiting desc, l.key limit :most;

-- name: before_job
select count(*) from (
    select 1 from tenure.gated g
    where g.queue = :queue and g.gate = :gate and g.key = :key
      and (g.priority, g.place) < (:priority, :place)
    limit :most);

-- name: gate_of_job
select j.place, g.max_running, g.rate, coalesce(g.per_seconds, 1), g.burst, coalesce(g.keyed, 0),
       (select count(*) from tenure.gate_hold h
        where h.gate = j.gate and (not coalesce(g.keyed, 0) or h.key = j.gate_key)),
       k.tokens, (:now - k.filled_at) / 1e6
from tenure.job j
     left join tenure.gate g on g.name = j.gate
     left join tenure.bucket k
         on k.gate = j.gate and k.key = case when g.keyed then j.gate_key else '' end
where j.id = :id and j.gate is not null;

-- name: heal_holds
-- sweep: a place at a gate is held by a job under the token of its attempt, and by nobody else.
delete from tenure.gate_hold as hold
where not exists (select 1 from tenure.job j where j.id = hold.job_id and j.token = hold.token)
returning queue;

-- name: heal_turns
-- sweep: a line in which somebody waits has a turn, or a job that will write one when it ends.
insert into tenure.turn (queue, gate, priority, n, key)
select l.queue, l.gate,
       (select min(g.priority) from tenure.gated g
        where g.queue = l.queue and g.gate = l.gate and g.key = l.key),
       (select c.turn from tenure.counter c) + row_number() over (order by l.queue, l.gate, l.key), l.key
from (select queue, gate, key from tenure.gated
      except select queue, gate, key from tenure.turn
      except select queue, gate, key from tenure.gate_hold) as l
returning queue;
update tenure.counter
set place = place + 1, turn = max(turn, coalesce((select max(n) from tenure.turn), 0))
where exists (select 1 from tenure.turn where n > turn);

-- name: end_waits
-- sweep: whoever waits for a token is looked at anew.
update tenure.turn set not_before = null where not_before is not null;

-- name: any_gate
-- Declared, or not even that.
select name from tenure.gate union all select gate from tenure.turn limit 1;

-- name: peek_gates
-- peek: the queues at whose gates somebody waits, and the time until a line has a token again.
select q.value,
       exists (select 1 from tenure.turn n where n.queue = q.value
               and (n.not_before is null or n.not_before <= :now)),
       (select min(n.not_before) - :now from tenure.turn n
        where n.queue = q.value and n.not_before > :now) / 1e6
from json_each(:queues) as q
where not exists (select 1 from tenure.queue p where p.name = q.value and p.paused_at is not null);
