-- Schedules: what is to be enqueued, when, and what was.

create table tenure.schedule (
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    next_at integer,                    -- when somebody has to look; null while it is paused
    done_until integer not null,        -- all ticks up to here are dealt with
    last_at integer,                    -- its last tick that gave a job
    last_job_id integer,
    created_at integer not null,
    changed_at integer not null,
    paused_at integer,
    reason text,
    timing text not null,
    job text not null,                  -- what each tick enqueues
    declared text,                      -- prints of what code has declared; null: made at run time
    primary key (tenant, name),
    check (next_at is null or paused_at is null)
) strict, without rowid;
create index tenure.schedule_next_at on tenure.schedule (next_at) where next_at is not null;
create index tenure.schedule_done_until on tenure.schedule (done_until);

-- One row per tick that was dealt with, written in the transaction that enqueues its job.
create table tenure.tick (
    tenant text not null,
    schedule text not null,
    tick_at integer not null,
    fired_at integer not null,
    job_id integer,                     -- null: skipped, because the last one was still at work
    triggered integer not null default 0 check (triggered = 0 or triggered = 1),
    primary key (tenant, schedule, tick_at)
) strict, without rowid;
create index tenure.tick_fired_at on tenure.tick (fired_at);
create index tenure.tick_with_job on tenure.tick (tenant, schedule, tick_at) where job_id is not null;
