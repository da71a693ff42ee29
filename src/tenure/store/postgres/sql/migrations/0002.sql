-- Schedules: what is to be enqueued, when, and what was.

create table tenure.schedule (
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    next_at timestamptz,                -- when somebody has to look; null while it is paused
    done_until timestamptz not null,    -- all ticks up to here are dealt with
    last_at timestamptz,                -- its last tick that gave a job
    last_job_id bigint,
    created_at timestamptz not null,
    changed_at timestamptz not null,
    paused_at timestamptz,
    reason text,
    timing json not null,
    job json not null,                  -- what each tick enqueues
    declared json,                      -- prints of what code has declared; null: made at run time
    primary key (tenant, name),
    check (next_at is null or paused_at is null)
);
create index schedule_next_at on tenure.schedule (next_at) where next_at is not null;
create index schedule_done_until on tenure.schedule (done_until);

-- One row per tick that was dealt with, written in the transaction that enqueues its job.
create table tenure.tick (
    tenant text not null,
    schedule text not null,
    tick_at timestamptz not null,
    fired_at timestamptz not null,
    job_id bigint,                      -- null: skipped, because the last one was still at work
    triggered boolean not null default false,
    primary key (tenant, schedule, tick_at)
);
create index tick_fired_at on tenure.tick (fired_at);
create index tick_with_job on tenure.tick (tenant, schedule, tick_at) where job_id is not null;
