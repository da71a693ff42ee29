-- The tables of Tenure. Read from top to bottom, this is the life of a job:
--
--     job      live jobs, by primary key only            ready    tickets of jobs that may be claimed
--     due      tickets with a due time                   lease    one row per claimed block
--     history  finished jobs, append-only, by day
--
-- The happy path only inserts and deletes. It updates no row in position, and there is no counter row
-- and no trigger. A job pays for the tables below history only if it uses them.

create type tenure.state as enum
    ('waiting', 'scheduled', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'skipped');

create sequence tenure.job_id maxvalue 9007199254740991;
create sequence tenure.position;        -- each value stands for a thousand positions: a bulk draws one
create sequence tenure.lease_id;

-- Columns are ordered by width: it saves padding, and so WAL.
create table tenure.job (
    id bigint primary key check (id between 1 and 9007199254740991),
    token bigint not null default 1 check (token > 0),
    position bigint,                    -- of its last ticket that was ready
    created_at timestamptz not null,
    due_at timestamptz,                 -- set while its ticket is in `due`, or will be once it is freed
    queued_at timestamptz,              -- when it got its last ticket; null: at creation
    timeout_seconds double precision check (timeout_seconds > 0),
    unique_seconds double precision,
    priority smallint not null default 0 check (priority between -100 and 100),
    attempts smallint not null default 0 check (attempts >= 0),
    max_attempts smallint not null default 5 check (max_attempts > 0),
    crashes smallint not null default 0,
    features smallint not null default 0,
    needs smallint not null default 0 check (needs between 0 and 3),    -- which slots it needs
    size_kb smallint not null default 0 check (size_kb >= 0),           -- of arguments and metadata
    held boolean not null default false,
    cancel_requested boolean not null default false,
    tenant text not null default '',
    queue text not null default 'default' check (length(queue) between 1 and 200),
    task text not null check (length(task) between 1 and 200),
    args json not null,
    retry json,
    metadata json,
    error json,                         -- of the last failed attempt
    reason text,                        -- of its last change
    parked text check (parked in ('held', 'parents')),
    unique_scope text,
    unique_key text,
    unique_until text check (unique_until in ('started', 'finished', 'period', 'forever')),
    gate text,
    gate_key text,
    check (attempts <= max_attempts),
    check ((unique_key is null) = (unique_scope is null) and (unique_key is null) = (unique_until is null))
);

-- Heartbeats ask this index which leased jobs are to stop; it is nearly always empty.
create index job_cancel_requested on tenure.job (id) where cancel_requested;

create table tenure.ready (
    position bigint not null,
    job_id bigint not null,
    token bigint not null,
    priority smallint not null,
    needs smallint not null default 0,          -- of its job, so that a claim takes what fits
    size_kb smallint not null default 0,
    suspect boolean not null default false,     -- its job has a crash on record
    queue text collate "C" not null,            -- compared as bytes: a fifth of a ticket's cost
    primary key (queue, needs, priority, position)
);
create index ready_suspect on tenure.ready (queue, needs, priority, position) where suspect;

create table tenure.due (
    due_at timestamptz not null,
    job_id bigint not null,
    token bigint not null,
    primary key (due_at, job_id)
);

create table tenure.lease (
    id bigint primary key,
    claimed_at timestamptz not null,
    expires_at timestamptz not null,
    worker text not null,
    request_id text not null default '', -- of the claim: a repeat finds its own lease
    jobs json not null,                 -- [[job id, token], ...]
    started json                        -- [job id, ...] as reported by heartbeats
);
create index lease_expires_at on tenure.lease (expires_at);

create table tenure.history (
    id bigint not null,
    token bigint not null,
    created_at timestamptz not null,
    claimed_at timestamptz,
    finished_at timestamptz not null,
    duration_seconds double precision,
    timeout_seconds double precision,
    unique_seconds double precision,
    state tenure.state not null
        check (state in ('succeeded', 'failed', 'cancelled', 'skipped')),
    priority smallint not null,
    attempts smallint not null check (attempts <= max_attempts),
    max_attempts smallint not null,
    crashes smallint not null,
    features smallint not null,
    needs smallint not null default 0,
    tenant text not null,
    queue text not null,
    task text not null,
    args json not null,
    worker text,
    result json,
    error json,
    reason text,
    retry json,
    metadata json,
    unique_scope text,
    unique_key text,
    unique_until text,
    gate text,
    gate_key text
) partition by range (finished_at);
create table tenure.history_default partition of tenure.history default;
create index history_id on tenure.history (id);
create index history_finished_at on tenure.history using brin (finished_at);
-- People look for the jobs that did not succeed. Successes pay nothing for this index.
create index history_unsuccessful on tenure.history (state, id) where state <> 'succeeded';

-- --- what some jobs have -------------------------------------------------------------------------

create table tenure.unique_key (
    tenant text collate "C" not null,
    scope text collate "C" not null,
    key text collate "C" not null,
    job_id bigint not null,
    until text not null,
    fingerprint text not null,
    expires_at timestamptz,
    primary key (tenant, scope, key)
);
create index unique_key_expires_at on tenure.unique_key (expires_at) where expires_at is not null;

-- The events that the rows of job and history do not show: one row per retry, crash, release, ...
create table tenure.event (
    job_id bigint not null,
    seq bigint generated always as identity,
    at timestamptz not null,
    token bigint not null,
    kind text not null,
    worker text,
    request_id text,                    -- of the call that wrote it: a repeat finds its own event
    detail json,
    primary key (job_id, seq)
);

create table tenure.note (
    job_id bigint primary key,
    token bigint not null,
    fraction double precision,
    message text,
    reported_at timestamptz,
    checkpoint json,
    saved_at timestamptz
);

-- Steps: the results of parts of a job, so that a later attempt need not run them again.
create table tenure.step (
    job_id bigint not null,
    token bigint not null,              -- of the attempt that ran it
    recorded_at timestamptz not null,
    n int not null check (n between 1 and 1000),
    bytes int not null,                 -- of the result
    name text collate "C" not null,
    function text not null,
    result json not null,
    primary key (job_id, name)
);

-- Children and parents. That a parent has succeeded is written on its edges, so that a child with a
-- hundred thousand parents is known to be free without a walk along all of them. A silent edge is
-- that of a child with few parents: its parent has succeeded when it is live no more and nothing else
-- is written. (To write all of them was a third of the work of the server in a random graph.)
create table tenure.parent (
    job_id bigint not null,
    parent_id bigint not null,
    parent_state tenure.state,          -- null until the parent has finished
    silent boolean not null default false,
    primary key (job_id, parent_id)
);
create index parent_parent_id on tenure.parent (parent_id);
create index parent_unsuccessful on tenure.parent (job_id, parent_state)
    where not silent and parent_state is null or parent_state <> 'succeeded';
create index parent_silent on tenure.parent (job_id) where silent;

-- --- gates: how many jobs may run at once, how many may start per second -------------------------

--     gate       what is allowed               gated       tickets of jobs that wait at a gate
--     turn       lines to look at, in order    gate_hold   jobs that have passed, while they live
--     bucket     starts left of a rate         gate_share  permits of workers with more jobs than permits
--
-- A job with a gate has its ticket in `gated`, never in `ready`. A gate has a line of tickets per
-- queue and key. A transaction that adds a ticket to a line, or frees a permit, writes a turn. Only a
-- claim that has locked the row of the gate deletes turns. So only claims wait for a lock, and no
-- wake-up is lost: see store/gates.

create table tenure.gate (
    name text collate "C" primary key check (length(name) between 1 and 200),
    max_running int check (max_running > 0),
    rate double precision check (rate > 0),
    per_seconds double precision not null default 1 check (per_seconds > 0),
    burst int check (burst > 0),
    keyed boolean not null default false,       -- each key has limits of its own
    by_hand boolean not null default false,     -- an operator has set them: code does not, until reset
    declared json                               -- the limits that code declares
);

create table tenure.gated (
    position bigint not null,
    job_id bigint not null,
    token bigint not null,
    priority smallint not null,
    needs smallint not null default 0,
    size_kb smallint not null default 0,
    suspect boolean not null default false,
    queue text collate "C" not null,
    gate text collate "C" not null,
    key text collate "C" not null,
    primary key (queue, gate, key, priority, position)
);

create table tenure.turn (
    n bigint generated always as identity,
    not_before timestamptz,                     -- set while the line waits for its next start
    priority smallint not null,                 -- of the head of the line when this was written
    queue text collate "C" not null,
    gate text collate "C" not null,
    key text collate "C" not null,
    primary key (queue, gate, priority, n)
);
create unique index turn_waits on tenure.turn (queue, gate, key) where not_before is not null;
create index turn_not_before on tenure.turn (queue, not_before) where not_before is not null;

create table tenure.gate_hold (                 -- written by the claim, deleted with the lease
    lease bigint not null,
    ids bigint[] not null,                      -- a job counts as long as it is live under its token
    tokens bigint[] not null,
    worker text not null,
    queue text collate "C" not null,
    gate text collate "C" not null,
    key text collate "C" not null,
    primary key (lease, gate, key, queue)
);
create index gate_hold_gate on tenure.gate_hold (gate, key, lease);

create table tenure.gate_share (
    permits int not null check (permits > 0),
    worker text not null,
    gate text collate "C" not null,
    key text collate "C" not null,              -- empty where all keys share the limits
    primary key (gate, key, worker)
);

create table tenure.bucket (
    starts_left double precision not null,
    filled_at timestamptz not null,
    gate text collate "C" not null,
    key text collate "C" not null,              -- empty where all keys share the limits
    primary key (gate, key)
);

-- --- workflows: many jobs as one -----------------------------------------------------------------

--     workflow   one row each: its options, and how it ended
--     node       which job is which node, while the job is live and while it is in history
--     parent     edges, as above; a child below zero is the end of a workflow
--
-- A workflow ends when its last nodes have finished. They have an edge to its end, which is its id
-- with a minus; the settlement that writes the last of these edges writes the end, too. Other nodes
-- never touch the row of their workflow, unless they fail. Jobs outside of workflows pay nothing.

create table tenure.workflow (
    id bigint primary key,              -- drawn like that of a job
    created_at timestamptz not null,
    ended_at timestamptz,
    paused_at timestamptz,
    cancelled_at timestamptz,           -- when an operator asked for it
    finaliser_id bigint,
    failed boolean not null default false,      -- a node has failed
    cancelled boolean not null default false,   -- a node was cancelled
    stopping boolean not null default false,    -- a node has failed, and the rest is to be stopped
    tenant text collate "C" not null,
    name text collate "C" not null check (length(name) between 1 and 200),
    key text collate "C",
    on_failure text not null check (on_failure in ('finish', 'stop')),
    outcome text check (outcome in ('succeeded', 'failed', 'cancelled')),
    reason text,                        -- why it is paused or cancelled
    check ((ended_at is null) = (outcome is null))
);
create unique index workflow_key on tenure.workflow (tenant, name, key)
    where key is not null and ended_at is null;
create index workflow_ended_at on tenure.workflow (ended_at) where ended_at is not null;
create index workflow_stopping on tenure.workflow (id) where stopping;

create table tenure.node (
    job_id bigint primary key,
    workflow_id bigint not null,
    added_by bigint,                    -- the job that added it while it ran
    paused boolean not null default false,      -- it is held because its workflow is paused
    name text collate "C" not null check (length(name) between 1 and 200),
    rule text not null
        check (rule in ('all_succeeded', 'all_finished', 'any_succeeded', 'any_failed')),
    unique (workflow_id, name)
);
create index node_workflow on tenure.node (workflow_id, job_id);

-- --- schedules: jobs that are enqueued by the clock ----------------------------------------------

create table tenure.schedule (
    tenant text not null,
    name text not null check (length(name) between 1 and 200),
    next_at timestamptz,                -- when it is due; null while it is paused
    done_until timestamptz not null,    -- all ticks up to this time are done
    last_at timestamptz,                -- its last tick with a job
    last_job_id bigint,
    created_at timestamptz not null,
    changed_at timestamptz not null,
    paused_at timestamptz,
    reason text,
    timing json not null,
    job json not null,                  -- what each tick enqueues
    declared json,                      -- hashes of its declarations; null: added at run time
    primary key (tenant, name),
    check (next_at is null or paused_at is null)
);
create index schedule_next_at on tenure.schedule (next_at) where next_at is not null;
create index schedule_done_until on tenure.schedule (done_until);

-- One row per tick, written in the transaction that enqueues its job.
create table tenure.tick (
    tenant text not null,
    schedule text not null,
    tick_at timestamptz not null,
    fired_at timestamptz not null,
    job_id bigint,                      -- null: skipped, because the last job was not finished
    triggered boolean not null default false,
    primary key (tenant, schedule, tick_at)
);
create index tick_fired_at on tenure.tick (fired_at);
create index tick_with_job on tenure.tick (tenant, schedule, tick_at) where job_id is not null;

-- --- queues and workers --------------------------------------------------------------------------

create table tenure.queue (
    name text primary key,
    paused_at timestamptz,
    reason text
);

-- The workers, for people to look at. Nothing is decided by it: the sweep goes by leases alone.
create table tenure.worker (
    name text primary key,
    host text not null,
    pid int not null,
    started_at timestamptz not null,    -- of its first announcement
    seen_at timestamptz not null,       -- of its last one
    info json not null                  -- {"queues": {name: slots}, "tasks": [...], ...}
);

-- --- vacuum --------------------------------------------------------------------------------------

-- One vacuum setting for the tables that turn over completely many times a day.
alter table tenure.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
alter table tenure.job set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000);
alter table tenure.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table tenure.gated set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
alter table tenure.turn set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table tenure.gate_hold set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table tenure.gate set (fillfactor = 50);

-- --- views ---------------------------------------------------------------------------------------

-- Edges, with the success of parents that is not written on them.
create view tenure.edge as
    select p.job_id, p.parent_id,
           case when p.silent and p.parent_state is null
                     and not exists (select from tenure.job j where j.id = p.parent_id offset 0)
                then 'succeeded' else p.parent_state end as parent_state
    from tenure.parent p;

-- The live half of `jobs`.
create view tenure.live as
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
           null::json as result, j.error, j.gate, j.gate_key, j.needs
    from tenure.job j;

-- Where is my job? Every job with its state.
create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key, h.needs
    from tenure.history h;

-- Which worker runs it? Every leased job with its lease.
create view tenure.holding as
    select l.id as lease_id, l.worker, l.claimed_at, l.expires_at,
           (pair ->> 0)::bigint as job_id, (pair ->> 1)::bigint as token
    from tenure.lease l cross join lateral json_array_elements(l.jobs) as pair;

-- How many of the jobs that passed together still run.
create view tenure.gate_live as
    select h.lease, h.worker, h.queue, h.gate, h.key, n.live
    from tenure.gate_hold h, lateral (
        select count(*) as live
        from unnest(h.ids, h.tokens) as p (id, token), lateral (
            select from tenure.job j where j.id = p.id and j.token = p.token offset 0) as j) as n;

-- The permits that each worker uses: one for each of its jobs, or its share if it has more jobs.
create view tenure.gate_used as
    select w.gate, w.key, w.worker, w.live, least(w.live, s.permits) as used
    from (select l.gate, case when g.keyed then l.key else '' end as key, l.worker,
                 sum(l.live)::bigint as live
          from tenure.gate_live l join tenure.gate g on g.name = l.gate group by 1, 2, 3) as w
         left join tenure.gate_share s on s.gate = w.gate and s.key = w.key and s.worker = w.worker;

-- --- functions -----------------------------------------------------------------------------------

-- For psql and other languages: select tenure.enqueue('app.send', '{"to": "me"}');
-- It refuses what the Python side refuses: such a job could be stored and never be claimed.
create function tenure.enqueue(
    task text, args json default '{}', queue text default 'default', priority int default 0,
    delay interval default null
) returns bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off                -- its plans are kept, also those made for empty tables
as $$
#variable_conflict use_column
declare
    name_pattern constant pg_catalog.text := '^[A-Za-z0-9_][A-Za-z0-9_.:<>-]{0,199}$';
    name_hint constant pg_catalog.text :=
        'Use 1 to 200 letters, digits and _ . : < > -, and start with a letter, a digit or _.';
    new_id bigint;
    new_position bigint;
begin
    if (enqueue.task collate "C" ~ name_pattern) is not true then
        raise exception using errcode = '22023', hint = name_hint,
            message = format('task %L is not a valid name', left(enqueue.task, 60));
    end if;
    if (enqueue.queue collate "C" ~ name_pattern) is not true then
        raise exception using errcode = '22023', hint = name_hint,
            message = format('queue %L is not a valid name', left(enqueue.queue, 60));
    end if;
    if (enqueue.priority between -100 and 100) is not true then
        raise exception using errcode = '22023', hint = 'Use -100 (first) to 100 (last).',
            message = format('priority %L is out of range', enqueue.priority);
    end if;
    if clock_timestamp() + enqueue.delay >= '9000-01-01 00:00:00+00' then
        raise exception using errcode = '22023', hint = 'Use a due time before the year 9000.',
            message = format('delay %L is out of range', enqueue.delay);
    end if;
    with new as materialized (
        select nextval('tenure.job_id') as id, clock_timestamp() as now,
               case when coalesce(enqueue.delay, '0') <= '0' then 1000 * nextval('tenure.position') end as position
    ), inserted as (
        insert into tenure.job (id, position, created_at, due_at, priority, size_kb, queue, task, args)
        select id, position, now, case when position is null then now + enqueue.delay end,
               enqueue.priority::smallint, least(octet_length(enqueue.args::text) / 1024, 32767),
               enqueue.queue, enqueue.task, enqueue.args
        from new
        returning id, position, due_at, size_kb
    ), queued as (
        insert into tenure.ready (position, job_id, token, priority, size_kb, queue)
        select position, id, 1, enqueue.priority::smallint, size_kb, enqueue.queue
        from inserted where position is not null
    ), scheduled as (
        insert into tenure.due (due_at, job_id, token)
        select due_at, id, 1 from inserted where position is null
    )
    select id, position into new_id, new_position from inserted;
    if new_position is not null then       -- the statement `notify`
        perform pg_notify('tenure.bell', enqueue.queue)
        where not exists (
            select from generate_series(1, 32) as n,
                 lateral (select from tenure.ready r
                          where r.queue = enqueue.queue and r.needs = 0
                            and r.priority = enqueue.priority::smallint
                            and r.position = new_position - 1000 * n offset 0) as standing);
    elsif enqueue.delay <= '1.5 seconds' then
        perform pg_notify('tenure.bell', enqueue.queue);
    end if;
    return new_id;
end
$$;

-- The two functions below run with the rights of their owner, for roles that own nothing. So they
-- trust nothing of the caller's session: pg_temp is searched last (unnamed it would be first, and a
-- type of the caller's would be taken for the system's), names carry their schema, and the settings
-- that matter are the functions' own and end with them.

-- Makes the partitions of the coming days. A day for which the default partition already holds rows
-- stays there. ATTACH, unlike PARTITION OF, lets settlements into other days go on meanwhile. A day
-- that another session has locked is left to the next call: the default partition serves until then.
create function tenure.add_history_days(days_ahead int) returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms'
set timezone = 'UTC'
set datestyle = 'ISO, YMD'
as $$
declare
    today constant pg_catalog.date :=
        (pg_catalog.clock_timestamp() at time zone 'UTC')::pg_catalog.date;
    name pg_catalog.text;
    first_moment pg_catalog.timestamptz;
    end_moment pg_catalog.timestamptz;
    added int := 0;
begin
    for i in 0 .. least(greatest(days_ahead, 0), 60) loop
        name := 'history_' || pg_catalog.to_char(today + i, 'YYYYMMDD');
        first_moment := (today + i)::timestamp at time zone 'UTC';
        end_moment := (today + i + 1)::timestamp at time zone 'UTC';
        continue when pg_catalog.to_regclass('tenure.' || name) is not null;
        continue when exists (select from tenure.history_default
                              where finished_at >= first_moment and finished_at < end_moment);
        begin
            execute pg_catalog.format(
                'create table tenure.%I (like tenure.history including all)', name);
            execute pg_catalog.format(
                'alter table tenure.history attach partition tenure.%I for values from (%L) to (%L)',
                name, first_moment, end_moment);
            added := added + 1;
        exception
            when lock_not_available then exit;
            when duplicate_table or duplicate_object or unique_violation or check_violation then null;
        end;
    end loop;
    return added;
end
$$;

-- Drops whole days that ended before the cut, oldest first. Returns how many. Whatever the cut, a day
-- stays until it has been over for one day by the server's clock. Never waits long for a lock.
create function tenure.drop_history_days(before timestamptz) returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    cut constant pg_catalog.timestamptz := least(
        coalesce(before, '-infinity'), pg_catalog.clock_timestamp() - interval '24 hours');
    part record;
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

-- By default every role may call a function.
revoke all on function tenure.enqueue, tenure.add_history_days, tenure.drop_history_days from public;
