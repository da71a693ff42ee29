-- name: peek
-- peek: is there anything to claim, to promote or to sweep, and are there gates? `ranges` are those
-- of `take_tickets`: consumed tickets below the floors are not scanned here either. The lanes that
-- have no floor are looked at together, in `gaps`.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now)
select array(
           select g.queue
           from json_to_recordset(:ranges::json) as g (
                    queue text, needs smallint, low_priority smallint, low_position bigint,
                    below_priority smallint),
                lateral (
                    select from tenure.ready r
                    where r.queue = g.queue and r.needs = g.needs
                      and (r.priority, r.position) >= (g.low_priority, g.low_position)
                      and r.priority < g.below_priority
                    order by r.priority, r.position limit 1) as first
           where not exists (select from tenure.queue p
                             where p.name = g.queue and p.paused_at is not null offset 0)
           union all
           select g.queue
           from json_to_recordset(:gaps::json) as g (queue text, first smallint, last smallint)
           where exists (select from tenure.ready r
                         where r.queue = g.queue and r.needs between g.first and g.last offset 0)
             and not exists (select from tenure.queue p
                             where p.name = g.queue and p.paused_at is not null offset 0)) as ready,
       (select extract(epoch from d.due_at - t.now)::double precision
        from tenure.due d where d.due_at > '-infinity' order by d.due_at limit 1) as due_seconds,
       exists (select from tenure.lease l where l.expires_at <= t.now offset 0) as expired,
       exists (select from tenure.gate offset 0) or exists (select from tenure.turn offset 0) as gates
from t;

-- name: promote
-- promote: due tickets go to the end of the queue; the token stays. Jobs are locked before tickets,
-- as everywhere. A job that another transaction has locked waits for the next round.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
picked as materialized (
    -- Ten times as many as wanted: locked jobs must not delay the others.
    select d.due_at, d.job_id, d.token from tenure.due d
    where d.due_at <= (select now from t)
    order by d.due_at, d.job_id limit 10 * :most
), locked as materialized (
    select p.due_at, p.job_id, p.token, j.queue, j.needs, j.size_kb, j.priority, j.suspect, j.features,
           j.gate
    from picked p, lateral (
        select queue, needs, size_kb, priority, crashes > 0 as suspect, features, gate from tenure.job
        where id = p.job_id and token = p.token for update skip locked) as j
    limit :most
), gone as (
    delete from tenure.due d using locked
    where d.due_at = any (array[locked.due_at]) and d.job_id = locked.job_id and d.token = locked.token
    returning d.job_id, d.token, locked.queue, locked.needs, locked.size_kb, locked.priority,
              locked.suspect, locked.features, locked.gate
), new as materialized (
    select gone.*, 1000 * nextval('tenure.position') as position from gone
), moved as (
    update tenure.job j set position = new.position, queued_at = j.due_at, due_at = null
    from new where j.id = any (array[new.job_id])
), queued as (
    insert into tenure.ready (position, job_id, token, priority, needs, size_kb, queue, suspect)
    select position, job_id, token, priority, needs, size_kb, queue, suspect from new where gate is null
)
select job_id as id, features, queue, needs, priority, position, false as due_soon from new;

-- name: drop_void_due
-- promote: a due ticket whose job is gone or has moved on is void.
delete from tenure.due d
where d.due_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
  and d.ctid = any (array(
      select v.ctid from tenure.due v
      where v.due_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
        and not exists (select from tenure.job j
                        where j.id = v.job_id and j.token = v.token offset 0)
      order by v.due_at limit :most
      for update skip locked));

-- name: expired_leases
-- sweep: leases whose deadline has passed, a page at a time, behind the last one seen.
select l.expires_at as expires, l.id, json_array_length(l.jobs) as jobs from tenure.lease l
where l.expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
  and (l.expires_at, l.id) > (coalesce(:after::timestamptz, '-infinity'), :after_id)
order by l.expires_at, l.id
limit :most;

-- name: lock_swept
-- sweep: of the jobs on these leases, those whose token still matches and that no transaction has locked.
select l.id as lease, j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested, j.features, j.queue,
       j.task
from unnest(array(select (value #>> '{}')::bigint from json_array_elements(:ids::json))) as b (id),
     lateral (select id, jobs from tenure.lease where id = b.id offset 0) as l,
     json_array_elements(l.jobs) as pair,
     lateral (select id, token, attempts, max_attempts, cancel_requested, features, queue, task
              from tenure.job
              where id = (pair ->> 0)::bigint and token = (pair ->> 1)::bigint
              for update skip locked) as j
order by j.id;

-- name: lock_leases
-- sweep: the leases of these jobs, and those without a live job. There is no leader: a lease that another
-- sweep has locked is skipped, and so is one on which other transactions have locked every job.
select l.id, l.worker, l.claimed_at, l.jobs::text as jobs, l.started::text as started,
       array_to_json(l.once)::text as once
from unnest(array(select (value #>> '{}')::bigint from json_array_elements(:ids::json))) as b (id),
     lateral (select * from tenure.lease
              where id = b.id
                and expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
                and (id = any (array(select (value #>> '{}')::bigint from json_array_elements(:taken::json)))
                     or not exists (
                         select from json_array_elements(jobs) as pair,
                              lateral (select from tenure.job j
                                       where j.id = (pair ->> 0)::bigint and j.token = (pair ->> 1)::bigint
                                       offset 0) as live))
              for update skip locked) as l
order by l.expires_at, l.id;

-- name: lock_unlocked
-- settle: of these jobs, those whose token still matches and that no transaction has locked.
select j.id, j.token
from json_to_recordset(:rows::json) as b (id bigint, token bigint),
     lateral (select id, token
              from tenure.job where id = b.id and token = b.token for update skip locked) as j
order by j.id;

-- name: still_live
-- sweep: a job that is still live now is locked by another transaction, and stays on its lease.
select b.id, b.token
from json_to_recordset(:rows::json) as b (id bigint, token bigint)
where exists (select from tenure.job j where j.id = b.id and j.token = b.token offset 0);

-- name: keep_on_leases
-- sweep: `started` is set, if only to nothing: what is left was not alone when its worker died.
update tenure.lease l set jobs = b.jobs, started = coalesce(l.started, '[]')
from json_to_recordset(:rows::json) as b (id bigint, jobs json)
where l.id = any (array[b.id]);

-- name: delete_leases
-- sweep: nothing on these is live any more.
with gone as materialized (
    select array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)) as ids
), freed as (
    delete from tenure.gate_hold where lease = any ((select ids from gone)::bigint[])
)
delete from tenure.lease where id = any ((select ids from gone)::bigint[]);

-- name: extend
-- extend: by lease and worker, refused after expiry. Never earlier than before. Returns the extended
-- leases.
with held as materialized (
    select l.id, b.started
    from json_to_recordset(:rows::json) as b (id bigint, started json),
         lateral (select id from tenure.lease
                  where id = b.id and worker = :worker
                    and expires_at > coalesce(:now::timestamptz, clock_timestamp())
                  for update skip locked) as l
)
update tenure.lease l
set expires_at = greatest(
        l.expires_at,
        coalesce(:now::timestamptz, clock_timestamp()) + :lease_seconds * interval '1 second'),
    started = coalesce(held.started, l.started)
from held where l.id = any (array[held.id])
returning l.id;

-- name: valid_leases
-- extend: locked for a moment by another transaction, but still valid.
select l.id from tenure.lease l
where l.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and l.worker = :worker and l.expires_at > coalesce(:now::timestamptz, clock_timestamp());

-- name: any_cancel_requested
-- extend: is anything asked to stop at all? Nearly never.
select id from tenure.job where cancel_requested order by id limit 1;

-- name: cancel_requested_jobs
-- extend: of the claimed jobs, those with a cancel request.
select id, token from tenure.job
where cancel_requested
  and id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: lease_jobs
select l.jobs::text from tenure.lease l
where l.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and l.worker = :worker;
