-- name: late_jobs
-- expire: one step of a walk along the times at which jobs should have started.
select id, start_by
from tenure.job indexed by tenure.job_start_by
where start_by < :now and start_by is not null and attempts = 0
  and (:after is null or (start_by, id) > (:after, :after_id))
order by start_by, id limit :most;
