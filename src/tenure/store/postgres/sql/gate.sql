-- Who waits at gates, and who may pass. A job with a gate has its ticket in `gated`.

-- name: add_gate_tickets
-- enqueue, promote, retry, snooze, release, sweep, unhold, move, free, replay: the tickets of those of
-- these jobs that stand in line now, and a turn for each line, because an attempt may have ended by
-- this. No lock is taken that others wait for. Answers the queues for `notify`.
with put as materialized (
    select j.* from tenure.job j
    where j.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
      and j.gate is not null
), lined as (
    insert into tenure.gated (position, job_id, token, priority, suspect, queue, gate, key)
    select position, id, token, priority, crashes > 0, queue, gate, gate_key from put
    where position is not null and parked is null and due_at is null
), passed as (
    insert into tenure.turn (queue, gate, priority, key)
    select queue, gate, min(priority), gate_key from put
    group by queue, gate, gate_key order by min(position)
)
select distinct queue from put;

-- name: leave_gates
-- succeed, fail, skip, abort, cancel, sweep: where an attempt has ended there is a turn, whether or not
-- somebody is seen to wait: who comes later finds the line full until this is committed, and takes
-- his own turn away. Answers the heads of lines in queues where somebody waits, for `notify`. A line is
-- searched from where its head was of late.
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
-- claim: the gates at which somebody waits in these queues, locked one claim at a time; what
-- another claim has locked is left for later. The empty insert takes the lock by which `pause` sees
-- a claim in flight. A gate that nobody has declared has no limits.
-- Answers, with each, the head of the queue's line of jobs without a gate.
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
                  queue text, low_priority smallint, low_position bigint, below_priority smallint),
              lateral (
                  select ready.priority, ready.position from tenure.ready
                  where ready.queue = s.queue
                    and (ready.priority, ready.position) >= (s.low_priority, s.low_position)
                    and ready.priority < s.below_priority
                  order by ready.priority, ready.position limit 1) as r
         where s.queue = busy.queue limit 1) as head on true;

-- name: look_at_gates
-- claim: in a new statement after the locks are held: the lines whose turn it is, past those at which
-- claims have looked, what runs, what the
-- buckets held, and the heads of the lines, one ticket more than may pass. A worker that has more jobs
-- than places counts with its places. Where all lines share a limit that is reached, and this worker
-- has no places for more jobs to come along with, no turn is looked at. Where it is alone, and may take
-- all that it wants even if nothing has ended, what has ended is not counted. A line is searched from
-- where its head was of late, or from the start where a turn of a lower priority has come.
with gate as materialized (
    select * from json_to_recordset(:rows::json) as b (
        queue text, gate text, keyed boolean, max_running int, most int, turns int,
        riders double precision, past_priority smallint, past_n bigint)
), shared as materialized (
    select g.gate,
           coalesce(sum(least(w.live, s.places)) filter (where w.worker <> :worker), 0)::int as others,
           coalesce(sum(least(w.live, s.places)) filter (where w.worker = :worker), 0)::int as mine,
           coalesce(sum(w.live) filter (where w.worker = :worker), 0)::int as live,
           (select places from tenure.gate_share
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
             select places from tenure.gate_share
             where gate = g.gate and key = '' and worker = w.worker offset 0) as s on true
    group by g.gate
), line as materialized (
    select g.queue, g.gate, g.keyed, g.max_running, g.most, g.riders, t.key,
           json_agg(json_build_array(t.priority, t.n) order by t.priority, t.n) as turns,
           min(t.priority) as priority, min(t.n) as n
    from gate g left join shared s on s.gate = g.gate, lateral (
        select turn.priority, turn.n, turn.key from tenure.turn
        where turn.queue = g.queue and turn.gate = g.gate
          and (turn.priority, turn.n) > (g.past_priority, g.past_n)
          and (turn.not_before is null or turn.not_before <= :now::timestamptz)
        order by turn.priority, turn.n limit g.turns) as t
    where s.gate is null or s.others + s.mine < g.max_running and :free > 0
          or g.riders > 0 and s.mine > 0
    group by g.queue, g.gate, g.keyed, g.max_running, g.most, g.riders, t.key
), room as materialized (
    select l.*, coalesce(s.others, o.others) as others, coalesce(s.mine, o.mine) as mine,
           coalesce(s.live, o.live) as live, coalesce(o.here, 0) as here,
           coalesce(s.share, o.share) as share,
           1 + least(l.most, 8 + case when count(*) over () > 1
                                      then 2 * l.most / count(*) over (partition by l.queue) else 0 end)::int as asked
    from line l left join shared s on s.gate = l.gate
         left join lateral (
             select coalesce(sum(least(w.live, s.places)) filter (where w.worker <> :worker), 0)::int as others,
                    coalesce(sum(least(w.live, s.places)) filter (where w.worker = :worker), 0)::int as mine,
                    coalesce(sum(w.live) filter (where w.worker = :worker), 0)::int as live,
                    coalesce(sum(w.here), 0)::int as here,
                    (select places from tenure.gate_share
                     where gate = l.gate and key = l.key and worker = :worker) as share
             from (select h.worker, sum(h.live)::int as live,
                          sum(h.live) filter (where h.queue = l.queue) as here
                   from tenure.gate_live h
                   where l.keyed and l.max_running is not null and h.gate = l.gate and h.key = l.key
                   group by h.worker) as w
                  left join lateral (
                      select places from tenure.gate_share
                      where gate = l.gate and key = l.key and worker = w.worker offset 0) as s on true
         ) as o on true
), head as materialized (
    select r.*, case when r.max_running is null then r.asked else
               least(r.asked, 1 + new.places
                     + greatest(0, floor(r.riders * (r.mine + new.places))::int - (r.live - r.mine))) end as tickets
    from room r, lateral (
        select greatest(0, least(r.max_running - r.others - r.mine, :free)) as places) as new
)
select r.queue, r.gate, r.key, r.others, r.mine, r.live, r.share, r.here, k.tokens,
       extract(epoch from :now::timestamptz - k.filled_at)::double precision, r.turns::text, r.tickets,
       (select '[[' || string_agg(t.priority || ',' || t.position || ',' || t.suspect::int, '],[') || ']]'
        from (select g.priority, g.position, g.suspect from tenure.gated g
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
         select tokens, filled_at from tenure.bucket
         where gate = r.gate and key = case when r.keyed then r.key else '' end offset 0) as k on true
order by r.priority, r.n;

-- name: take_gated
-- claim: so many tickets at the head of each line, which was seen before: dead ones are not walked twice,
-- are consumed, one suspect at most among them, and
-- their jobs go on leases as in `take_tickets`. For each lease and line it is noted who has passed.
with spot as materialized (
    select g.ctid
    from json_to_recordset(:rows::json) as b (
             queue text, gate text, key text, priority smallint, position bigint, suspect bigint, count int),
         lateral (select gated.ctid from tenure.gated
                  where gated.queue = b.queue and gated.gate = b.gate and gated.key = b.key
                    and (gated.priority, gated.position) >= (b.priority, b.position)
                    and (not gated.suspect or gated.position = b.suspect)
                  order by gated.priority, gated.position limit b.count
                  for update skip locked) as g
), taken as (
    delete from tenure.gated where ctid = any (array(select ctid from spot))
    returning queue, gate, key, priority, position, job_id, token
), found as materialized (
    select t.queue, t.priority, t.position, t.gate, t.key, j.id, j.token, j.task, j.args, j.tenant,
           j.attempts, j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry,
           j.metadata, j.features, j.cancel_requested, j.unique_scope, j.unique_key, j.unique_until,
           case when j.cancel_requested then -1 when j.crashes > 0 then j.id else 0 end as block
    from taken t left join lateral (
        select * from tenure.job
        where job.id = t.job_id and job.token = t.token and job.position = t.position offset 0) as j on true
), block as materialized (
    select b.block, nextval('tenure.lease_id') as lease, :now::timestamptz as now
    from (select block from found where id is not null group by block order by block) as b
), leased as (
    insert into tenure.lease (id, worker, request_id, claimed_at, expires_at, jobs, started)
    select b.lease, :worker, :request_id, b.now, b.now + :lease_seconds * interval '1 second',
           (select ('[[' || string_agg(id || ',' || token, '],[') || ']]')::json
            from found f where f.block = b.block and f.id is not null),
           case when :ahead and b.block = 0 then '[]'::json end
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
       f.metadata::text, f.features, f.cancel_requested, b.lease, timestamptz_send(b.now),
       case when :several then f.queue || e'\x1e' || f.gate || e'\x1e' || f.key end
from found f left join block b on b.block = f.block and f.id is not null;

-- name: places_given
-- claim, repeated: what its first try was given at gates that limit how many run: the jobs, and the
-- places that this worker has.
select h.gate, case when g.keyed then h.key else '' end, h.ids,
       coalesce((select places from tenure.gate_share s
                 where s.gate = h.gate and s.worker = h.worker
                   and s.key = case when g.keyed then h.key else '' end), g.max_running)
from tenure.gate_hold h, lateral (select * from tenure.gate where name = h.gate offset 0) as g
where h.lease = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and g.max_running is not null;

-- name: share_places
-- claim: this worker has more jobs than places there: it runs no more of them at once.
insert into tenure.gate_share (gate, key, worker, places)
select b.gate, b.key, :worker, b.places
from json_to_recordset(:rows::json) as b (gate text, key text, places int)
on conflict (gate, key, worker) do update set places = excluded.places;

-- name: end_shares
-- claim: each of its jobs there has a position again.
delete from tenure.gate_share s
using json_to_recordset(:rows::json) as b (gate text, key text)
where s.gate = any (array[b.gate]) and s.key = b.key and s.worker = :worker;

-- name: drop_turns
-- claim: turns that are used up go.
delete from tenure.turn t
using json_to_recordset(:rows::json) as b (queue text, gate text, priority smallint, n bigint)
where t.queue = any (array[b.queue]) and t.gate = b.gate and t.priority = b.priority and t.n = b.n;

-- name: drop_spare_turns
-- claim: later turns of lines whose first one is still there. It stays: only claims take turns away,
-- and the gate is locked.
delete from tenure.turn t
using json_to_recordset(:rows::json) as b (
    queue text, gate text, priority smallint, n bigint, first_priority smallint, first_n bigint)
where t.queue = any (array[b.queue]) and t.gate = b.gate and t.priority = b.priority and t.n = b.n
  and exists (select from tenure.turn f
              where f.queue = b.queue and f.gate = b.gate
                and f.priority = b.first_priority and f.n = b.first_n offset 0);

-- name: add_turns
-- claim: lines that go on waiting, at the end of the turns. One turn of a line at most waits for a
-- token.
insert into tenure.turn (queue, gate, priority, key, not_before)
select b.queue, b.gate, b.priority, b.key, :now::timestamptz + b.wait * interval '1 second'
from json_to_recordset(:rows::json) as b (
    i int, queue text, gate text, priority smallint, key text, wait double precision)
order by b.i
on conflict do nothing;

-- name: fill_buckets
-- claim: what is left of the tokens.
insert into tenure.bucket (gate, key, tokens, filled_at)
select b.gate, b.key, b.tokens, :now::timestamptz
from json_to_recordset(:rows::json) as b (gate text, key text, tokens double precision)
on conflict (gate, key) do update set tokens = excluded.tokens, filled_at = excluded.filled_at;

-- name: declared_gates
-- gate: what code has said of these.
select name, declared::text from tenure.gate
where declared is not null
  and name = any (array(select value #>> '{}' from json_array_elements(:names::json)));

-- name: make_gate
-- gate: the same as `lock_gate`, for one that there may not be yet.
insert into tenure.gate (name) values (:name)
on conflict (name) do update set name = excluded.name
returning name, max_running, rate, per_seconds, burst, keyed, by_hand, declared::text;

-- name: set_gate
-- gate: what is allowed from now on. Waits for a claim in flight.
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
-- gate: everybody who waits there gets a turn, and nobody waits for a token any more.
with lines as (
    select g.queue, g.gate, g.key, min(g.priority) as priority, min(g.position) as position
    from tenure.gated g where g.gate = :name group by g.queue, g.gate, g.key
), due as (
    delete from tenure.turn where gate = :name and not_before is not null
)
insert into tenure.turn (queue, gate, priority, key)
select queue, gate, priority, key from lines order by position;

-- name: drop_shares
-- gate: what is allowed has changed: until a worker claims there again, each of its jobs counts.
delete from tenure.gate_share where gate = :name;

-- name: turned_queues
-- gate: where somebody waits, for `notify`.
select distinct queue from tenure.gated where gate = :name;

-- name: drop_gate
-- gate: forget one at which nobody waits and nothing runs.
delete from tenure.gate g
where g.name = :name
  and not exists (select from tenure.gated w where w.gate = g.name)
  and not exists (select from tenure.gate_live h where h.gate = g.name and h.live > 0)
returning g.name;

-- name: drop_buckets
-- gate: and the tokens of one that is gone.
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
-- Who stands before a job at its gate? Bounded: what is far away need not be counted.
select count(*) from (
    select from tenure.gated g
    where g.queue = :queue and g.gate = :gate and g.key = :key
      and (g.priority, g.position) < (:priority::smallint, :position::bigint)
    limit :most) as ahead;

-- name: gate_of_job
select j.position, g.max_running, g.rate, g.per_seconds, g.burst, coalesce(g.keyed, false),
       coalesce((select sum(used) from tenure.gate_used u
                 where u.gate = j.gate and u.key = case when g.keyed then j.gate_key else '' end), 0)::bigint,
       k.tokens,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - k.filled_at)::double precision
from tenure.job j
     left join tenure.gate g on g.name = j.gate
     left join tenure.bucket k
         on k.gate = j.gate and k.key = case when g.keyed then j.gate_key else '' end
where j.id = :id and j.gate is not null;

-- name: heal_holds
-- sweep: what a lease that is gone has left at gates, and shares of who has nothing there any more.
-- Answers the former; their turns come with `heal_turns`.
with idle as (
    delete from tenure.gate_share s
    where not exists (select from tenure.gate_hold h
                      where h.gate = s.gate and h.worker = s.worker offset 0)
)
delete from tenure.gate_hold h
where not exists (select from tenure.lease l where l.id = h.lease offset 0)
returning h.queue;

-- name: heal_turns
-- sweep: a line in which somebody waits has a turn, or a job that will write one when it ends.
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
-- sweep: whoever waits for a token is looked at anew.
update tenure.turn set not_before = null where not_before is not null;

-- name: any_gate
-- Declared, or not even that.
select name from tenure.gate union all select gate from tenure.turn limit 1;

-- name: peek_gates
-- peek: the queues at whose gates somebody waits, and the time until a line has a token again.
select q.name, exists (
           select from tenure.turn n
           where n.queue = q.name and (n.not_before is null or n.not_before <= t.now) offset 0),
       (select extract(epoch from n.not_before - t.now)::double precision from tenure.turn n
        where n.queue = q.name and n.not_before > t.now order by n.not_before limit 1)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t,
     json_array_elements_text(:queues::json) as q (name)
where not exists (select from tenure.queue p
                  where p.name = q.name and p.paused_at is not null offset 0);
