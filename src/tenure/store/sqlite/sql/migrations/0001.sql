-- The tables of Tenure in one SQLite file. The same tables and the same life of a job as on
-- PostgreSQL; the comments here say only what differs.
--
-- Times are whole microseconds: wall-clock times since 1970, lease deadlines since boot (with the
-- boot's id), so that a jump of the wall clock harms no lease.

-- One writer at a time makes counters safe here: ids and positions are drawn in the inserting
-- transaction and never cached, because a rollback would issue a block twice.
create table tenure.counter (
    one integer primary key check (one = 1),
    job_id integer not null,
    position integer not null,
    turn integer not null default 0,
    cancels integer not null default 0
) strict;
insert into tenure.counter (one, job_id, position) values (1, 0, 0);

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
    needs integer not null default 0 check (needs between 0 and 3),
    size_kb integer not null default 0,
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
    gate text,
    gate_key text,
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
    needs integer not null default 0,
    priority integer not null,
    position integer not null,
    job_id integer not null,
    token integer not null,
    suspect integer not null default 0,     -- its job has a crash on record
    size_kb integer not null default 0,
    primary key (queue, needs, priority, position)
) strict, without rowid;
-- Tickets at which a claim has to look before it takes them: suspects, and jobs of a kilobyte or more.
create index tenure.ready_special on tenure.ready (queue, needs, suspect, priority, position)
    where suspect = 1 or size_kb > 0;

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
    request_id text not null default '',
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
    needs integer not null default 0,
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
    unique_until text,
    gate text,
    gate_key text
) strict;
create index tenure.history_finished_at on tenure.history (finished_at);
create index tenure.history_unsuccessful on tenure.history (state, id) where state <> 'succeeded';

-- --- what some jobs have -------------------------------------------------------------------------

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
    request_id text,
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
create index tenure.parent_unfinished on tenure.parent (job_id) where parent_state is null;
create index tenure.parent_failed on tenure.parent (job_id) where parent_state = 'failed';

create table tenure.step (
    job_id integer not null,
    name text not null,
    n integer not null check (n between 1 and 1000),
    token integer not null,             -- of the attempt that ran it
    recorded_at integer not null,
    bytes integer not null,             -- of the result
    function text not null,
    result text not null,
    primary key (job_id, name)
) strict;

-- --- gates ---------------------------------------------------------------------------------------

create table tenure.gate (
    name text primary key check (length(name) between 1 and 200),
    max_running integer check (max_running > 0),
    rate real check (rate > 0),
    per_seconds real not null default 1 check (per_seconds > 0),
    burst integer check (burst > 0),
    keyed integer not null default 0,
    by_hand integer not null default 0,
    declared text
) strict, without rowid;

create table tenure.gated (
    queue text not null,
    gate text not null,
    key text not null,
    priority integer not null,
    position integer not null,
    job_id integer not null,
    token integer not null,
    suspect integer not null default 0,
    needs integer not null default 0,
    size_kb integer not null default 0,
    primary key (queue, gate, key, priority, position)
) strict, without rowid;

create table tenure.turn (
    queue text not null,
    gate text not null,
    priority integer not null,
    n integer not null,
    key text not null,
    not_before integer,
    primary key (queue, gate, priority, n)
) strict, without rowid;
create unique index tenure.turn_waits on tenure.turn (queue, gate, key) where not_before is not null;
create index tenure.turn_not_before on tenure.turn (queue, not_before) where not_before is not null;

create table tenure.gate_hold (
    lease integer not null,
    gate text not null,
    key text not null,
    queue text not null,
    worker text not null,
    passed integer not null,
    jobs text not null,                         -- (id, token) of each
    primary key (lease, gate, key, queue)
) strict, without rowid;
create index tenure.gate_hold_gate on tenure.gate_hold (gate, key, lease);

create table tenure.gate_share (
    gate text not null,
    key text not null,
    worker text not null,
    permits integer not null check (permits > 0),
    primary key (gate, key, worker)
) strict, without rowid;

create table tenure.bucket (
    gate text not null,
    key text not null,
    starts_left real not null,
    filled_at integer not null,
    primary key (gate, key)
) strict, without rowid;

-- --- workflows -----------------------------------------------------------------------------------

create table tenure.workflow (
    id integer primary key,
    created_at integer not null,
    ended_at integer,
    paused_at integer,
    cancelled_at integer,
    finaliser_id integer,
    failed integer not null default 0 check (failed = 0 or failed = 1),
    cancelled integer not null default 0 check (cancelled = 0 or cancelled = 1),
    stopping integer not null default 0 check (stopping = 0 or stopping = 1),
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    key text,
    on_failure text not null check (on_failure = 'finish' or on_failure = 'stop'),
    outcome text check (outcome = 'succeeded' or outcome = 'failed' or outcome = 'cancelled'),
    reason text,
    check ((ended_at is null) = (outcome is null))
) strict;
create unique index tenure.workflow_key on tenure.workflow (tenant, name, key)
    where key is not null and ended_at is null;
create index tenure.workflow_ended_at on tenure.workflow (ended_at) where ended_at is not null;
create index tenure.workflow_stopping on tenure.workflow (id) where stopping = 1;

create table tenure.node (
    job_id integer primary key,
    workflow_id integer not null,
    added_by integer,
    paused integer not null default 0 check (paused = 0 or paused = 1),
    name text not null check (length(name) between 1 and 200),
    rule text not null
        check (rule = 'all_succeeded' or rule = 'all_finished' or rule = 'any_succeeded'
               or rule = 'any_failed'),
    unique (workflow_id, name)
) strict;
create index tenure.node_workflow on tenure.node (workflow_id, job_id);

-- --- schedules -----------------------------------------------------------------------------------

create table tenure.schedule (
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    next_at integer,                    -- when it is due; null while it is paused
    done_until integer not null,        -- all ticks up to this time are done
    last_at integer,                    -- its last tick with a job
    last_job_id integer,
    created_at integer not null,
    changed_at integer not null,
    paused_at integer,
    reason text,
    timing text not null,
    job text not null,                  -- what each tick enqueues
    declared text,                      -- hashes of its declarations; null: added at run time
    primary key (tenant, name),
    check (next_at is null or paused_at is null)
) strict, without rowid;
create index tenure.schedule_next_at on tenure.schedule (next_at) where next_at is not null;
create index tenure.schedule_done_until on tenure.schedule (done_until);

-- One row per tick, written in the transaction that enqueues its job.
create table tenure.tick (
    tenant text not null,
    schedule text not null,
    tick_at integer not null,
    fired_at integer not null,
    job_id integer,                     -- null: skipped, because the last job was not finished
    triggered integer not null default 0 check (triggered = 0 or triggered = 1),
    primary key (tenant, schedule, tick_at)
) strict, without rowid;
create index tenure.tick_fired_at on tenure.tick (fired_at);
create index tenure.tick_with_job on tenure.tick (tenant, schedule, tick_at) where job_id is not null;

-- --- queues and workers --------------------------------------------------------------------------

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

-- --- views ---------------------------------------------------------------------------------------

-- The live half of `jobs`.
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
           null as result, j.error, j.gate, j.gate_key, j.needs
    from tenure.job j;

-- Where is my job? Every job with its state.
create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs
    from tenure.history h;

create view tenure.holding as
    select l.id as lease_id, l.worker, l.claimed_at, l.expires_at,
           pair.value ->> 0 as job_id, pair.value ->> 1 as token
    from tenure.lease l, json_each(l.jobs) as pair;

create view tenure.gate_live as
    select h.lease, h.worker, h.queue, h.gate, h.key,
           (select count(*) from json_each(h.jobs) as p
                cross join tenure.job as j on j.id = p.value ->> 0 and j.token = p.value ->> 1) as live
    from tenure.gate_hold h;

create view tenure.gate_used as
    select w.gate, w.key, w.worker, w.live, min(w.live, coalesce(s.permits, w.live)) as used
    from (select l.gate, case when g.keyed then l.key else '' end as key, l.worker, sum(l.live) as live
          from tenure.gate_live l join tenure.gate g on g.name = l.gate group by 1, 2, 3) as w
         left join tenure.gate_share s on s.gate = w.gate and s.key = w.key and s.worker = w.worker;
