-- name: open_feed
-- add_reader: the first one.
insert into tenure.feed_end (name, place) values ('feed', 0) on conflict (name) do nothing;

-- name: lock_feed
-- The single writer needs no lock.
select place from tenure.feed_end;

-- name: place_ends
-- Ends get their places when they are written.
select place from tenure.feed where false and place = :most;

-- name: ends_in_flight
-- The single writer has committed.
select '' where false;

-- name: add_reader
-- add_reader: from the last place on.
insert into tenure.feed_reader (tenant, name, position, created_at, seen_at, kept_seconds)
select :tenant, :name, e.place, :now, :now, :kept_seconds from tenure.feed_end as e
where true
on conflict (tenant, name) do nothing
returning name;

-- name: read_readers
select r.tenant, r.name, r.position, r.created_at, r.seen_at, r.lost_at,
       (select e.place from tenure.feed_end e) - r.position as unread,
       (:now - r.seen_at) / 1e6 as unseen_seconds, 0 as unplaced
from tenure.feed_reader as r
where (:tenant is null or r.tenant = :tenant) and (:name is null or r.name = :name)
order by r.tenant, r.name;

-- name: read_feed
select place, job_id as id, token, state, task, queue, tenant, attempts, finished_at, duration_seconds,
       worker, reason, error_type, error_message
from tenure.feed where place > :after order by place limit :most;

-- name: see_reader
-- read_feed: it is still there.
update tenure.feed_reader set seen_at = max(seen_at, :now) where tenant = :tenant and name = :name;

-- name: move_reader
-- move_reader: never back, and never past the last place.
update tenure.feed_reader
set position = max(position, min(:position, (select e.place from tenure.feed_end e))),
    seen_at = max(seen_at, :now)
where tenant = :tenant and name = :name;

-- name: remove_reader
-- remove_reader: its position goes with it.
delete from tenure.feed_reader where tenant = :tenant and name = :name returning name;

-- name: trim_feed
-- move_reader, prune: what all readers have passed, up to a number of places.
delete from tenure.feed
where place <= min(
    (select coalesce(min(r.position), (select e.place from tenure.feed_end e))
     from tenure.feed_reader r where r.lost_at is null),
    (select min(f.place) from tenure.feed f) + :most)
returning place;

-- name: give_up_readers
-- prune: those that have not read, or whose next end has waited, for too long.
update tenure.feed_reader as reader set lost_at = :now
where lost_at is null
  and (seen_at < :now - cast(1e6 * kept_seconds as integer)
       or exists (select 1 from tenure.feed f
                  where f.place = (select min(n.place) from tenure.feed n where n.place > reader.position)
                    and f.finished_at < :now - cast(1e6 * reader.kept_seconds as integer)));
delete from tenure.feed_reader where lost_at is not null and kept_seconds < 86400;

-- name: read_hooks
select task, hook, parameter, job from tenure.failure_hook order by task, hook;

-- name: drop_hooks
-- declare_hooks, remove_hook: these tasks are no hooks any more.
delete from tenure.failure_hook where hook in (select value from json_each(:hooks)) returning hook;

-- name: add_hooks
-- declare_hooks: all that the code declares.
insert into tenure.failure_hook (task, hook, parameter, job)
select b.value ->> 'task', b.value ->> 'hook', b.value ->> 'parameter', b.value ->> 'job'
from json_each(:rows) as b
where true
on conflict (task, hook) do update set parameter = excluded.parameter, job = excluded.job;
