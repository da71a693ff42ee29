-- name: open_feed
-- add_reader: the first one.
insert into tenure.feed_end (name, place) values ('feed', 0) on conflict (name) do nothing;

-- name: lock_feed
-- A transaction that gives places or removes ends has this row. What it decides by is read in a later
-- statement.
select place from tenure.feed_end for update;

-- name: place_ends
-- add_reader, read_feed, prune: ends that are committed get their places, in the order of their
-- numbers. Called with the feed locked.
with taken as (
    delete from tenure.feed_new
    where n = any (array(select o.n from tenure.feed_new o order by o.n limit :most))
    returning *
), placed as (
    insert into tenure.feed (
        place, job_id, token, state, attempts, finished_at, duration_seconds, tenant, queue, task,
        worker, reason, error_type, error_message)
    select (select e.place from tenure.feed_end e) + row_number() over (order by n), job_id, token,
           state, attempts, finished_at, duration_seconds, tenant, queue, task, worker, reason,
           error_type, error_message
    from taken
    returning place
), last as (
    update tenure.feed_end set place = place + (select count(*) from taken)
    where exists (select from taken)
)
select place from placed;

-- name: ends_in_flight
-- add_reader: transactions that have ended jobs, or are about to, and may not have seen the reader. (A
-- statement gets its locks before its snapshot, so one that shows no lock yet will see it.)
select distinct virtualtransaction
from pg_catalog.pg_locks
where locktype = 'relation' and granted and relation = 'tenure.feed_new'::regclass
  and mode = 'RowExclusiveLock' and pid is distinct from pg_backend_pid()
  and database = (select oid from pg_catalog.pg_database where datname = current_database());

-- name: add_reader
-- add_reader: from the last place on. Called with the feed locked.
insert into tenure.feed_reader (tenant, name, position, created_at, seen_at, kept_seconds)
select :tenant, :name, e.place, t.now, t.now, :kept_seconds
from tenure.feed_end e, (select coalesce(:now::timestamptz, clock_timestamp()) as now) as t
on conflict (tenant, name) do nothing
returning name;

-- name: read_readers
select r.tenant, r.name, r.position, r.created_at, r.seen_at, r.lost_at,
       (select e.place from tenure.feed_end e) - r.position
           + (select count(*) from tenure.feed_new) as unread,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - r.seen_at)::double precision
           as unseen_seconds,
       exists (select from tenure.feed_new) as unplaced
from tenure.feed_reader r
where (:tenant::text is null or r.tenant = :tenant) and (:name::text is null or r.name = :name)
order by r.tenant, r.name;

-- name: read_feed
select place, job_id as id, token, state::text, task, queue, tenant, attempts, finished_at, duration_seconds,
       worker, reason, error_type, error_message
from tenure.feed where place > :after order by place limit :most;

-- name: see_reader
-- read_feed: it is still there.
update tenure.feed_reader
set seen_at = greatest(seen_at, coalesce(:now::timestamptz, clock_timestamp()))
where tenant = :tenant and name = :name;

-- name: move_reader
-- move_reader: never back, and never past the last place.
update tenure.feed_reader
set position = greatest(position, least(:position, (select e.place from tenure.feed_end e))),
    seen_at = greatest(seen_at, coalesce(:now::timestamptz, clock_timestamp()))
where tenant = :tenant and name = :name;

-- name: remove_reader
-- remove_reader: its position goes with it.
delete from tenure.feed_reader where tenant = :tenant and name = :name returning name;

-- name: trim_feed
-- move_reader, prune: what all readers have passed, up to a number of places. Called with the feed locked.
delete from tenure.feed
where place <= least(
    (select coalesce(min(r.position), (select e.place from tenure.feed_end e))
     from tenure.feed_reader r where r.lost_at is null),
    (select min(f.place) from tenure.feed f) + :most)
returning place;

-- name: give_up_readers
-- prune: those that have not read, or whose next end has waited, for too long.
with t as materialized (select coalesce(:now::timestamptz, clock_timestamp()) as now),
away as (
    select r.tenant, r.name
    from tenure.feed_reader r, t
    where r.lost_at is null
      and (r.seen_at < t.now - r.kept_seconds * interval '1 second'
           or exists (select from tenure.feed f
                      where f.place = (select min(n.place) from tenure.feed n where n.place > r.position)
                        and f.finished_at < t.now - r.kept_seconds * interval '1 second'))
), lost as (
    update tenure.feed_reader r set lost_at = t.now
    from away, t where r.tenant = away.tenant and r.name = away.name and r.kept_seconds >= 86400
)
delete from tenure.feed_reader r
using away where r.tenant = away.tenant and r.name = away.name and r.kept_seconds < 86400;

-- name: read_hooks
select task, hook, parameter, job::text from tenure.failure_hook order by task, hook;

-- name: drop_hooks
-- declare_hooks, remove_hook: these tasks are no hooks any more.
delete from tenure.failure_hook
where hook in (select json_array_elements_text(:hooks::json)) returning hook;

-- name: add_hooks
-- declare_hooks: all that the code declares.
insert into tenure.failure_hook (task, hook, parameter, job)
select b.task, b.hook, b.parameter, b.job::json
from json_to_recordset(:rows::json) as b (task text, hook text, parameter text, job text)
on conflict (task, hook) do update set parameter = excluded.parameter, job = excluded.job;
