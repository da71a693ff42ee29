-- Gates: which jobs wait there, and which may pass. A job with a gate has its ticket in `gated`.

-- name: add_gate_tickets
-- enqueue, promote, retry, snooze, release, sweep, unhold, move, free, replay: write a ticket for
-- each of these jobs that is queued now, and a turn for each line, because this may also end an
-- attempt. Takes no lock that other transactions wait for. Returns the queues for `notify`.
with put as materialized (
    select j.* from tenure.job j
    where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
      and j.gate is not null
), lined as (
    insert into tenure.gated (position, job_id, token, priority, needs, size_kb, suspect, queue, gate, key)
    select position, id, token, priority, needs, size_kb, crashes > 0, queue, gate, gate_key from put
    where position is not null and parked is null and due_at is null
), passed as (
    insert into tenure.turn (queue, gate, priority, key)
    select queue, gate, min(priority), gate_key from put
    group by queue, gate, gate_key order by min(position)
)
select distinct queue from put;

-- name: leave_gates
-- succeed, fail, skip, abort, cancel, sweep: write a turn for the line of each ended attempt, even if
-- no ticket is visible there: a job that is enqueued at the same time finds the line full until this
-- commits, and its turn is removed. Searches each line from the head that was last seen. Returns the
-- heads of lines in queues with waiting jobs, for `notify`.
with freed as materialized (
    select f.queue, f.gate, f.key, head.priority, head.position
    from json_to_recordset(:rows::json) as f (
             queue text, gate text, key text, from_priority smallint, from_position bigint)
         left join lateral (
        select g.priority, g.position from tenure.gated g
        where g.queue = f.queue and g.gate = f.gate and g.key = f.key
          and (g.priority, g.position) >= (f.from_priority, f.from_position)
        order by g.priority, g.position limit 1) as head on true
), passed as (
    insert into tenure.turn (queue, gate, priority, key)
    select queue, gate, coalesce(priority, 0), key from freed
)
select f.queue, f.gate, f.key, f.priority, f.position
from freed f
where f.priority is not null
   or exists (select from tenure.turn t where t.queue = f.queue and t.gate = f.gate offset 0);

-- name: open_gates
-- claim: lock the gates with waiting jobs in these queues. Only one claim at a time has a gate; gates
-- that another claim has locked are skipped. The empty insert takes the lock by which `pause` sees a
-- claim in flight. A gate that no code declares has no limits. Returns with each gate the first
-- ticket of the queue that needs no gate, of those that are wanted.
with locked as (
    insert into tenure.gated (position, job_id, token, priority, queue, gate, key)
    select 0, 0, 0, 0, '', '', '' where false
), clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), served as materialized (
    select q.name from json_to_recordset(:queues::json) as q (name text)
    where not exists (select from tenure.queue p
                      where p.name = q.name and p.paused_at is not null offset 0)
), busy as materialized (
    select served.name as queue, g.gate
    from served, lateral (
        with recursive hop as (
            (select t.gate from tenure.turn t
             where t.queue = served.name order by t.gate limit 1)
            union all
            select n.gate from hop, lateral (
                select t.gate from tenure.turn t
                where t.queue = served.name and t.gate > hop.gate order by t.gate limit 1) as n
        )
        select gate from hop) as g
), made as (
    insert into tenure.gate (name)
    select distinct gate from busy
    where not exists (select from tenure.gate g where g.name = busy.gate offset 0)
    on conflict (name) do nothing
)
select busy.queue, g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed,
       head.priority, head.position, clock.now
from clock, busy, lateral (
         select * from tenure.gate where name = busy.gate for update skip locked) as g
     left join lateral (
         select r.priority, r.position
         from json_to_recordset(:ranges::json) as s (
                  queue text, needs smallint, low_priority smallint, low_position bigint,
                  below_priority smallint),
              lateral (
                  select ready.priority, ready.position from tenure.ready
                  where ready.queue = s.queue and ready.needs = s.needs
                    and (ready.priority, ready.position) >= (s.low_priority, s.low_position)
                    and ready.priority < s.below_priority
                  order by ready.priority, ready.position limit 1) as r
         where s.queue = busy.queue order by r.priority, r.position limit 1) as head on true;

-- name: look_at_gates
-- claim, in a new statement after the gates are locked: for each line with a turn behind
-- (past_priority, past_n), the permits in use, the bucket, and the first tickets of the line, one
-- more than may pass.
--   - A worker with more jobs than permits counts with its permits.
--   - If all lines of a gate share a limit that is reached, and this worker may claim no riders there, its
--     turns are not read.
--   - If only this worker has jobs at the gate, and it may claim all that it wants even if none of them has
--     finished, finished jobs are not counted.
--   - A line is searched from the head that was last seen, or from its start if it has a turn of a lower priority.
-- The arithmetic is that of tenure.rules.permits; tests/gates/test_arithmetic.py compares the two.
with gate as materialized (
    select * from json_to_recordset(:rows::json) as b (
        queue text, gate text, keyed boolean, max_running int, most int, turns int,
        riders double precision, past_priority smallint, past_n bigint)
), shared as materialized (
    select g.gate,
           coalesce(sum(least(w.live, s.permits)) filter (where w.worker <> :worker), 0)::int as others,
           coalesce(sum(least(w.live, s.permits)) filter (where w.worker = :worker), 0)::int as mine,
           coalesce(sum(w.live) filter (where w.worker = :worker), 0)::int as live,
           (select permits from tenure.gate_share
            where gate = g.gate and key = '' and worker = :worker) as share
    from (select gate, max(max_running) as max_running, max(most) as most, max(riders) as riders
          from gate where not keyed and max_running is not null group by gate) as g
         left join lateral (
             select p.worker,
                    case when p.workers = 1 and p.worker = :worker
                              and p.passed between g.max_running and g.max_running * (1 + g.riders) - g.most
                         then p.passed
                         else (select sum(l.live) from tenure.gate_live l
                               where l.gate = g.gate and l.worker = p.worker) end::int as live
             from (select worker, sum(cardinality(ids)) as passed, count(*) over () as workers
                   from tenure.gate_hold where gate = g.gate group by worker) as p) as w on true
         left join lateral (
             select permits from tenure.gate_share
             where gate = g.gate and key = '' and worker = w.worker offset 0) as s on true
    group by g.gate
), line as materialized (
    select g.queue, g.gate, g.keyed, g.max_running, g.most, g.riders, t.key,
           json_agg(json_build_array(t.priority, t.n) order by t.priority, t.n) as turns,
           min(t.priority) as priority
    from gate g left join shared s on s.gate = g.gate, lateral (
        select turn.priority, turn.n, turn.key from tenure.turn
        where turn.queue = g.queue and turn.gate = g.gate
          and (turn.priority, turn.n) > (g.past_priority, g.past_n)
          and (turn.not_before is null or turn.not_before <= :now::timestamptz)
        order by turn.priority, turn.n limit g.turns) as t
    where s.gate is null or s.others + s.mine < g.max_running and :new_permits > 0
          or g.riders > 0 and s.mine > 0
    group by g.queue, g.gate, g.keyed, g.max_running, g.most, g.riders, t.key
), room as materialized (
    select l.*, coalesce(s.others, o.others) as others, coalesce(s.mine, o.mine) as mine,
           coalesce(s.live, o.live) as live, coalesce(o.here, 0) as here,
           coalesce(s.share, o.share) as share,
           1 + least(l.most, case when count(*) over () > 1
                                  then 8 + 2 * l.most / count(*) over (partition by l.queue) else l.most end)::int as asked
    from line l left join shared s on s.gate = l.gate
         left join lateral (
             select coalesce(sum(least(w.live, s.permits)) filter (where w.worker <> :worker), 0)::int as others,
                    coalesce(sum(least(w.live, s.permits)) filter (where w.worker = :worker), 0)::int as mine,
                    coalesce(sum(w.live) filter (where w.worker = :worker), 0)::int as live,
                    coalesce(sum(w.here), 0)::int as here,
                    (select permits from tenure.gate_share
                     where gate = l.gate and key = l.key and worker = :worker) as share
             from (select h.worker, sum(h.live)::int as live,
                          sum(h.live) filter (where h.queue = l.queue) as here
                   from tenure.gate_live h
                   where l.keyed and l.max_running is not null and h.gate = l.gate and h.key = l.key
                   group by h.worker) as w
                  left join lateral (
                      select permits from tenure.gate_share
                      where gate = l.gate and key = l.key and worker = w.worker offset 0) as s on true
         ) as o on true
), head as materialized (
    select r.*, case when r.max_running is null then r.asked else
               least(r.asked, 1 + p.new + greatest(
                   0, floor((p.own + p.new) * (1 + r.riders))::int - r.live - p.new)) end as tickets
    from room r, lateral (
        select greatest(0, least(r.mine, r.max_running - r.others)) as own,
               greatest(0, least(r.max_running - r.others - r.mine, :new_permits)) as new) as p
)
select r.queue, r.gate, r.key, r.others, r.mine, r.live, r.share, r.here, k.starts_left,
       extract(epoch from :now::timestamptz - k.filled_at)::double precision, r.turns::text, r.tickets,
       (select '[[' || string_agg(t.priority || ',' || t.position || ',' || t.suspect::int || ','
                                  || t.needs || ',' || t.size_kb, '],[') || ']]'
        from (select g.priority, g.position, g.suspect, g.needs, g.size_kb from tenure.gated g
              where g.queue = r.queue and g.gate = r.gate and g.key = r.key
                and (g.priority, g.position) >= (
                    case when f.priority is null then (-101)::smallint else least(r.priority, f.priority) end,
                    case when r.priority < f.priority then 0 else coalesce(f.position, 0) end)
              order by g.priority, g.position limit r.tickets) as t)
from head r left join lateral (
         select f.priority, f.position
         from json_to_recordset(:floors::json) as f (
             queue text, gate text, key text, priority smallint, position bigint)
         where f.queue = r.queue and f.gate = r.gate and f.key = r.key) as f on true
     left join lateral (
         select starts_left, filled_at from tenure.bucket
         where gate = r.gate and key = case when r.keyed then r.key else '' end offset 0) as k on true;

-- name: take_gated
-- claim: consume up to `count` tickets from the head of each line, at most one of them a suspect.
-- Starts at the head that `look_at_gates` saw, so void tickets are not scanned twice. Puts the jobs
-- on leases as `take_tickets` does, and writes for each lease and line which jobs have passed.
with spot as materialized (
    select g.ctid
    from json_to_recordset(:rows::json) as b (
             queue text, gate text, key text, priority smallint, position bigint,
             last_priority smallint, last_position bigint, suspect bigint, count int),
         lateral (select gated.ctid from tenure.gated
                  where gated.queue = b.queue and gated.gate = b.gate and gated.key = b.key
                    and (gated.priority, gated.position) >= (b.priority, b.position)
                    and (gated.priority, gated.position) <= (b.last_priority, b.last_position)
                    and (not gated.suspect or gated.position = b.suspect)
                  order by gated.priority, gated.position limit b.count
                  for update skip locked) as g
), taken as (
    delete from tenure.gated where ctid = any (array(select ctid from spot))
    returning queue, gate, key, needs, priority, position, job_id, token
), found as materialized (
    select t.queue, t.needs, t.priority, t.position, t.gate, t.key, j.id, j.token, j.task, j.args, j.tenant,
           j.attempts, j.max_attempts, j.crashes, j.created_at, j.queued_at, j.timeout_seconds, j.retry,
           j.metadata, j.features, e.ends, j.unique_scope, j.unique_key, j.unique_until,
           case when e.ends > 0 then -e.ends when j.crashes > 0 then j.id else 0 end as block
    from taken t left join lateral (
        select * from tenure.job
        where job.id = t.job_id and job.token = t.token and job.position = t.position offset 0) as j on true
         left join lateral (select case when j.cancel_requested then 1
                when j.start_by < :now::timestamptz and j.attempts = 0 then 2 else 0 end as ends) as e on true
), block as materialized (
    select b.block, nextval('tenure.lease_id') as lease, :now::timestamptz as now
    from (select block from found where id is not null group by block order by block) as b
), leased as (
    insert into tenure.lease (id, worker, request_id, claimed_at, expires_at, jobs, started)
    select b.lease, :worker, :request_id, b.now, b.now + :lease_seconds * interval '1 second',
           (select ('[[' || string_agg(id || ',' || token, '],[') || ']]')::json
            from found f where f.block = b.block and f.id is not null),
           case when :ahead and b.block = 0 or b.block = -2 then '[]'::json end
    from block b
), held as (
    insert into tenure.gate_hold (lease, ids, tokens, worker, queue, gate, key)
    select b.lease, array_agg(f.id), array_agg(f.token), :worker, f.queue, f.gate, f.key
    from found f join block b on b.block = f.block
    where f.id is not null group by b.lease, f.queue, f.gate, f.key
), started as (
    delete from tenure.unique_key k using found f
    where f.unique_until = 'started' and k.tenant = any (array[f.tenant])
      and k.scope = f.unique_scope and k.key = f.unique_key and k.job_id = f.id
)
select f.queue, f.priority, f.position, f.id, f.token, f.task, f.args::text, f.tenant, f.attempts,
       f.max_attempts, f.crashes, timestamptz_send(f.created_at), f.timeout_seconds, f.retry::text,
       f.metadata::text, f.features, f.ends, f.needs, timestamptz_send(f.queued_at), b.lease, timestamptz_send(b.now),
       case when :several then f.queue || e'\x1e' || f.gate || e'\x1e' || f.key end
from found f left join block b on b.block = f.block and f.id is not null;

-- name: permits_given
-- claim, repeated: the jobs that its first try took at gates with `max_running`, and the permits of
-- this worker.
select h.gate, case when g.keyed then h.key else '' end, h.ids,
       coalesce((select permits from tenure.gate_share s
                 where s.gate = h.gate and s.worker = h.worker
                   and s.key = case when g.keyed then h.key else '' end), g.max_running)
from tenure.gate_hold h, lateral (select * from tenure.gate where name = h.gate offset 0) as g
where h.lease = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and g.max_running is not null;

-- name: share_permits
-- claim: this worker has more jobs than permits there. It runs no more of them at once than it has
-- permits.
insert into tenure.gate_share (gate, key, worker, permits)
select b.gate, b.key, :worker, b.permits
from json_to_recordset(:rows::json) as b (gate text, key text, permits int)
on conflict (gate, key, worker) do update set permits = excluded.permits;

-- name: end_shares
-- claim: this worker has a permit for each of its jobs there again.
delete from tenure.gate_share s
using json_to_recordset(:rows::json) as b (gate text, key text)
where s.gate = any (array[b.gate]) and s.key = b.key and s.worker = :worker;

-- name: drop_turns
-- claim: delete the turns that are used up.
delete from tenure.turn t
using json_to_recordset(:rows::json) as b (queue text, gate text, priority smallint, n bigint)
where t.queue = any (array[b.queue]) and t.gate = b.gate and t.priority = b.priority and t.n = b.n;

-- name: drop_spare_turns
-- claim: delete later turns of lines whose first turn is still there. It stays: only claims delete
-- turns, and this claim has locked the gate.
delete from tenure.turn t
using json_to_recordset(:rows::json) as b (
    queue text, gate text, priority smallint, n bigint, first_priority smallint, first_n bigint)
where t.queue = any (array[b.queue]) and t.gate = b.gate and t.priority = b.priority and t.n = b.n
  and exists (select from tenure.turn f
              where f.queue = b.queue and f.gate = b.gate
                and f.priority = b.first_priority and f.n = b.first_n offset 0);

-- name: add_turns
-- claim: a turn at the end for each line that has more tickets. At most one turn of a line waits for
-- its next start.
insert into tenure.turn (queue, gate, priority, key, not_before)
select b.queue, b.gate, b.priority, b.key, :now::timestamptz + b.wait * interval '1 second'
from json_to_recordset(:rows::json) as b (
    i int, queue text, gate text, priority smallint, key text, wait double precision)
order by b.i
on conflict do nothing;

-- name: fill_buckets
-- claim: how many more jobs may start by the rates.
insert into tenure.bucket (gate, key, starts_left, filled_at)
select b.gate, b.key, b.starts_left, :now::timestamptz
from json_to_recordset(:rows::json) as b (gate text, key text, starts_left double precision)
on conflict (gate, key) do update set starts_left = excluded.starts_left, filled_at = excluded.filled_at;

-- name: declared_gates
-- gate: the limits that code declares.
select name, declared::text from tenure.gate
where declared is not null
  and name = any (array(select value #>> '{}' from json_array_elements(:names::json)));

-- name: make_gate
-- gate: `lock_gate`, for a gate that may not exist yet.
insert into tenure.gate (name) values (:name)
on conflict (name) do update set name = excluded.name
returning name, max_running, rate, per_seconds, burst, keyed, by_hand, declared::text;

-- name: set_gate
-- gate: the limits from now on. Waits for a claim in flight.
insert into tenure.gate (name, max_running, rate, per_seconds, burst, keyed, by_hand, declared)
values (:name, :max_running::int, :rate::double precision, :per_seconds::double precision,
        :burst::int, :keyed::boolean, :by_hand::boolean, :declared::json)
on conflict (name) do update
set max_running = excluded.max_running, rate = excluded.rate, per_seconds = excluded.per_seconds,
    burst = excluded.burst, keyed = excluded.keyed, by_hand = excluded.by_hand,
    declared = excluded.declared;

-- name: lock_gate
select name, max_running, rate, per_seconds, burst, keyed, by_hand, declared::text
from tenure.gate where name = :name for update;

-- name: reopen_gate
-- gate: every line with tickets gets a turn, and no turn waits for its next start.
with lines as (
    select g.queue, g.gate, g.key, min(g.priority) as priority, min(g.position) as position
    from tenure.gated g where g.gate = :name group by g.queue, g.gate, g.key
), due as (
    delete from tenure.turn where gate = :name and not_before is not null
)
insert into tenure.turn (queue, gate, priority, key)
select queue, gate, priority, key from lines order by position;

-- name: drop_shares
-- gate: the limits have changed. Until a worker claims there again, each of its jobs uses a permit.
delete from tenure.gate_share where gate = :name;

-- name: turned_queues
-- gate: the queues with waiting jobs, for `notify`.
select distinct queue from tenure.gated where gate = :name;

-- name: drop_gate
-- gate: delete a gate without waiting or running jobs.
delete from tenure.gate g
where g.name = :name
  and not exists (select from tenure.gated w where w.gate = g.name)
  and not exists (select from tenure.gate_live h where h.gate = g.name and h.live > 0)
returning g.name;

-- name: drop_buckets
-- gate: delete the buckets of a gate that is gone.
delete from tenure.bucket where gate = :name;

-- name: list_gates
select g.name, g.max_running, g.rate, g.per_seconds, g.burst, g.keyed, g.by_hand, g.declared::text,
       coalesce((select sum(used) from tenure.gate_used u where u.gate = g.name), 0)::bigint,
       coalesce(w.waiting, 0), coalesce(w.lines, 0)
from tenure.gate g
     left join (select gate, sum(waiting)::bigint as waiting, count(*) as lines
                from (select gate, key, count(*) as waiting from tenure.gated group by gate, key) as l
                group by gate) as w on w.gate = g.name
where :name::text is null or g.name = :name::text
order by g.name;

-- name: busiest_lines
select l.queue, l.key, l.waiting,
       coalesce((select sum(used) from tenure.gate_used u where u.gate = :name and u.key = l.key),
                (select sum(live) from tenure.gate_live h where h.gate = :name and h.key = l.key), 0)::bigint
from (select queue, key, count(*) as waiting from tenure.gated where gate = :name
      group by queue, key) as l
order by l.waiting desc, l.key limit :most;

-- name: before_job
-- The number of tickets before a job in its line, counted up to `most`.
select count(*) from (
    select from tenure.gated g
    where g.queue = :queue and g.gate = :gate and g.key = :key
      and (g.priority, g.position) < (:priority::smallint, :position::bigint)
    limit :most) as ahead;

-- name: gate_of_job
select j.position, g.max_running, g.rate, g.per_seconds, g.burst, coalesce(g.keyed, false),
       coalesce((select sum(used) from tenure.gate_used u
                 where u.gate = j.gate and u.key = case when g.keyed then j.gate_key else '' end), 0)::bigint,
       k.starts_left,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - k.filled_at)::double precision
from tenure.job j
     left join tenure.gate g on g.name = j.gate
     left join tenure.bucket k
         on k.gate = j.gate and k.key = case when g.keyed then j.gate_key else '' end
where j.id = :id and j.gate is not null;

-- name: heal_holds
-- sweep: delete the rows that leases which are gone have left, and the shares of workers without jobs
-- at the gate. Returns the queues of the former; `heal_turns` writes their turns.
with idle as (
    delete from tenure.gate_share s
    where not exists (select from tenure.gate_hold h
                      where h.gate = s.gate and h.worker = s.worker offset 0)
)
delete from tenure.gate_hold h
where not exists (select from tenure.lease l where l.id = h.lease offset 0)
returning h.queue;

-- name: heal_turns
-- sweep: a line with tickets has a turn, or a running job whose end will write one.
insert into tenure.turn (queue, gate, priority, key)
select l.queue, l.gate, head.priority, l.key
from (select queue, gate, key from tenure.gated
      except select queue, gate, key from tenure.turn
      except select queue, gate, key from tenure.gate_live where live > 0) as l,
     lateral (select g.priority, g.position from tenure.gated g
              where g.queue = l.queue and g.gate = l.gate and g.key = l.key
              order by g.priority, g.position limit 1) as head
order by head.position
returning queue;

-- name: end_waits
-- sweep: claims look again at lines that wait for their next start.
update tenure.turn set not_before = null where not_before is not null;

-- name: any_gate
-- Has a gate been declared, or named by a job?
select name from tenure.gate union all select gate from tenure.turn limit 1;

-- name: peek_gates
-- peek: the queues with turns that a claim can use now, and the seconds until a line may start its
-- next job.
select q.name, exists (
           select from tenure.turn n
           where n.queue = q.name and (n.not_before is null or n.not_before <= t.now) offset 0),
       (select extract(epoch from n.not_before - t.now)::double precision from tenure.turn n
        where n.queue = q.name and n.not_before > t.now order by n.not_before limit 1)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t,
     json_array_elements_text(:queues::json) as q (name)
where not exists (select from tenure.queue p
                  where p.name = q.name and p.paused_at is not null offset 0);
