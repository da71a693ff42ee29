-- name: announce
-- announce: a worker says that it is there, and what it does. Its first word sets `started_at`.
insert into tenure.worker (name, host, pid, started_at, seen_at, boot, seen_tick, info)
values (:name, :host, :pid, :now, :now, :boot, :tick, :info)
on conflict (name) do update
set host = excluded.host, pid = excluded.pid, seen_at = excluded.seen_at, boot = excluded.boot,
    seen_tick = excluded.seen_tick, info = excluded.info;

-- name: retire
-- retire: a worker has ended in good order.
delete from tenure.worker where name = :name;

-- name: list_workers
-- By the boot clock, so that a jump of the wall clock makes no worker look dead. No worker survives a
-- reboot.
select name, host, pid, started_at, seen_at, info,
       boot = :boot and seen_tick > :tick - cast(1e6 * :alive_seconds as integer) as alive
from tenure.worker
order by alive desc, started_at desc, name
limit :most;

-- name: held_jobs
-- How many jobs each worker has claimed and not settled.
select h.worker, count(*) as jobs
from tenure.holding as h cross join tenure.job as j on j.id = h.job_id and j.token = h.token
group by h.worker;

-- name: prune_workers
-- prune: delete workers that were last seen this long ago. After a reboot the boot clock cannot tell, so
-- the wall clock decides.
delete from tenure.worker
where case when boot = :boot then seen_tick < :tick - cast(1e6 * :seconds as integer)
           else seen_at < :now - cast(1e6 * :seconds as integer) end;
