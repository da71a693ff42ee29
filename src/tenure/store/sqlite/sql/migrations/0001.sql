-- The tables of Tenure in one SQLite file. The same tables and the same life of a job as on
-- PostgreSQL; what differs is said where it differs.
--
-- Times are whole microseconds: wall-clock times since 1970, lease deadlines since boot (with the
-- boot's id), so that a jump of the wall clock harms no lease.

-- One writer at a time makes counters safe here: ids and places are drawn in the inserting
-- transaction and never cached, because a rollback would issue a block twice.
create table tenure.counter (
    one integer primary key check (one = 1),
    job_id integer not null,
    position integer not null
) strict;
insert into tenure.counter values (1, 0, 0);

create table tenure.job (
    id integer primary key check (id between 1 and 9007199254740991),
    token integer not null default 1 check (token > 0),
    position integer,
    created_at integer not null,
    due_at integer,
    queued_at integer,
    timeout_seconds real check (timeout_seconds > 0),
    unique_seconds real,
    priority integer not null default 0 check (priority between -100 and 100),
    attempts integer not null default 0 check (attempts >= 0),
    max_attempts integer not null default 5 check (max_attempts > 0),
    crashes integer not null default 0,
    features integer not null default 0,
    held integer not null default 0 check (held = 0 or held = 1),
    cancel_requested integer not null default 0 check (cancel_requested = 0 or cancel_requested = 1),
    tenant text not null default '',
    queue text not null default 'default' check (length(queue) between 1 and 200),
    task text not null check (length(task) between 1 and 200),
    args text not null,
    retry text,
    metadata text,
    error text,
    reason text,
    parked text check (parked = 'held' or parked = 'parents'),
    unique_scope text,
    unique_key text,
    unique_until text,
    check (attempts <= max_attempts),
    -- `in (...)` would build a temporary index per row: a check of four words cost 2 us per job.
    check (unique_key is null or (unique_scope is not null and (
        unique_until = 'started' or unique_until = 'finished' or unique_until = 'period'
        or unique_until = 'forever')))
) strict;
create index tenure.job_cancel_requested on tenure.job (id) where cancel_requested;
create index tenure.job_featured on tenure.job (id) where features <> 0;

create table tenure.ready (
    queue text not null,
    priority integer not null,
    position integer not null,
    job_id integer not null,
    token integer not null,
    suspect integer not null default 0,     -- its job has a crash on record
    primary key (queue, priority, position)
) strict, without rowid;
create index tenure.ready_suspect on tenure.ready (queue, priority, position) where suspect = 1;

create table tenure.due (
    due_at integer not null,
    job_id integer not null,
    token integer not null,
    primary key (due_at, job_id)
) strict, without rowid;

create table tenure.lease (
    id integer primary key autoincrement,
    claimed_at integer not null,
    boot text not null,
    expires_tick integer not null,      -- on the boot clock
    expires_at integer not null,        -- the same moment on the wall clock, to look at
    worker text not null,
    call text not null default '',
    jobs text not null,
    started text
) strict;
create index tenure.lease_expires_tick on tenure.lease (boot, expires_tick);

create table tenure.history (
    id integer primary key,
    token integer not null,
    created_at integer not null,
    claimed_at integer,
    finished_at integer not null,
    duration_seconds real,
    timeout_seconds real,
    unique_seconds real,
    state text not null
        check (state = 'succeeded' or state = 'failed' or state = 'cancelled' or state = 'skipped'),
    priority integer not null,
    attempts integer not null check (attempts <= max_attempts),
    max_attempts integer not null,
    crashes integer not null,
    features integer not null,
    tenant text not null,
    queue text not null,
    task text not null,
    args text not null,
    worker text,
    result text,
    error text,
    reason text,
    retry text,
    metadata text,
    unique_scope text,
    unique_key text,
    unique_until text
) strict;
create index tenure.history_finished_at on tenure.history (finished_at);
create index tenure.history_unsuccessful on tenure.history (state, id) where state <> 'succeeded';

create table tenure.unique_key (
    tenant text not null,
    scope text not null,
    key text not null,
    job_id integer not null,
    until text not null,
    fingerprint text not null,
    expires_at integer,
    primary key (tenant, scope, key)
) strict, without rowid;
create index tenure.unique_key_expires_at on tenure.unique_key (expires_at) where expires_at is not null;

create table tenure.event (
    seq integer primary key,
    job_id integer not null,
    at integer not null,
    token integer not null,
    kind text not null,
    worker text,
    call text,
    detail text
) strict;
create index tenure.event_job_id on tenure.event (job_id, seq);

create table tenure.note (
    job_id integer primary key,
    token integer not null,
    fraction real,
    message text,
    reported_at integer,
    checkpoint text,
    saved_at integer
) strict;

create table tenure.parent (
    job_id integer not null,
    parent_id integer not null,
    parent_state text,
    primary key (job_id, parent_id)
) strict, without rowid;
create index tenure.parent_parent_id on tenure.parent (parent_id);

create table tenure.queue (
    name text primary key,
    paused_at integer,
    reason text
) strict, without rowid;

create table tenure.worker (
    name text primary key,
    host text not null,
    pid integer not null,
    started_at integer not null,
    seen_at integer not null,           -- on the wall clock, to look at
    boot text not null,
    seen_tick integer not null,         -- the same moment on the boot clock: alive or not
    info text not null
) strict, without rowid;

-- The live half of `jobs`.
create view tenure.live as
    select j.id, j.token,
           case when j.parked = 'parents' then 'waiting'
                when j.parked = 'held' then 'queued'
                when j.due_at is not null then 'scheduled'
                when exists (select 1 from tenure.ready r
                             where r.queue = j.queue and r.priority = j.priority
                               and r.position = j.position and r.token = j.token) then 'queued'
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
           null as result, j.error
    from tenure.job j;

-- Where is my job? Every job with its state.
create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error
    from tenure.history h;

create view tenure.holding as
    select l.id as lease_id, l.worker, l.claimed_at, l.expires_at,
           pair.value ->> 0 as job_id, pair.value ->> 1 as token
    from tenure.lease l, json_each(l.jobs) as pair;
