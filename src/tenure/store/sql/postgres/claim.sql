-- name: take_tickets
-- claim: consume tickets in (priority, place) order, skipping locked ones, and find their jobs.
-- A ticket whose job is gone, or stands elsewhere or under another token, is void: its job columns
-- come back null. So a second ticket of a job, however it came to be, is not a second attempt.
-- `ranges` are the stretches of each queue's line above the floors, in order; a lateral nested
-- loop walks them one after the other and stops at the limit. The upper bound is on `priority`
-- alone: a pair that is decided by its second column does not end an index scan (PostgreSQL 15), and
-- the stretch below a lane would walk the index of the lane's dead part.
-- At most one suspect per claim: were there two, the death of the worker would charge both, and
-- one of them may not have run.
-- `ctid = any(array(...))`: the plan stays a TID scan whatever the statistics say.
with served as materialized (
    select q.n, q.name, q.most
    from json_to_recordset(:queues::json) as q (n int, name text, most int)
    where not exists (select from tenure.queue p
                      where p.name = q.name and p.paused_at is not null offset 0)
), spot as materialized (
    select served.n, line.ctid, line.suspect
    from served, lateral (
        select trusted.ctid, trusted.priority, trusted.place, false as suspect
        from (
            select r.ctid, r.priority, r.place
            from json_to_recordset(:ranges::json) as g (
                     queue text, low_priority smallint, low_place bigint,
                     below_priority smallint),
                 lateral (
                     select ready.ctid, ready.priority, ready.place from tenure.ready
                     where ready.queue = g.queue
                       and (ready.priority, ready.place) >= (g.low_priority, g.low_place)
                       and ready.priority < g.below_priority
                       and not ready.suspect
                     order by ready.priority, ready.place
                     limit served.most
                     for update skip locked) as r
            where g.queue = served.name
            limit served.most) as trusted
        union all
        select s.ctid, s.priority, s.place, true
        from (
            select ready.ctid, ready.priority, ready.place from tenure.ready
            where ready.queue = served.name and ready.suspect
            order by ready.queue, ready.priority, ready.place
            limit 1
            for update skip locked) as s
        order by priority, place
        limit served.most) as line
), taken as (
    delete from tenure.ready
    where ctid = any (array(
        select spot.ctid from spot
        where not spot.suspect or spot.n = (select min(first.n) from spot as first where first.suspect)))
    returning queue, priority, place, job_id, token, suspect
)
select t.queue, t.priority, t.place, j.id, j.token, j.task, j.args::text, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry::text, j.metadata::text,
       j.features, j.cancel_requested, t.suspect
from taken t left join lateral (
    select * from tenure.job
    where job.id = t.job_id and job.token = t.token and job.place = t.place offset 0) as j on true;

-- name: insert_lease
-- claim: one row per block. Committed synchronously: a claim that a crash could undo would let two
-- workers hold one token.
insert into tenure.lease (id, worker, call, claimed_at, expires_at, jobs, started)
select nextval('tenure.lease_id'), :worker, :call, t.now,
       t.now + :lease_seconds * interval '1 second', :jobs::json, :started::json
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t
returning id, claimed_at, expires_at;

-- name: leases_of_call
-- claim, repeated: the leases that its first try, whose COMMIT got no answer, has left.
select l.id, l.claimed_at, l.expires_at, l.jobs::text from tenure.lease l
where l.worker = :worker and l.call = :call order by l.id;

-- name: jobs_on_lease
-- claim, repeated: its jobs as take_tickets gave them.
select j.queue, j.priority, j.place, j.id, j.token, j.task, j.args::text, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry::text, j.metadata::text,
       j.features, j.cancel_requested, j.crashes > 0
from json_to_recordset(:rows::json) as b (id bigint, token bigint),
     lateral (select * from tenure.job where id = b.id and token = b.token offset 0) as j;

-- name: drop_started_keys
-- claim: keys held *until started* are given back.
delete from tenure.unique_key k
using (select id, tenant, unique_scope, unique_key from tenure.job
       where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
         and unique_until = 'started') as j
where k.tenant = any (array[j.tenant]) and k.scope = j.unique_scope and k.key = j.unique_key and k.job_id = j.id;

-- name: highest_place
-- floor, step 1: the highest place drawn so far.
select 1000 * last_value + 999 from tenure.place;

-- name: lowest_places
-- floor, steps 2 and 4: the lowest live place of each lane, read from its present floor on.
select l.queue, l.priority,
       (select r.place from tenure.ready r
        where r.queue = l.queue and r.priority = l.priority and r.place >= l.floor
        order by r.place limit 1)
from json_to_recordset(:lanes::json) as l (queue text, priority smallint, floor bigint);

-- name: place_drawers
-- floor, step 3: the transactions that may have drawn a place and not committed yet.
select distinct virtualtransaction from pg_catalog.pg_locks
where locktype = 'relation' and relation = 'tenure.ready'::regclass and granted
  and database = (select oid from pg_catalog.pg_database where datname = current_database())
  and mode not in ('AccessShareLock', 'RowShareLock') and pid is distinct from pg_backend_pid();
