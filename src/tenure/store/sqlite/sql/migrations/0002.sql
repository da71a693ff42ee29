-- The job table that people keep, look up and settle by hand. The comments here say only what differs
-- from PostgreSQL.


-- --- retention and keys --------------------------------------------------------------------------

alter table tenure.job add column keep_succeeded_seconds real check (keep_succeeded_seconds >= 0);
alter table tenure.job add column keep_other_seconds real check (keep_other_seconds >= 0);
alter table tenure.history add column keep_until integer;
alter table tenure.history add column keep_succeeded_seconds real;
alter table tenure.history add column keep_other_seconds real;
create index tenure.history_keep_until on tenure.history (keep_until)
    where keep_until is not null and features & 64 = 0;

alter table tenure.unique_key add column outcome text
    check (outcome is null or outcome = 'succeeded' or outcome = 'failed' or outcome = 'cancelled'
           or outcome = 'skipped');

create table tenure.prune_clock (
    one integer primary key check (one = 1),
    trusted_at integer not null,
    doubted_at integer
) strict;
insert into tenure.prune_clock (one, trusted_at)
values (1, cast((julianday('now') - 2440587.5) * 86400e6 as integer));



-- --- attempts and notes --------------------------------------------------------------------------

alter table tenure.note add column notes text;
-- The ids are a JSON array.
alter table tenure.lease add column once text;


-- --- finding jobs --------------------------------------------------------------------------------

create index tenure.history_unsuccessful_finished on tenure.history (finished_at) where state <> 'succeeded';
create index tenure.history_key on tenure.history (unique_key, id) where unique_key is not null;
create index tenure.job_error on tenure.job (id) where error is not null;



-- --- statistics ----------------------------------------------------------------------------------

-- What has ended: one row per process, queue, task and outcome every ten seconds, which prune adds up
-- to hours and days.
create table tenure.statistic (
    span integer not null check (span in (10, 3600, 86400)),    -- for how many seconds the row stands
    at integer not null,                -- when the process began to count
    queue text not null,
    task text not null,
    outcome text not null
        check (outcome in ('succeeded', 'failed', 'cancelled', 'skipped', 'retried', 'snoozed', 'crashed')),
    process text not null,              -- empty: prune has added up the rows of all processes
    ends integer not null check (ends >= 0),
    wait_seconds real not null default 0,
    run_seconds real not null default 0,
    waits text,                         -- how many waited for how long, by bucket; null: none has run
    runs text,                          -- the same for the time that their handlers ran
    primary key (span, at, queue, task, outcome, process)
) strict, without rowid;

-- How many live jobs there are, as a worker has last counted them.
create table tenure.depth (
    queue text not null,
    state text not null,
    jobs integer not null,
    oldest_at integer,                  -- of queued jobs: since when the first one is ready
    primary key (queue, state)
) strict, without rowid;
create table tenure.depth_sample (      -- one row, or none
    one integer primary key check (one = 1),
    sampled_at integer,                 -- null: never
    took_seconds real,
    next_at integer not null            -- no worker counts before this time
) strict;



-- --- the feed of finished jobs -------------------------------------------------------------------

create table tenure.feed_reader (
    tenant text not null,
    name text not null,
    position integer not null,
    created_at integer not null,
    seen_at integer not null,
    lost_at integer,
    kept_seconds real not null check (kept_seconds >= 0),
    primary key (tenant, name)
) without rowid;

create table tenure.feed (
    place integer primary key,
    job_id integer not null,
    token integer not null,
    state text not null check (state in ('succeeded', 'failed', 'cancelled', 'skipped')),
    attempts integer not null,
    finished_at integer not null,
    duration_seconds real,
    tenant text not null,
    queue text not null,
    task text not null,
    worker text,
    reason text,
    error_type text,
    error_message text
);

create table tenure.feed_end (
    name text primary key check (name = 'feed'),
    place integer not null
) without rowid;

create table tenure.failure_hook (
    task text not null,
    hook text not null,
    parameter text not null,
    job text not null,
    primary key (task, hook)
) without rowid;


-- --- deadlines and replacement -------------------------------------------------------------------

alter table tenure.job add column start_by integer;
alter table tenure.job add column finish_by integer;
alter table tenure.history add column start_by integer;
alter table tenure.history add column finish_by integer;
create index tenure.job_start_by on tenure.job (start_by, id)
    where start_by is not null and attempts = 0;
create index tenure.event_replaced_by on tenure.event (request_id) where kind = 'replaced';


-- --- views ---------------------------------------------------------------------------------------

drop view tenure.jobs;
drop view tenure.live;
drop view tenure.holding;
-- With a cast SQLite can make an index for a join: 2,000 leased jobs beside 13,000 others took 1.5 s
-- without it, and take 14 ms.
create view tenure.holding as
    select l.id as lease_id, l.worker, l.claimed_at, l.expires_at,
           cast(pair.value ->> 0 as integer) as job_id, cast(pair.value ->> 1 as integer) as token
    from tenure.lease l, json_each(l.jobs) as pair;

create view tenure.live as
    select j.id, j.token,
           case when j.parked = 'parents' then 'waiting'
                when j.parked = 'held' then 'queued'
                when j.due_at is not null then 'scheduled'
                when j.gate is null
                     and exists (select 1 from tenure.ready r
                                 where r.queue = j.queue and r.needs = j.needs
                                   and r.priority = j.priority and r.position = j.position and r.token = j.token) then 'queued'
                when j.gate is not null
                     and exists (select 1 from tenure.gated g
                                 where g.queue = j.queue and g.gate = j.gate and g.key = j.gate_key
                                   and g.priority = j.priority and g.position = j.position
                                   and g.token = j.token) then 'queued'
                else 'running' end as state,
           j.task, j.args, j.queue, j.priority, j.tenant, j.attempts, j.max_attempts, j.crashes,
           j.created_at, coalesce(j.queued_at, j.created_at) as queued_at, j.due_at,
           null as claimed_at, null as finished_at, null as duration_seconds, null as worker,
           j.reason, j.held, j.cancel_requested,
           exists (select 1 from tenure.queue q
                   where q.name = j.queue and q.paused_at is not null) as queue_paused,
           case when j.parked = 'parents' then
               (select count(*) from tenure.parent p
                where p.job_id = j.id and p.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null as result, j.error, j.gate, j.gate_key, j.needs,
           case when j.features & 4 then
               (select told.notes from tenure.note told where told.job_id = j.id) end as notes,
           j.start_by, j.finish_by
    from tenure.job j;

create view tenure.all_jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs,
           case when h.features & 4 then
               (select told.notes from tenure.note told where told.job_id = h.id) end,
           h.start_by, h.finish_by
    from tenure.history h;

-- Times are text here, in UTC.
create view tenure.jobs as
    select j.id, j.token, j.state, j.task, j.args, j.queue, j.priority, j.tenant, j.attempts,
           j.max_attempts, j.crashes,
           strftime('%Y-%m-%dT%H:%M:%S', j.created_at / 1000000, 'unixepoch')
               || printf('.%06dZ', j.created_at % 1000000) as created_at,
           strftime('%Y-%m-%dT%H:%M:%S', j.queued_at / 1000000, 'unixepoch')
               || printf('.%06dZ', j.queued_at % 1000000) as queued_at,
           strftime('%Y-%m-%dT%H:%M:%S', j.due_at / 1000000, 'unixepoch')
               || printf('.%06dZ', j.due_at % 1000000) as due_at,
           strftime('%Y-%m-%dT%H:%M:%S', l.claimed_at / 1000000, 'unixepoch')
               || printf('.%06dZ', l.claimed_at % 1000000) as claimed_at,
           null as finished_at, null as duration_seconds, l.worker, j.reason, j.held,
           j.cancel_requested, j.queue_paused, j.unfinished_parents, j.timeout_seconds, j.retry,
           j.metadata, j.unique_scope, j.unique_key, j.unique_until, j.result, j.error, j.gate,
           j.gate_key, j.needs,
           strftime('%Y-%m-%dT%H:%M:%S', l.expires_at / 1000000, 'unixepoch')
               || printf('.%06dZ', l.expires_at % 1000000) as expires_at,
           j.notes,
           strftime('%Y-%m-%dT%H:%M:%S', j.start_by / 1000000, 'unixepoch')
               || printf('.%06dZ', j.start_by % 1000000) as start_by,
           strftime('%Y-%m-%dT%H:%M:%S', j.finish_by / 1000000, 'unixepoch')
               || printf('.%06dZ', j.finish_by % 1000000) as finish_by
    from tenure.live j left join tenure.holding l on l.job_id = j.id and l.token = j.token
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes,
           strftime('%Y-%m-%dT%H:%M:%S', h.created_at / 1000000, 'unixepoch')
               || printf('.%06dZ', h.created_at % 1000000),
           strftime('%Y-%m-%dT%H:%M:%S', h.created_at / 1000000, 'unixepoch')
               || printf('.%06dZ', h.created_at % 1000000),
           null,
           strftime('%Y-%m-%dT%H:%M:%S', h.claimed_at / 1000000, 'unixepoch')
               || printf('.%06dZ', h.claimed_at % 1000000),
           strftime('%Y-%m-%dT%H:%M:%S', h.finished_at / 1000000, 'unixepoch')
               || printf('.%06dZ', h.finished_at % 1000000),
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs, null,
           case when h.features & 4 then
               (select told.notes from tenure.note told where told.job_id = h.id) end,
           strftime('%Y-%m-%dT%H:%M:%S', h.start_by / 1000000, 'unixepoch')
               || printf('.%06dZ', h.start_by % 1000000),
           strftime('%Y-%m-%dT%H:%M:%S', h.finish_by / 1000000, 'unixepoch')
               || printf('.%06dZ', h.finish_by % 1000000)
    from tenure.history h;
