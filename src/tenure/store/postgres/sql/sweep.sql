-- name: peek
-- peek: is there anything to claim, to promote or to sweep, and are there gates? `ranges` are those of `take_tickets`:
-- dead tickets below the floors are not walked here either.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now)
select array(
           select g.queue
           from json_to_recordset(:ranges::json) as g (
                    queue text, low_priority smallint, low_position bigint, below_priority smallint),
                lateral (
                    select from tenure.ready r
                    where r.queue = g.queue
                      and (r.priority, r.position) >= (g.low_priority, g.low_position)
                      and r.priority < g.below_priority
                    order by r.priority, r.position limit 1) as first
           where not exists (select from tenure.queue p
                             where p.name = g.queue and p.paused_at is not null offset 0)) as ready,
       (select extract(epoch from d.due_at - t.now)::double precision
        from tenure.due d where d.due_at > '-infinity' order by d.due_at limit 1) as due_seconds,
       exists (select from tenure.lease l where l.expires_at <= t.now offset 0) as expired,
       exists (select from tenure.gate offset 0) or exists (select from tenure.turn offset 0) as gates
from t;

-- name: promote
-- promote: due tickets go to the end of the line; the token stays. Jobs are locked before tickets,
-- as everywhere; one that is locked by somebody else waits for the next round.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
picked as materialized (
    -- Ten times as many as wanted: what somebody has locked must not hold up the rest.
    select d.due_at, d.job_id, d.token from tenure.due d
    where d.due_at <= (select now from t)
    order by d.due_at, d.job_id limit 10 * :most
), locked as materialized (
    select p.due_at, p.job_id, p.token, j.queue, j.priority, j.suspect, j.features, j.gate
    from picked p, lateral (
        select queue, priority, crashes > 0 as suspect, features, gate from tenure.job
        where id = p.job_id and token = p.token for update skip locked) as j
    limit :most
), gone as (
    delete from tenure.due d using locked
    where d.due_at = any (array[locked.due_at]) and d.job_id = locked.job_id and d.token = locked.token
    returning d.job_id, d.token, locked.queue, locked.priority, locked.suspect, locked.features,
              locked.gate
), new as materialized (
    select gone.*, 1000 * nextval('tenure.position') as position from gone
), moved as (
    update tenure.job j set position = new.position, due_at = null, queued_at = (select now from t)
    from new where j.id = any (array[new.job_id])
), queued as (
    insert into tenure.ready (position, job_id, token, priority, queue, suspect)
    select position, job_id, token, priority, queue, suspect from new where gate is null
)
select job_id as id, features, queue, priority, position, false as due_soon from new;

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
select l.expires_at as expires, l.id from tenure.lease l
where l.expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
  and (l.expires_at, l.id) > (coalesce(:after::timestamptz, '-infinity'), :after_id)
order by l.expires_at, l.id
limit :most;

-- name: lock_lease
-- sweep: no leader: a lease that another sweep has locked is skipped.
select l.id, l.worker, l.claimed_at, l.jobs::text as jobs, l.started::text as started from tenure.lease l
where l.id = :id and l.expires_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
for update skip locked;

-- name: lock_expired
-- sweep: of the jobs on expired leases, those whose token still matches and that nobody locks.
select j.id, j.token, j.attempts, j.max_attempts, j.cancel_requested
from json_to_recordset(:rows::json) as b (id bigint, token bigint),
     lateral (select id, token, attempts, max_attempts, cancel_requested
              from tenure.job where id = b.id and token = b.token for update skip locked) as j
order by j.id;

-- name: still_live
-- sweep: what is live after all of that is locked by somebody, and stays on its lease.
select b.id, b.token
from json_to_recordset(:rows::json) as b (id bigint, token bigint)
where exists (select from tenure.job j where j.id = b.id and j.token = b.token offset 0);

-- name: keep_on_lease
-- sweep: `started` is set, if only to nothing: what is left was not alone when its worker died.
update tenure.lease set jobs = :jobs::json, started = coalesce(started, '[]') where id = :id;

-- name: delete_lease
-- sweep: nothing on it is live any more.
with freed as (delete from tenure.gate_hold where lease = :id)
delete from tenure.lease where id = :id;

-- name: extend
-- extend: by lease and worker, refused after expiry. Answers what was pushed out.
with held as materialized (
    select l.id, b.started
    from json_to_recordset(:rows::json) as b (id bigint, started json),
         lateral (select id from tenure.lease
                  where id = b.id and worker = :worker
                    and expires_at > coalesce(:now::timestamptz, clock_timestamp())
                  for update skip locked) as l
)
update tenure.lease l
set expires_at = coalesce(:now::timestamptz, clock_timestamp()) + :lease_seconds * interval '1 second',
    started = coalesce(held.started, l.started)
from held where l.id = any (array[held.id])
returning l.id;

-- name: valid_leases
-- extend: locked for a moment by somebody, but still ours.
select l.id from tenure.lease l
where l.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and l.worker = :worker and l.expires_at > coalesce(:now::timestamptz, clock_timestamp());

-- name: any_cancel_requested
-- extend: is anything asked to stop at all? Nearly never.
select id from tenure.job where cancel_requested order by id limit 1;

-- name: cancel_requested_jobs
-- extend: of the jobs in hand, those that are asked to stop.
select id, token from tenure.job
where cancel_requested
  and id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)));

-- name: lease_jobs
select l.jobs::text from tenure.lease l
where l.id = any (array(select (value #>> '{}')::bigint from json_array_elements(:ids::json)))
  and l.worker = :worker;
