-- name: peek
-- peek: is there anything to claim, to promote or to sweep, and are there gates?
select (select json_group_array(q.value) from json_each(:queues) as q
        where exists (select 1 from tenure.ready r where r.queue = q.value)
          and not exists (select 1 from tenure.queue p where p.name = q.value and p.paused_at is not null)) as ready,
       ((select min(due_at) from tenure.due) - :now) / 1e6 as due_seconds,
       exists (select 1 from tenure.lease where boot = :boot and expires_tick <= :tick)
       or exists (select 1 from tenure.lease where boot < :boot)
       or exists (select 1 from tenure.lease where boot > :boot) as expired,
       exists (select 1 from tenure.gate) or exists (select 1 from tenure.turn) as gates;

-- name: promote
-- promote: due tickets go to the end of the line; the token stays. The job row remembers the new
-- position, which is how the second statement finds what the first one moved.
with picked as (
    select row_number() over (order by d.due_at, d.job_id) as n, d.job_id, d.token
    from (select due_at, job_id, token from tenure.due where due_at <= :now
          order by due_at, job_id limit :most) as d
)
update tenure.job as job
set position = (select c.position from tenure.counter c) + picked.n, due_at = null, queued_at = :now
from picked
where job.id = picked.job_id and job.token = picked.token
returning id, features, queue, priority, position, 0 as due_soon;
insert into tenure.ready (queue, priority, position, job_id, token, suspect)
select j.queue, j.priority, j.position, j.id, j.token, j.crashes > 0
from (select job_id, token from tenure.due where due_at <= :now order by due_at, job_id limit :most) as d
     cross join tenure.job as j on j.id = d.job_id and j.token = d.token
where j.gate is null;
update tenure.counter set position = position + :most
where exists (select 1 from tenure.due where due_at <= :now);
delete from tenure.due
where (due_at, job_id) <= (
    select due_at, job_id from (
        select due_at, job_id from tenure.due where due_at <= :now order by due_at, job_id limit :most)
    order by due_at desc, job_id desc limit 1);

-- name: drop_void_due
-- promote has dropped them with the others already.
select 1 where false;

-- name: expired_leases
-- sweep: past the deadline on this boot's clock, or from another boot.
select expires_tick as expires, id from (
    select expires_tick, id from tenure.lease where boot = :boot and expires_tick <= :tick
    union all
    select expires_tick, id from tenure.lease where boot < :boot
    union all
    select expires_tick, id from tenure.lease where boot > :boot)
where (expires_tick, id) > (coalesce(:after, -9223372036854775808), :after_id)
order by expires_tick, id
limit :most;

-- name: lock_lease
-- sweep: expired, seen again under the write lock.
select id, worker, claimed_at, jobs, started from tenure.lease
where id = :id and (boot <> :boot or expires_tick <= :tick);

-- name: lock_expired
select j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
order by j.id;

-- name: still_live
select j.id, j.token
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token';

-- name: keep_on_lease
-- sweep: what was not taken back stays.
update tenure.lease set jobs = :jobs, started = coalesce(started, '[]') where id = :id;

-- name: delete_lease
-- sweep: nothing on it is live any more.
delete from tenure.lease where id = :id;
delete from tenure.gate_hold where lease = :id;

-- name: extend
-- extend: by lease and worker, refused after expiry or after another boot.
update tenure.lease as lease
set expires_tick = :tick + cast(1e6 * :lease_seconds as integer),
    expires_at = :now + cast(1e6 * :lease_seconds as integer),
    started = coalesce(b.value -> 'started', started)
from json_each(:rows) as b
where lease.id = b.value ->> 'id' and lease.worker = :worker
  and lease.boot = :boot and lease.expires_tick > :tick
returning id;

-- name: valid_leases
select l.id from json_each(:ids) as b cross join tenure.lease as l on l.id = b.value
where l.worker = :worker and l.boot = :boot and l.expires_tick > :tick;

-- name: any_cancel_requested
select id from tenure.job where cancel_requested order by id limit 1;

-- name: cancel_requested_jobs
select j.id, j.token from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
where j.cancel_requested;

-- name: lease_jobs
select l.jobs from json_each(:ids) as b cross join tenure.lease as l on l.id = b.value
where l.worker = :worker;
