-- name: take_tickets
-- claim: the head of one queue's line, suspects aside. A void ticket comes back without its job.
select t.queue, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested, t.suspect
from (select queue, priority, position, job_id, token, suspect from tenure.ready
      where queue = :queue and suspect = 0
        and not exists (select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null)
      order by priority, position limit :most) as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.position = t.position
order by t.priority, t.position;

-- name: take_suspect
-- claim: the first job in line with a crash on record. A claim takes at most one: were there two,
-- the death of the worker would charge both, and one of them may not have run.
select t.queue, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested, t.suspect
from (select queue, priority, position, job_id, token, suspect
      from tenure.ready indexed by tenure.ready_suspect
      where queue = :queue and suspect = 1
        and not exists (select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null)
      order by priority, position limit 1) as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.position = t.position;

-- name: drop_tickets
-- claim: the tickets just read: the head of the line, without the suspects that were passed over.
delete from tenure.ready
where queue = :queue and (priority, position) <= (:priority, :position) and suspect = 0;

-- name: drop_suspect
-- claim: the suspect's ticket.
delete from tenure.ready where queue = :queue and priority = :priority and position = :position;

-- name: insert_lease
-- claim: one row per block, its deadline on the boot clock.
insert into tenure.lease (worker, request_id, claimed_at, boot, expires_tick, expires_at, jobs, started)
values (:worker, :request_id, :now, :boot, :tick + cast(1e6 * :lease_seconds as integer),
        :now + cast(1e6 * :lease_seconds as integer), :jobs, :started)
returning id, claimed_at;

-- name: claimed_before
-- claim, repeated: never here.
select 1 where false;

-- name: drop_started_keys
-- claim: keys held *until started* are given back.
delete from tenure.unique_key
where (tenant, scope, key, job_id) in (
    select j.tenant, j.unique_scope, j.unique_key, j.id
    from json_each(:ids) as b cross join tenure.job as j on j.id = b.value
    where j.unique_until = 'started');
