-- name: look_at_schedules
-- fire: in how many seconds is something due, and has the clock been set back? Two steps to the ends
-- of two indexes.
select (min(next_at) - :now) / 1e6 as wait_seconds,
       exists (select 1 from tenure.schedule where done_until > :now) as is_early
from tenure.schedule where next_at is not null;

-- name: lock_due_schedules
-- fire: the single writer needs no lock.
select tenant, name, done_until, timing, job, :now as now, next_at as sorted_by from tenure.schedule
where next_at <= :now and (next_at, tenant, name) > (:after, :tenant, :name)
order by next_at, tenant, name limit :most;

-- name: lock_early_schedules
-- fire: dealt with up to a moment that has not come yet: the clock was set back.
select tenant, name, done_until, timing, job, :now as now, done_until as sorted_by from tenure.schedule
where done_until > :now and (done_until, tenant, name) > (:after, :tenant, :name)
order by done_until, tenant, name limit :most;

-- name: busy_schedules
-- fire: which of these have a job that is not finished? Its latest hundred are looked at.
select b.value ->> 'tenant' as tenant, b.value ->> 'name' as name from json_each(:rows) as b
where exists (
    select 1 from (
        select t.job_id from tenure.tick t
        where t.tenant = b.value ->> 'tenant' and t.schedule = b.value ->> 'name'
          and t.job_id is not null
        order by t.tick_at desc limit 100) as t
        cross join tenure.job as j on j.id = t.job_id);

-- name: add_ticks
-- fire, trigger: the unique row decides who fires a tick.
insert into tenure.tick (tenant, schedule, tick_at, fired_at, job_id, triggered)
select b.value ->> 'tenant', b.value ->> 'schedule', b.value ->> 'tick_at', :now,
       b.value ->> 'job_id', coalesce(b.value ->> 'triggered', 0)
from json_each(:rows) as b
where true
on conflict (tenant, schedule, tick_at) do nothing
returning tenant, schedule, tick_at;

-- name: correct_ticks
-- fire, trigger: the job that holds a unique key stands for the one that was not made.
update tenure.tick as tick set job_id = b.value ->> 'job_id'
from json_each(:rows) as b
where tick.tenant = b.value ->> 'tenant' and tick.schedule = b.value ->> 'schedule'
  and tick.tick_at = b.value ->> 'tick_at';

-- name: advance_schedules
-- fire: up to where its ticks are dealt with, and when to look again.
update tenure.schedule as schedule
set next_at = case when schedule.paused_at is null then b.value ->> 'next_at' end,
    done_until = b.value ->> 'done_until',
    last_at = coalesce(b.value ->> 'last_at', schedule.last_at),
    last_job_id = coalesce(b.value ->> 'last_job_id', schedule.last_job_id)
from json_each(:rows) as b
where schedule.tenant = b.value ->> 'tenant' and schedule.name = b.value ->> 'name';

-- name: note_run
-- trigger: the last tick that gave a job.
update tenure.schedule set last_at = :last_at, last_job_id = :last_job_id
where tenant = :tenant and name = :name;

-- name: add_schedule
-- schedule: a new one; the primary key decides.
insert into tenure.schedule (
    tenant, name, next_at, done_until, created_at, changed_at, timing, job, declared)
values (:tenant, :name, :next_at, :at, :at, :at, :timing, :job, :declared)
on conflict (tenant, name) do nothing
returning name;

-- name: change_schedule
-- schedule: edited, declared again, paused or resumed.
update tenure.schedule
set next_at = :next_at, done_until = :done_until, changed_at = :at,
    paused_at = :paused_at, reason = :reason, timing = :timing, job = :job, declared = :declared
where tenant = :tenant and name = :name;

-- name: remove_schedule
-- schedule: its ticks stay until they are pruned.
delete from tenure.schedule where tenant = :tenant and name = :name returning name;

-- name: lock_schedule
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing, job, declared
from tenure.schedule where tenant = :tenant and name = :name;

-- name: get_schedule
-- A tenant's own one comes before a global one of the same name.
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing, job, declared
from tenure.schedule where tenant in (:tenant, '') and name = :name
order by tenant desc limit 1;

-- name: list_schedules
select tenant, name, next_at, done_until, last_at, last_job_id, created_at, changed_at, paused_at,
       reason, timing, job, declared
from tenure.schedule
where (tenant, name) > (:after_tenant, :after_name)
  and (:tenant is null or tenant in (:tenant, ''))
order by tenant, name limit :most;

-- name: list_ticks
-- The latest ticks of a schedule, and what has become of their jobs.
select t.tick_at, t.fired_at, t.triggered, t.job_id,
       coalesce((select l.state from tenure.live l where l.id = t.job_id),
                (select h.state from tenure.history h where h.id = t.job_id)) as state
from tenure.tick t
where t.tenant = :tenant and t.schedule = :name
order by t.tick_at desc limit :most;

-- name: prune_ticks
-- prune: what happened long ago. A tick whose job is not finished says that its schedule is busy, and
-- stays: one step of a walk along the times, which passes it once.
delete from tenure.tick where (tenant, schedule, tick_at) in (
    select t.tenant, t.schedule, t.tick_at from tenure.tick as t
    where t.fired_at >= :after and t.fired_at < :before
      and not exists (select 1 from tenure.job as j where j.id = t.job_id)
    order by t.fired_at limit :most)
returning fired_at;
