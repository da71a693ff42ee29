-- name: take_tickets
-- claim: one queue a call. A void ticket comes back without its job.
select t.queue, t.priority, t.place, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested
from (select queue, priority, place, job_id, token from tenure.ready
      where queue = :queue
        and not exists (select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null)
      order by priority, place limit :most) as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token
order by t.priority, t.place;

-- name: drop_tickets
-- claim: the tickets just read, which are the head of the line.
delete from tenure.ready where queue = :queue and (priority, place) <= (:priority, :place);

-- name: insert_lease
-- claim: one row per block, its deadline on the boot clock.
insert into tenure.lease (worker, claimed_at, boot, expires_tick, expires_at, jobs)
values (:worker, :now, :boot, :tick + cast(1e6 * :lease_seconds as integer),
        :now + cast(1e6 * :lease_seconds as integer), :jobs)
returning id, claimed_at, expires_at;

-- name: drop_started_keys
-- claim: keys held *until started* are given back.
delete from tenure.unique_key
where (tenant, scope, key, job_id) in (
    select j.tenant, j.unique_scope, j.unique_key, j.id
    from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
    where j.unique_until = 'started');
