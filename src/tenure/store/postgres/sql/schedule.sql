-- name: look_at_schedules
-- fire: in how many seconds is something due, and has the clock been set back? Two steps to the ends
-- of two indexes.
select extract(epoch from (select s.next_at from tenure.schedule s where s.next_at is not null
                           order by s.next_at limit 1) - t.now)::double precision as wait_seconds,
       exists (select from tenure.schedule s where s.done_until > t.now offset 0) as is_early
from (select coalesce(:now::timestamptz, clock_timestamp()) as now offset 0) as t;

-- name: lock_due_schedules
-- fire: the due schedules that no other worker is firing now.
select s.tenant, s.name, s.done_until, s.timing::text as timing, s.job::text as job,
       coalesce(:now::timestamptz, clock_timestamp()) as now, s.next_at as sorted_by
from tenure.schedule s
where s.next_at <= (select coalesce(:now::timestamptz, clock_timestamp()))
  and (s.next_at, s.tenant, s.name) > (:after::timestamptz, :tenant::text, :name::text)
order by s.next_at, s.tenant, s.name
limit :most
for update skip locked;

-- name: lock_early_schedules
-- fire: dealt with up to a moment that has not come yet: the clock was set back.
select s.tenant, s.name, s.done_until, s.timing::text as timing, s.job::text as job,
       coalesce(:now::timestamptz, clock_timestamp()) as now, s.done_until as sorted_by
from tenure.schedule s
where s.done_until > (select coalesce(:now::timestamptz, clock_timestamp()))
  and (s.done_until, s.tenant, s.name) > (:after::timestamptz, :tenant::text, :name::text)
order by s.done_until, s.tenant, s.name
limit :most
for update skip locked;

-- name: busy_schedules
-- fire: which of these have a job that is not finished? Its latest hundred are looked at.
select b.tenant, b.name
from json_to_recordset(:rows::json) as b (tenant text, name text)
where exists (
    select from (
        select t.job_id from tenure.tick t
        where t.tenant = b.tenant and t.schedule = b.name and t.job_id is not null
        order by t.tick_at desc limit 100) as t,
        lateral (select from tenure.job j where j.id = t.job_id offset 0) as j);

-- name: add_ticks
-- fire, trigger: the unique row decides who fires a tick.
insert into tenure.tick (tenant, schedule, tick_at, fired_at, job_id, triggered)
select b.tenant, b.schedule, b.tick_at, coalesce(:now::timestamptz, clock_timestamp()), b.job_id,
       coalesce(b.triggered, false)
from json_to_recordset(:rows::json) as b (
    tenant text, schedule text, tick_at timestamptz, job_id bigint, triggered boolean)
on conflict (tenant, schedule, tick_at) do nothing
returning tenant, schedule, tick_at;

-- name: correct_ticks
-- fire, trigger: the job that holds a unique key stands for the one that was not made.
update tenure.tick t set job_id = b.job_id
from json_to_recordset(:rows::json) as b (
    tenant text, schedule text, tick_at timestamptz, job_id bigint)
where t.tenant = b.tenant and t.schedule = b.schedule and t.tick_at = b.tick_at;

-- name: advance_schedules
-- fire: up to where its ticks are dealt with, and when to look again.
update tenure.schedule s
set next_at = case when s.paused_at is null then b.next_at end, done_until = b.done_until,
    last_at = coalesce(b.last_at, s.last_at), last_job_id = coalesce(b.last_job_id, s.last_job_id)
from json_to_recordset(:rows::json) as b (
    tenant text, name text, next_at timestamptz, done_until timestamptz, last_at timestamptz,
    last_job_id bigint)
where s.tenant = b.tenant and s.name = b.name;

-- name: note_run
-- trigger: the last tick that gave a job.
update tenure.schedule set last_at = :last_at, last_job_id = :last_job_id
where tenant = :tenant and name = :name;

-- name: add_schedule
-- schedule: a new one; the primary key decides.
insert into tenure.schedule (
    tenant, name, next_at, done_until, created_at, changed_at, timing, job, declared)
values (:tenant, :name, :next_at::timestamptz, :at, :at, :at, :timing::json, :job::json,
        :declared::json)
on conflict (tenant, name) do nothing
returning name;

-- name: change_schedule
-- schedule: edited, declared again, paused or resumed.
update tenure.schedule
set next_at = :next_at::timestamptz, done_until = :done_until, changed_at = :at,
    paused_at = :paused_at::timestamptz, reason = :reason::text, timing = :timing::json,
    job = :job::json, declared = :declared::json
where tenant = :tenant and name = :name;

-- name: remove_schedule
-- schedule: its ticks stay until they are pruned.
delete from tenure.schedule where tenant = :tenant and name = :name returning name;

-- name: lock_schedule
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing::text as timing, job::text as job, declared::text as declared
from tenure.schedule where tenant = :tenant and name = :name
for update;

-- name: get_schedule
-- A tenant's own one comes before a global one of the same name.
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing::text as timing, job::text as job, declared::text as declared
from tenure.schedule where tenant in (:tenant::text, '') and name = :name
order by tenant desc limit 1;

-- name: list_schedules
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing::text as timing, job::text as job, declared::text as declared
from tenure.schedule
where (tenant, name) > (:after_tenant::text, :after_name::text)
  and (:tenant::text is null or tenant in (:tenant::text, ''))
order by tenant, name limit :most;

-- name: list_ticks
-- The latest ticks of a schedule, and what has become of their jobs.
select t.tick_at, t.fired_at, t.triggered, t.job_id,
       coalesce((select l.state::text from tenure.live l where l.id = t.job_id),
                (select h.state::text from tenure.history h where h.id = t.job_id limit 1)) as state
from tenure.tick t
where t.tenant = :tenant and t.schedule = :name
order by t.tick_at desc limit :most;

-- name: prune_ticks
-- prune: what happened long ago. A tick whose job is not finished says that its schedule is busy, and
-- stays: one step of a walk along the times, which passes it once.
with gone as materialized (
    select tenant, schedule, tick_at from tenure.tick t
    where fired_at >= :after and fired_at < :before
      and not exists (select from tenure.job j where j.id = t.job_id offset 0)
    order by fired_at limit :most
    for update skip locked
)
delete from tenure.tick t using gone
where t.tenant = gone.tenant and t.schedule = gone.schedule and t.tick_at = gone.tick_at
returning t.fired_at;
