-- The tables of Tenure. Read from top to bottom, this is the life of a job:
--
--     job      live jobs, by primary key only            ready    tickets standing in line
--     due      tickets with a due time                   lease    one row per claimed block
--     history  finished jobs, append-only, by day
--
-- The happy path only inserts and deletes. Nothing is updated in position, there is no counter row
-- and no trigger. Everything below history is paid for only by the jobs that use it.

create type tenure.state as enum
    ('waiting', 'scheduled', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'skipped');

create sequence tenure.job_id maxvalue 9007199254740991;
create sequence tenure.position;            -- each value stands for a thousand places: a bulk draws one
create sequence tenure.lease_id;

-- Columns are ordered by width: it saves padding, and so WAL.
create table tenure.job (
    id bigint primary key check (id between 1 and 9007199254740991),
    token bigint not null default 1 check (token > 0),
    position bigint,                       -- of its last ticket in `ready`
    created_at timestamptz not null,
    due_at timestamptz,                 -- set while its ticket stands in `due` (or will, once freed)
    queued_at timestamptz,              -- when it was last put in line; null: at creation
    timeout_seconds double precision check (timeout_seconds > 0),
    unique_seconds double precision,
    priority smallint not null default 0 check (priority between -100 and 100),
    attempts smallint not null default 0 check (attempts >= 0),
    max_attempts smallint not null default 5 check (max_attempts > 0),
    crashes smallint not null default 0,
    features smallint not null default 0,
    held boolean not null default false,
    cancel_requested boolean not null default false,
    tenant text not null default '',
    queue text not null default 'default' check (length(queue) between 1 and 200),
    task text not null check (length(task) between 1 and 200),
    args json not null,
    retry json,
    metadata json,
    error json,                         -- of the last failed attempt
    reason text,                        -- why it stands where it stands
    parked text check (parked in ('held', 'parents')),
    unique_scope text,
    unique_key text,
    unique_until text check (unique_until in ('started', 'finished', 'period', 'forever')),
    check (attempts <= max_attempts),
    check ((unique_key is null) = (unique_scope is null) and (unique_key is null) = (unique_until is null))
);

-- Heartbeats ask this index which held jobs are asked to stop; it is nearly always empty.
create index job_cancel_requested on tenure.job (id) where cancel_requested;

create table tenure.ready (
    position bigint not null,
    job_id bigint not null,
    token bigint not null,
    priority smallint not null,
    suspect boolean not null default false,     -- its job has a crash on record
    queue text collate "C" not null,            -- compared as bytes: a fifth of a ticket's cost
    primary key (queue, priority, position)
);
create index ready_suspect on tenure.ready (queue, priority, position) where suspect;

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
    call text not null default '',      -- which claim made it: a repeat finds its own
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
    unique_until text
) partition by range (finished_at);
create table tenure.history_default partition of tenure.history default;
create index history_id on tenure.history (id);
create index history_finished_at on tenure.history using brin (finished_at);
-- What did not succeed is what people look for. Successes pay nothing for this index.
create index history_unsuccessful on tenure.history (state, id) where state <> 'succeeded';

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

-- What the rows of job and history do not already say: one row per retry, crash, release, ...
create table tenure.event (
    job_id bigint not null,
    seq bigint generated always as identity,
    at timestamptz not null,
    token bigint not null,
    kind text not null,
    worker text,
    call text,                          -- which call wrote it: a repeat finds its own
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

create table tenure.parent (
    job_id bigint not null,
    parent_id bigint not null,
    parent_state tenure.state,          -- null until the parent is final
    primary key (job_id, parent_id)
);
create index parent_parent_id on tenure.parent (parent_id);

create table tenure.queue (
    name text primary key,
    paused_at timestamptz,
    reason text
);

-- Who works here, for people to look at. Nothing is decided by it: rescue goes by leases alone.
create table tenure.worker (
    name text primary key,
    host text not null,
    pid int not null,
    started_at timestamptz not null,    -- of its first announcement
    seen_at timestamptz not null,       -- of its last one
    info json not null                  -- {"queues": {name: slots}, "tasks": [...], ...}
);

-- One vacuum setting for the tables that turn over completely many times a day.
alter table tenure.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
alter table tenure.job set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000);
alter table tenure.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The live half of `jobs`.
create view tenure.live as
    select j.id, j.token,
           (case when j.parked = 'parents' then 'waiting'
                 when j.parked = 'held' then 'queued'
                 when j.due_at is not null then 'scheduled'
                 when exists (select from tenure.ready r
                              where r.queue = j.queue and r.priority = j.priority
                                and r.position = j.position and r.token = j.token) then 'queued'
                 else 'running' end)::tenure.state as state,
           j.task, j.args, j.queue, j.priority, j.tenant, j.attempts, j.max_attempts, j.crashes,
           j.created_at, coalesce(j.queued_at, j.created_at) as queued_at, j.due_at,
           null::timestamptz as claimed_at, null::timestamptz as finished_at,
           null::double precision as duration_seconds, null::text as worker, j.reason, j.held,
           j.cancel_requested,
           exists (select from tenure.queue q
                   where q.name = j.queue and q.paused_at is not null) as queue_paused,
           case when j.parked = 'parents' then
               (select count(*) from tenure.parent p
                where p.job_id = j.id and p.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null::json as result, j.error
    from tenure.job j;

-- Where is my job? Every job with its state.
create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error
    from tenure.history h;

-- Who runs it? Every held job with its lease.
create view tenure.holding as
    select l.id as lease_id, l.worker, l.claimed_at, l.expires_at,
           (pair ->> 0)::bigint as job_id, (pair ->> 1)::bigint as token
    from tenure.lease l cross join lateral json_array_elements(l.jobs) as pair;

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
        insert into tenure.job (id, position, created_at, due_at, priority, queue, task, args)
        select id, position, now, case when position is null then now + enqueue.delay end,
               enqueue.priority::smallint, enqueue.queue, enqueue.task, enqueue.args
        from new
        returning id, position, due_at
    ), queued as (
        insert into tenure.ready (position, job_id, token, priority, queue)
        select position, id, 1, enqueue.priority::smallint, enqueue.queue from inserted where position is not null
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
                          where r.queue = enqueue.queue and r.priority = enqueue.priority::smallint
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
-- stays there. ATTACH, unlike PARTITION OF, lets settlements into other days go on meanwhile. What
-- somebody else is at is left to the next call: the default partition serves until then.
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

-- Drops whole days that ended before the cut, oldest first; answers how many. Whatever the cut, a day
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

-- A function is anybody's to call unless told otherwise.
revoke all on function tenure.enqueue, tenure.add_history_days, tenure.drop_history_days from public;
