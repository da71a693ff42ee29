-- name: take_tickets
-- claim, in one statement: consume tickets in (priority, position) order, skipping locked ones, find
-- their jobs, put them on leases, and give back the keys that are held *until started*.
-- Committed synchronously: a claim that a crash could undo would let two workers hold one token.
-- A ticket whose job is gone, or stands elsewhere or under another token, is void: its job columns
-- come back null. So a second ticket of a job, however it came to be, is not a second attempt.
-- A queue has a lane for each `needs`, and each lane is read by itself, so a lane for which the worker
-- has no room holds up no other. Lanes in which this claimer has never seen a ticket are looked at
-- together first, in `gaps`: as nearly always there is none. `plain` tells whether all that was read
-- can be taken, as nearly always. If not, `line` chooses by running sums in the order of the line, as
-- `Demand` in tenure.rules.claim does: in all at most `total` of a queue. `spent` goes from queue to
-- queue: at most `max_kb` kilobytes, but always the first ticket, unless the claim has `taken` some
-- before. What is left was locked for this statement only.
-- `ranges` are the stretches of each lane above the floors, in order; a lateral nested
-- loop walks them one after the other and stops at the limit. The upper bound is on `priority`
-- alone: a pair that is decided by its second column does not end an index scan (PostgreSQL 15), and
-- the stretch below a lane would walk the index of the lane's dead part.
-- At most one suspect per claim: were there two, the death of the worker would charge both, and
-- one of them may not have run. A block is what goes on one lease: the suspect alone, the jobs
-- whose cancellation is requested, those that were not started in time, all others.
-- Times come as bytes: the driver takes 0.7 microseconds to make a datetime of each.
-- `ctid = any(array(...))`: the plan stays a TID scan whatever the statistics say.
with recursive gap as materialized (
    select g.gap
    from json_to_recordset(:gaps::json) as g (gap int, queue text, first smallint, last smallint)
    where exists (select from tenure.ready r
                  where r.queue = g.queue and r.needs between g.first and g.last offset 0)
), lane as materialized (
    select l.n, l.queue, l.needs, l.most, l.total
    from json_to_recordset(:lanes::json) as l (
        n int, queue text, needs smallint, most int, total int, gap int)
    where case when l.gap is null or l.gap = any (array(select gap from gap))
          then not exists (select from tenure.queue p
                           where p.name = l.queue and p.paused_at is not null offset 0) end
), spot as materialized (
    select lane.n, lane.total, line.ctid, line.priority, line.position, line.size_kb, line.suspect
    from lane, lateral (
        select trusted.ctid, trusted.priority, trusted.position, trusted.size_kb, false as suspect
        from (
            select r.ctid, r.priority, r.position, r.size_kb
            from json_to_recordset(:ranges::json) as g (
                     queue text, needs smallint, low_priority smallint, low_position bigint,
                     below_priority smallint),
                 lateral (
                     select ready.ctid, ready.priority, ready.position, ready.size_kb from tenure.ready
                     where ready.queue = g.queue and ready.needs = g.needs
                       and (ready.priority, ready.position) >= (g.low_priority, g.low_position)
                       and ready.priority < g.below_priority
                       and not ready.suspect
                     order by ready.priority, ready.position
                     limit lane.most
                     for update skip locked) as r
            where g.queue = lane.queue and g.needs = lane.needs
            limit lane.most) as trusted
        union all
        select s.ctid, s.priority, s.position, s.size_kb, true
        from (
            select ready.ctid, ready.priority, ready.position, ready.size_kb from tenure.ready
            where ready.queue = lane.queue and ready.needs = lane.needs and ready.suspect
            order by ready.queue, ready.needs, ready.priority, ready.position
            limit 1
            for update skip locked) as s
        order by priority, position
        limit lane.most) as line
), plain as materialized (
    select bool_and(q.fits) and sum(q.kb) <= :max_kb and sum(q.suspects) <= 1 as all_fit
    from (select count(*) <= min(total) as fits, sum(size_kb) as kb,
                 count(*) filter (where suspect) as suspects
          from spot group by n) as q
), line as materialized (
    select * from (
        select n, ctid, total, size_kb, row_number() over q as nth, sum(size_kb) over q as kb
        from (select spot.*, count(*) filter (where suspect)
                                 over (order by n, priority, position) as suspects
              from spot where not (select all_fit from plain)) as s
        where not suspect or suspects = 1
        window q as (partition by n order by priority, position)) as fitting
    where nth <= total
), spent as (
    select -1 as n, 0::bigint as kb, (:taken::boolean)::int::bigint as jobs
    union all
    select s.n + 1, s.kb + f.kb, s.jobs + f.jobs
    from spent s, lateral (
        select coalesce(sum(l.size_kb), 0) as kb, count(*) as jobs from line l
        where l.n = s.n + 1 and (s.kb + l.kb <= :max_kb or (s.jobs = 0 and l.nth = 1))) as f
    where s.n < (select max(n) from line)
), fit as (
    select ctid from spot where (select all_fit from plain)
    union all
    select l.ctid from spent s join line l on l.n = s.n + 1
    where s.kb + l.kb <= :max_kb or (s.jobs = 0 and l.nth = 1)
), taken as (
    delete from tenure.ready
    where ctid = any (array(select ctid from fit))
    returning queue, needs, priority, position, job_id, token
), clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), found as materialized (
    select t.queue, t.needs, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
           j.max_attempts, j.crashes, j.created_at, j.queued_at, j.timeout_seconds, j.retry, j.metadata,
           j.features, e.ends, j.unique_scope, j.unique_key, j.unique_until,
           case when e.ends > 0 then -e.ends when j.crashes > 0 then j.id else 0 end as block
    from taken t left join lateral (
        select * from tenure.job
        where job.id = t.job_id and job.token = t.token and job.position = t.position offset 0) as j on true
         left join lateral (select case when j.cancel_requested then 1
                when j.start_by < (select now from clock) and j.attempts = 0 then 2 else 0 end as ends) as e on true
), block as materialized (
    select b.block, nextval('tenure.lease_id') as lease, clock.now
    from clock, (select block from found where id is not null group by block order by block) as b
), leased as (
    insert into tenure.lease (id, worker, request_id, claimed_at, expires_at, jobs, started)
    select b.lease, :worker, :request_id, b.now, b.now + :lease_seconds * interval '1 second',
           (select ('[[' || string_agg(id || ',' || token, '],[') || ']]')::json
            from found f where f.block = b.block and f.id is not null),
           case when :ahead and b.block = 0 or b.block = -2 then '[]'::json end
    from block b
), started as (
    delete from tenure.unique_key k using found f
    where f.unique_until = 'started' and k.tenant = any (array[f.tenant])
      and k.scope = f.unique_scope and k.key = f.unique_key and k.job_id = f.id
)
select f.queue, f.priority, f.position, f.id, f.token, f.task, f.args::text as args, f.tenant, f.attempts,
       f.max_attempts, f.crashes, timestamptz_send(f.created_at) as created_at, f.timeout_seconds, f.retry::text as retry,
       f.metadata::text as metadata, f.features, f.ends, f.needs,
       timestamptz_send(f.queued_at) as queued_at, b.lease, timestamptz_send(b.now) as claimed_at
from found f left join block b on b.block = f.block and f.id is not null;

-- name: claimed_before
-- claim, repeated: what its first try, whose COMMIT got no answer, has left on leases.
select j.queue, j.priority, j.position, j.id, j.token, j.task, j.args::text as args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, timestamptz_send(j.created_at) as created_at, j.timeout_seconds, j.retry::text as retry,
       j.metadata::text as metadata, j.features,
       case when j.cancel_requested then 1
                when j.start_by < l.claimed_at and j.attempts = 0 then 2 else 0 end as ends,
       j.needs, timestamptz_send(j.queued_at) as queued_at, l.id as lease,
       timestamptz_send(l.claimed_at) as claimed_at
from tenure.lease l, json_array_elements(l.jobs) as pair,
     lateral (select * from tenure.job
              where id = (pair ->> 0)::bigint and token = (pair ->> 1)::bigint offset 0) as j
where l.worker = :worker and l.request_id = :request_id;

-- name: highest_position
-- floor, step 1: the highest position drawn so far.
select 1000 * last_value + 999 as position from tenure.position;

-- name: lowest_positions
-- floor, steps 2 and 4: the lowest live position of each lane, read from its present floor on.
select l.queue, l.needs, l.priority,
       (select r.position from tenure.ready r
        where r.queue = l.queue and r.needs = l.needs and r.priority = l.priority
          and r.position >= l.floor
        order by r.position limit 1) as position
from json_to_recordset(:lanes::json) as l (
    queue text, needs smallint, priority smallint, floor bigint);

-- name: position_drawers
-- floor, step 3: the transactions that may have drawn a position and not committed yet.
select distinct virtualtransaction from pg_catalog.pg_locks
where locktype = 'relation' and relation = 'tenure.ready'::regclass and granted
  and database = (select oid from pg_catalog.pg_database where datname = current_database())
  and mode not in ('AccessShareLock', 'RowShareLock') and pid is distinct from pg_backend_pid();

-- name: look_ahead
-- claim by tasks: the next tickets of these lanes, suspects among them, and the tasks of their jobs.
-- It locks nothing.
select r.queue, r.needs, r.priority, r.position, r.suspect, r.size_kb, j.task
from json_to_recordset(:lanes::json) as l (
         queue text, needs smallint, priority smallint, position bigint),
     lateral (select queue, needs, priority, position, suspect, size_kb, job_id, token from tenure.ready
              where queue = l.queue and needs = l.needs
                and (priority, position) > (l.priority, l.position)
              order by priority, position limit :most) as r
     left join lateral (select task from tenure.job
                        where id = r.job_id and token = r.token and position = r.position offset 0) as j
       on true
where not exists (select from tenure.queue p
                  where p.name = r.queue and p.paused_at is not null offset 0);

-- name: take_spots
-- claim by tasks: take exactly these tickets, as `take_tickets` does. One that another session has
-- locked or taken is passed over.
with spot as materialized (
    select r.ctid
    from json_to_recordset(:rows::json) as b (
             queue text, needs smallint, priority smallint, position bigint),
         lateral (select ready.ctid from tenure.ready
                  where ready.queue = b.queue and ready.needs = b.needs
                    and ready.priority = b.priority and ready.position = b.position
                    and not exists (select from tenure.queue p
                                    where p.name = b.queue and p.paused_at is not null offset 0)
                  for update skip locked) as r
), taken as (
    delete from tenure.ready
    where ctid = any (array(select ctid from spot))
    returning queue, needs, priority, position, job_id, token
), clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), found as materialized (
    select t.queue, t.needs, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
           j.max_attempts, j.crashes, j.created_at, j.queued_at, j.timeout_seconds, j.retry, j.metadata,
           j.features, e.ends, j.unique_scope, j.unique_key, j.unique_until,
           case when e.ends > 0 then -e.ends when j.crashes > 0 then j.id else 0 end as block
    from taken t left join lateral (
        select * from tenure.job
        where job.id = t.job_id and job.token = t.token and job.position = t.position offset 0) as j on true
         left join lateral (select case when j.cancel_requested then 1
                when j.start_by < (select now from clock) and j.attempts = 0 then 2 else 0 end as ends) as e on true
), block as materialized (
    select b.block, nextval('tenure.lease_id') as lease, clock.now
    from clock, (select block from found where id is not null group by block order by block) as b
), leased as (
    insert into tenure.lease (id, worker, request_id, claimed_at, expires_at, jobs, started)
    select b.lease, :worker, :request_id, b.now, b.now + :lease_seconds * interval '1 second',
           (select ('[[' || string_agg(id || ',' || token, '],[') || ']]')::json
            from found f where f.block = b.block and f.id is not null),
           case when :ahead and b.block = 0 or b.block = -2 then '[]'::json end
    from block b
), started as (
    delete from tenure.unique_key k using found f
    where f.unique_until = 'started' and k.tenant = any (array[f.tenant])
      and k.scope = f.unique_scope and k.key = f.unique_key and k.job_id = f.id
)
select f.queue, f.priority, f.position, f.id, f.token, f.task, f.args::text as args, f.tenant, f.attempts,
       f.max_attempts, f.crashes, timestamptz_send(f.created_at) as created_at, f.timeout_seconds, f.retry::text as retry,
       f.metadata::text as metadata, f.features, f.ends, f.needs,
       timestamptz_send(f.queued_at) as queued_at, b.lease, timestamptz_send(b.now) as claimed_at
from found f left join block b on b.block = f.block and f.id is not null;

-- name: jobs_held_by
-- held: the live jobs on the leases of a worker.
select j.queue, j.priority, j.position, j.id, j.token, j.task, j.args::text as args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry::text as retry,
       j.metadata::text as metadata, j.features, j.needs, j.queued_at, l.id as lease,
       l.claimed_at, l.expires_at
from tenure.lease l, json_array_elements(l.jobs) as pair,
     lateral (select * from tenure.job
              where id = (pair ->> 0)::bigint and token = (pair ->> 1)::bigint offset 0) as j
where l.worker = :worker and l.expires_at > coalesce(:now::timestamptz, clock_timestamp())
order by l.id, j.id;
