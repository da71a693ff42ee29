-- name: record_step
-- step: only for a job held in this transaction. No row: the name is taken, or the job has as much
-- as it may have.
insert into tenure.step (job_id, token, recorded_at, n, bytes, name, function, result)
select :id, :token, :now, had.steps + 1, :bytes, :name, :function, :result
from (select count(*) as steps, coalesce(sum(bytes), 0) as bytes
      from tenure.step where job_id = :id) as had
where had.steps < :most_steps and had.bytes + :bytes <= :most_bytes
on conflict (job_id, name) do nothing
returning n;

-- name: mark_stepped
-- step: the next attempt looks for steps only where this flag is.
update tenure.job set features = features | {STEPS} where id = :id;

-- name: find_step
select token, function, result from tenure.step where job_id = :id and name = :name;

-- name: job_steps
select name, function, token, recorded_at, result from tenure.step where job_id = :id order by n;

-- name: forget_steps
-- replay: the job starts from the beginning.
delete from tenure.step where job_id = :id;
