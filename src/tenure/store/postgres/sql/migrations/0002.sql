-- The job table that people keep, look up and settle by hand.


-- --- retention and keys --------------------------------------------------------------------------

-- How long the job is kept once it has finished. Null: the worker or the default says it. 0: not at all.
alter table tenure.job
    add column keep_succeeded_seconds double precision check (keep_succeeded_seconds >= 0),
    add column keep_other_seconds double precision check (keep_other_seconds >= 0);
alter table tenure.history
    add column keep_until timestamptz,          -- null: as long as prune keeps jobs by default
    add column keep_succeeded_seconds double precision,
    add column keep_other_seconds double precision;
-- The rows that prune does not find by the time of their end. Nodes (64) go with their workflow.
create index history_keep_until on tenure.history (keep_until, id)
    where keep_until is not null and features & 64 = 0;

-- How the job ended, if its key outlives it. Null: it is live.
alter table tenure.unique_key add column outcome text
    check (outcome in ('succeeded', 'failed', 'cancelled', 'skipped'));

-- One row: whether prune trusts the clock.
create table tenure.prune_clock (
    one int primary key check (one = 1),
    trusted_at timestamptz not null,    -- the time of the last prune, or of the migration
    doubted_at timestamptz              -- since when prune refuses, because the clock has jumped ahead
);
insert into tenure.prune_clock (one, trusted_at) values (1, clock_timestamp());

-- As before, and a day in which a job is kept for longer stays.
create or replace function tenure.drop_history_days(before timestamptz) returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    cut constant pg_catalog.timestamptz := least(
        coalesce(before, '-infinity'), pg_catalog.clock_timestamp() - interval '24 hours');
    part record;
    is_kept pg_catalog.bool;
    dropped int := 0;
begin
    for part in
        select i.inhrelid::pg_catalog.regclass as name,
               (pg_catalog.to_date(pg_catalog.right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp
                   at time zone 'UTC' as ended
        from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'tenure.history'::pg_catalog.regclass and c.relname ~ '^history_\d{8}$'
        order by c.relname
    loop
        exit when part.ended > cut;
        execute pg_catalog.format(
            'select exists (select from %s where keep_until is not null and features & 64 = 0'
            ' and keep_until > pg_catalog.clock_timestamp())', part.name) into is_kept;
        continue when is_kept;
        begin
            execute pg_catalog.format('drop table %s', part.name);
            dropped := dropped + 1;
        exception when lock_not_available then
            exit;
        end;
    end loop;
    return dropped;
end
$$;



-- --- attempts and notes --------------------------------------------------------------------------

-- What the attempts of the job have annotated: an object.
alter table tenure.note add column notes json;

-- The ids of its jobs that start at most once, and have started. Only `start_once` writes it, so that
-- no heartbeat can take such a mark away.
alter table tenure.lease add column once bigint[];


-- --- finding jobs --------------------------------------------------------------------------------

-- For people who look for jobs. A job that succeeds at once and has no key pays nothing for these.
create index history_unsuccessful_finished on tenure.history (finished_at, id) where state <> 'succeeded';
create index history_key on tenure.history (unique_key, id) where unique_key is not null;
create index job_key on tenure.job (unique_key, id) where unique_key is not null;
create index job_error on tenure.job (id) where error is not null;



-- --- statistics ----------------------------------------------------------------------------------

-- What has ended: one row per process, queue, task and outcome every ten seconds, which prune adds up
-- to hours and days.
create table tenure.statistic (
    at timestamptz not null,            -- when the process began to count
    ends bigint not null check (ends >= 0),
    wait_seconds double precision not null default 0,
    run_seconds double precision not null default 0,
    span int not null check (span in (10, 3600, 86400)),    -- for how many seconds the row stands
    queue text collate "C" not null,
    task text collate "C" not null,
    outcome text collate "C" not null
        check (outcome in ('succeeded', 'failed', 'cancelled', 'skipped', 'retried', 'snoozed', 'crashed')),
    process text collate "C" not null,  -- empty: prune has added up the rows of all processes
    waits json,                         -- how many waited for how long, by bucket; null: none has run
    runs json,                          -- the same for the time that their handlers ran
    primary key (span, at, queue, task, outcome, process)
);

-- How many live jobs there are, as a worker has last counted them.
create table tenure.depth (
    queue text collate "C" not null,
    state text not null,
    jobs bigint not null,
    oldest_at timestamptz,              -- of queued jobs: since when the first one is ready
    primary key (queue, state)
);
create table tenure.depth_sample (      -- one row, or none
    one int primary key check (one = 1),
    sampled_at timestamptz,             -- null: never
    took_seconds double precision,
    next_at timestamptz not null        -- no worker counts before this time
);



-- --- the feed of finished jobs -------------------------------------------------------------------

-- Who follows the feed, and how far each has come. Ends are written only while there is a reader that
-- is not lost.
create table tenure.feed_reader (
    tenant text not null,                   -- empty: it sees the jobs of all tenants
    name text not null,
    position bigint not null,               -- the place of the last end that it is done with
    created_at timestamptz not null,
    seen_at timestamptz not null,           -- when it last read or moved, to the minute
    lost_at timestamptz,                    -- since when the feed no longer waits for it
    kept_seconds double precision not null check (kept_seconds >= 0),   -- how long the feed waits for it
    primary key (tenant, name)
);

-- Ends as they are committed. A reader moves them to `feed`: transactions commit in another order than
-- that in which they draw numbers, so a number that is drawn here tells nothing of what comes late.
create table tenure.feed_new (
    n bigint generated always as identity primary key,
    job_id bigint not null,
    token bigint not null,
    state tenure.state not null,
    attempts int not null,
    finished_at timestamptz not null,
    duration_seconds double precision,
    tenant text not null,
    queue text not null,
    task text not null,
    worker text,
    reason text,
    error_type text,
    error_message text
);

-- The ends that a reader has not passed, in the order in which all readers get them.
create table tenure.feed (
    place bigint primary key,
    job_id bigint not null,
    token bigint not null,
    state tenure.state not null,
    attempts int not null,
    finished_at timestamptz not null,
    duration_seconds double precision,
    tenant text not null,
    queue text not null,
    task text not null,
    worker text,
    reason text,
    error_type text,
    error_message text
);

-- At most one row: the last place that was given. A transaction that gives places or
-- removes ends has it locked.
create table tenure.feed_end (
    name text primary key check (name = 'feed'),
    place bigint not null
);

-- What is enqueued when a job of a task fails.
create table tenure.failure_hook (
    task text not null,                     -- empty: every task
    hook text not null,                     -- the task that is called
    parameter text not null,                -- its parameter that receives the failed job
    job json not null,                      -- its options
    primary key (task, hook)
);


-- --- deadlines and replacement -------------------------------------------------------------------

-- A job ends as skipped if no attempt was used by `start_by`. `finish_by` is a deadline for people.
alter table tenure.job add column start_by timestamptz;
alter table tenure.job add column finish_by timestamptz;
alter table tenure.history add column start_by timestamptz;
alter table tenure.history add column finish_by timestamptz;

-- Jobs that may expire. A job that has used an attempt is not among them.
create index job_start_by on tenure.job (start_by, id)
    where start_by is not null and attempts = 0;
-- For an enqueue that is repeated after a COMMIT without an answer: has it replaced a job before?
create index event_replaced_by on tenure.event (request_id) where kind = 'replaced';


-- --- views ---------------------------------------------------------------------------------------

-- The live half of `jobs`.
create or replace view tenure.live as
    select j.id, j.token,
           (case when j.parked = 'parents' then 'waiting'
                 when j.parked = 'held' then 'queued'
                 when j.due_at is not null then 'scheduled'
                 when j.gate is null
                      and exists (select from tenure.ready r
                                  where r.queue = j.queue and r.needs = j.needs
                                    and r.priority = j.priority and r.position = j.position and r.token = j.token) then 'queued'
                 when j.gate is not null
                      and exists (select from tenure.gated g
                                  where g.queue = j.queue and g.gate = j.gate and g.key = j.gate_key
                                    and g.priority = j.priority and g.position = j.position
                                    and g.token = j.token) then 'queued'
                 else 'running' end)::tenure.state as state,
           j.task, j.args, j.queue, j.priority, j.tenant, j.attempts, j.max_attempts, j.crashes,
           j.created_at, coalesce(j.queued_at, j.created_at) as queued_at, j.due_at,
           null::timestamptz as claimed_at, null::timestamptz as finished_at,
           null::double precision as duration_seconds, null::text as worker, j.reason, j.held,
           j.cancel_requested,
           exists (select from tenure.queue q
                   where q.name = j.queue and q.paused_at is not null) as queue_paused,
           case when j.parked = 'parents' then
               (select count(*) from tenure.edge e
                where e.job_id = j.id and e.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null::json as result, j.error, j.gate, j.gate_key, j.needs,
           case when j.features & 4 <> 0 then        -- it has a row in `note`
               (select told.notes from tenure.note told where told.job_id = j.id) end as notes,
           j.start_by, j.finish_by
    from tenure.job j;

-- Every job, as Tenure itself reads it: without its lease, which is looked up for running jobs alone.
create view tenure.all_jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs,
           case when h.features & 4 <> 0 then
               (select told.notes from tenure.note told where told.job_id = h.id) end,
           h.start_by, h.finish_by
    from tenure.history h;

-- Where is my job? Every job with its state, its worker and its notes, for people. The columns of
-- version 1 come first, in their order: so the view keeps its grants.
create or replace view tenure.jobs as
    select j.id, j.token, j.state, j.task, j.args, j.queue, j.priority, j.tenant, j.attempts,
           j.max_attempts, j.crashes, j.created_at, j.queued_at, j.due_at, l.claimed_at,
           j.finished_at, j.duration_seconds, l.worker, j.reason, j.held, j.cancel_requested,
           j.queue_paused, j.unfinished_parents, j.timeout_seconds, j.retry, j.metadata,
           j.unique_scope, j.unique_key, j.unique_until, j.result, j.error, j.gate, j.gate_key,
           j.needs, l.expires_at, j.notes, j.start_by, j.finish_by
    from tenure.live j left join tenure.holding l on l.job_id = j.id and l.token = j.token
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs, null,
           case when h.features & 4 <> 0 then
               (select told.notes from tenure.note told where told.job_id = h.id) end,
           h.start_by, h.finish_by
    from tenure.history h;
