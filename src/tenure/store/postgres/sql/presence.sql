-- name: announce
-- announce: a worker says that it is there, and what it does. Its first word sets `started_at`.
insert into tenure.worker (name, host, pid, started_at, seen_at, info)
select :name, :host, :pid::int, t.now, t.now, :info::json
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t
on conflict (name) do update
set host = excluded.host, pid = excluded.pid, seen_at = excluded.seen_at, info = excluded.info;

-- name: retire
-- retire: a worker has ended in good order.
delete from tenure.worker where name = :name;

-- name: list_workers
-- Those who are alive first, and of these the newest.
select w.name, w.host, w.pid, w.started_at, w.seen_at, w.info::text as info,
       w.seen_at > t.now - :alive_seconds * interval '1 second' as alive
from tenure.worker w, (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t
order by alive desc, w.started_at desc, w.name
limit :most;

-- name: held_jobs
-- How many jobs each worker has claimed and not settled.
select h.worker, count(*) as jobs
from tenure.holding h, lateral (
    select from tenure.job j where j.id = h.job_id and j.token = h.token offset 0) as j
group by h.worker;

-- name: prune_workers
-- prune: workers that have not been seen for so long.
delete from tenure.worker
where seen_at < coalesce(:now::timestamptz, clock_timestamp()) - :seconds * interval '1 second';
