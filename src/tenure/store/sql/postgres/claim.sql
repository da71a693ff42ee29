-- name: take_tickets
-- claim: consume tickets in (priority, place) order, skipping locked ones, and find their jobs.
-- A ticket whose job is gone or whose token is old is void: its job columns come back null.
-- `ranges` are the stretches of each queue's line above the floors, in order; a lateral nested
-- loop walks them one after the other and stops at the limit.
-- `ctid = any(array(...))`: the plan stays a TID scan whatever the statistics say.
with taken as (
    delete from tenure.ready
    where ctid = any (array(
        select spot.ctid
        from json_to_recordset(:queues::json) as q (name text, most int),
             lateral (
                 select r.ctid
                 from json_to_recordset(:ranges::json) as g (
                          queue text, low_priority smallint, low_place bigint,
                          high_priority smallint, high_place bigint),
                      lateral (
                          select ready.ctid from tenure.ready
                          where ready.queue = g.queue
                            and (ready.priority, ready.place) >= (g.low_priority, g.low_place)
                            and (ready.priority, ready.place) < (g.high_priority, g.high_place)
                          order by ready.priority, ready.place
                          limit q.most
                          for update skip locked) as r
                 where g.queue = q.name
                 limit q.most) as spot
        where not exists (select from tenure.queue p where p.name = q.name and p.paused_at is not null)))
    returning queue, priority, place, job_id, token
)
select t.queue, t.priority, t.place, j.id, j.token, j.task, j.args::text, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry::text, j.metadata::text,
       j.features, j.cancel_requested
from taken t left join lateral (
    select * from tenure.job where job.id = t.job_id and job.token = t.token offset 0) as j on true;

-- name: insert_lease
-- claim: one row per block. Committed synchronously: a claim that a crash could undo would let two
-- workers hold one token.
insert into tenure.lease (id, worker, claimed_at, expires_at, jobs)
select nextval('tenure.lease_id'), :worker, t.now, t.now + :lease_seconds * interval '1 second', :jobs::json
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t
returning id, claimed_at, expires_at;

-- name: drop_started_keys
-- claim: keys held *until started* are given back.
delete from tenure.unique_key k
using (select id, tenant, unique_scope, unique_key from tenure.job
       where id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
         and unique_until = 'started') as j
where k.tenant = any (array[j.tenant]) and k.scope = j.unique_scope and k.key = j.unique_key and k.job_id = j.id;

-- name: highest_place
-- floor, step 1: the sequence's value.
select last_value from tenure.place;

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
