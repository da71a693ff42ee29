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
set position = (select c.position from tenure.counter c) + picked.n, queued_at = due_at, due_at = null
from picked
where job.id = picked.job_id and job.token = picked.token
returning id, features, queue, needs, priority, position, 0 as due_soon;
insert into tenure.ready (queue, needs, priority, position, job_id, token, suspect, size_kb)
select j.queue, j.needs, j.priority, j.position, j.id, j.token, j.crashes > 0, j.size_kb
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
select expires_tick as expires, id, json_array_length(jobs) as jobs from (
    select expires_tick, id, jobs from tenure.lease where boot = :boot and expires_tick <= :tick
    union all
    select expires_tick, id, jobs from tenure.lease where boot < :boot
    union all
    select expires_tick, id, jobs from tenure.lease where boot > :boot)
where (expires_tick, id) > (coalesce(:after, -9223372036854775808), :after_id)
order by expires_tick, id
limit :most;

-- name: lock_swept
-- sweep: the jobs on these leases whose token still matches.
select l.id as lease, j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested, j.features, j.queue,
       j.task
from json_each(:ids) as b
     cross join tenure.lease as l on l.id = b.value
     cross join json_each(l.jobs) as pair
     cross join tenure.job as j on j.id = pair.value ->> 0 and j.token = pair.value ->> 1
order by j.id;

-- name: lock_leases
-- sweep: expired, seen again under the write lock. No other transaction has locked their jobs (`taken`).
select l.id, l.worker, l.claimed_at, l.jobs, l.started, l.once
from json_each(:ids) as b cross join tenure.lease as l on l.id = b.value
where (l.boot <> :boot or l.expires_tick <= :tick) and :taken is not null
order by l.expires_tick, l.id;

-- name: lock_unlocked
select j.id, j.token
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token'
order by j.id;

-- name: still_live
select j.id, j.token
from json_each(:rows) as b
     cross join tenure.job as j on j.id = b.value ->> 'id' and j.token = b.value ->> 'token';

-- name: keep_on_leases
-- sweep: what was not taken back stays.
update tenure.lease as lease
set jobs = b.value ->> 'jobs', started = coalesce(started, '[]')
from json_each(:rows) as b where lease.id = b.value ->> 'id';

-- name: delete_leases
-- sweep: nothing on these is live any more.
delete from tenure.lease where id in (select value from json_each(:ids));
delete from tenure.gate_hold where lease in (select value from json_each(:ids));

-- name: extend
-- extend: by lease and worker, refused after expiry or after another boot. Never earlier than before.
update tenure.lease as lease
set expires_tick = max(expires_tick, :tick + cast(1e6 * :lease_seconds as integer)),
    expires_at = :now + max(expires_tick - :tick, cast(1e6 * :lease_seconds as integer)),
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
