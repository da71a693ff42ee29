-- name: look_at_lanes
-- claim: the lanes of a queue that have tickets, and whether there are suspects or large jobs in them.
-- It goes from lane to lane: a look at each lane that has tickets, and one more.
with recursive lane (needs) as (
    select min(r.needs) from tenure.ready r where r.queue = :queue and not exists (
        select 1 from tenure.queue p where p.name = :queue and p.paused_at is not null)
    union all
    select (select min(r.needs) from tenure.ready r where r.queue = :queue and r.needs > lane.needs)
    from lane where lane.needs is not null
)
select lane.needs,
       exists (select 1 from tenure.ready r indexed by tenure.ready_special
               where r.queue = :queue and r.needs = lane.needs and (r.suspect = 1 or r.size_kb > 0))
from lane where lane.needs is not null;

-- name: look_at_special
-- claim: which of both are in a lane.
select exists (select 1 from tenure.ready r indexed by tenure.ready_special
               where r.queue = :queue and r.needs = :needs and r.suspect = 1
                 and (r.suspect = 1 or r.size_kb > 0)) as suspects,
       exists (select 1 from tenure.ready r indexed by tenure.ready_special
               where r.queue = :queue and r.needs = :needs and r.suspect = 0
                 and (r.suspect = 1 or r.size_kb > 0)) as large;

-- name: size_of_lane
-- claim: the kilobytes of the tickets at the head of a lane, suspects aside.
select coalesce(sum(size_kb), 0)
from (select size_kb from tenure.ready
      where queue = :queue and needs = :needs and suspect = 0
      order by priority, position limit :most);

-- name: head_of_lane
-- claim: these tickets, where not all of them may fit.
select priority, position, needs, size_kb, suspect from tenure.ready
where queue = :queue and needs = :needs and suspect = 0
order by priority, position limit :most;

-- name: head_of_suspects
-- claim: the first job of a lane with a crash on record. A claim takes at most one: were there two,
-- the death of the worker would charge both, and one of them may not have run.
select priority, position, needs, size_kb, suspect from tenure.ready indexed by tenure.ready_special
where queue = :queue and needs = :needs and suspect = 1 and (suspect = 1 or size_kb > 0)
order by priority, position limit 1;

-- name: take_tickets
-- claim: the head of a lane, suspects aside. A void ticket comes back without its job.
select t.queue, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested as ends, t.needs, j.queued_at, j.start_by
from (select queue, needs, priority, position, job_id, token from tenure.ready
      where queue = :queue and needs = :needs and suspect = 0
      order by priority, position limit :most) as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.position = t.position
order by t.priority, t.position;

-- name: take_suspect
-- claim: one suspect.
select t.queue, t.priority, t.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.cancel_requested as ends, t.needs, j.queued_at, j.start_by
from tenure.ready as t
     left join tenure.job as j on j.id = t.job_id and j.token = t.token and j.position = t.position
where t.queue = :queue and t.needs = :needs and t.priority = :priority and t.position = :position;

-- name: drop_tickets
-- claim: the tickets just read: the head of the lane, without the suspects that were passed over.
delete from tenure.ready
where queue = :queue and needs = :needs and (priority, position) <= (:priority, :position)
  and suspect = 0;

-- name: drop_suspect
-- claim: the suspect's ticket.
delete from tenure.ready
where queue = :queue and needs = :needs and priority = :priority and position = :position;

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

-- name: look_ahead
-- claim by tasks: the next tickets of these lanes, suspects among them, and the tasks of their jobs.
select r.queue, r.needs, r.priority, r.position, r.suspect, r.size_kb, j.task
from json_each(:lanes) as l
     cross join tenure.ready as r on r.queue = l.value ->> 'queue' and r.needs = l.value ->> 'needs'
       and (r.priority, r.position) > (l.value ->> 'priority', l.value ->> 'position')
       and (r.priority, r.position) <= (
           select coalesce(max(p.priority), 1000), coalesce(max(p.position), 0) from (
               select e.priority, e.position from tenure.ready e
               where e.queue = l.value ->> 'queue' and e.needs = l.value ->> 'needs'
                 and (e.priority, e.position) > (l.value ->> 'priority', l.value ->> 'position')
               order by e.priority, e.position limit 1 offset :most - 1) as p)
     left join tenure.job as j on j.id = r.job_id and j.token = r.token and j.position = r.position
where not exists (select 1 from tenure.queue p where p.name = r.queue and p.paused_at is not null);

-- name: jobs_held_by
-- held: the live jobs on the leases of a worker.
select j.queue, j.priority, j.position, j.id, j.token, j.task, j.args, j.tenant, j.attempts,
       j.max_attempts, j.crashes, j.created_at, j.timeout_seconds, j.retry, j.metadata, j.features,
       j.needs, j.queued_at, l.id as lease, l.claimed_at, l.expires_at
from tenure.lease as l
     cross join json_each(l.jobs) as pair
     cross join tenure.job as j on j.id = pair.value ->> 0 and j.token = pair.value ->> 1
where l.worker = :worker and l.boot = :boot and l.expires_tick > :tick
order by l.id, j.id;
