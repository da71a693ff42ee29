-- name: late_jobs
-- expire: one step of a walk along the times at which jobs should have started. They are asked again
-- once they are locked; locked ones are left to the next walk.
select id, start_by
from tenure.job
where start_by < (select coalesce(:now::timestamptz, clock_timestamp()))
  and attempts = 0
  and (start_by, id) > (coalesce(:after::timestamptz, '-infinity'), :after_id::bigint)
order by start_by, id limit :most
for update skip locked;
