-- Gates: how many may run at once, how many per second, whose turn it is.
--
--     gate       what is allowed               gated       tickets of jobs that wait at a gate
--     turn       "look at this line", in order gate_hold   jobs that have passed, as long as they live
--     bucket     tokens of rates               gate_share  places of workers with more jobs than those
--
-- A job with a gate has its ticket in `gated`, never in `ready`. A gate has a line of tickets per
-- queue and key. Whoever puts a ticket in a line, or frees what a line may wait for, writes a turn;
-- only a claim that has the row of the gate locked takes turns away. So nobody waits for a lock
-- but claims, and no wake-up is lost: see store/gates.py.

create table tenure.gate (
    name text collate "C" primary key check (length(name) between 1 and 200),
    max_running int check (max_running > 0),
    rate double precision check (rate > 0),
    per_seconds double precision not null default 1 check (per_seconds > 0),
    burst int check (burst > 0),
    keyed boolean not null default false,       -- each key has limits of its own
    by_hand boolean not null default false,     -- somebody has set them: code does not, until reset
    declared json                               -- what code says
);

create table tenure.gated (
    position bigint not null,
    job_id bigint not null,
    token bigint not null,
    priority smallint not null,
    suspect boolean not null default false,
    queue text collate "C" not null,
    gate text collate "C" not null,
    key text collate "C" not null,
    primary key (queue, gate, key, priority, position)
);

create table tenure.turn (
    n bigint generated always as identity,
    not_before timestamptz,                     -- set while the line waits for a token
    priority smallint not null,                 -- of the head of the line, as far as was known
    queue text collate "C" not null,
    gate text collate "C" not null,
    key text collate "C" not null,
    primary key (queue, gate, priority, n)
);
create unique index turn_waits on tenure.turn (queue, gate, key) where not_before is not null;
create index turn_not_before on tenure.turn (queue, not_before) where not_before is not null;

create table tenure.gate_hold (                 -- written by the claim, goes with the lease
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
    places int not null check (places > 0),
    worker text not null,
    gate text collate "C" not null,
    key text collate "C" not null,              -- empty where all keys share the limits
    primary key (gate, key, worker)
);

-- How many of the jobs that passed together still run.
create view tenure.gate_live as
    select h.lease, h.worker, h.queue, h.gate, h.key, n.live
    from tenure.gate_hold h, lateral (
        select count(*) as live
        from unnest(h.ids, h.tokens) as p (id, token), lateral (
            select from tenure.job j where j.id = p.id and j.token = p.token offset 0) as j) as n;

-- The places that each worker uses: one for each of its jobs, or its share if it has more jobs.
create view tenure.gate_used as
    select w.gate, w.key, w.worker, w.live, least(w.live, s.places) as used
    from (select l.gate, case when g.keyed then l.key else '' end as key, l.worker,
                 sum(l.live)::bigint as live
          from tenure.gate_live l join tenure.gate g on g.name = l.gate group by 1, 2, 3) as w
         left join tenure.gate_share s on s.gate = w.gate and s.key = w.key and s.worker = w.worker;

create table tenure.bucket (
    tokens double precision not null,
    filled_at timestamptz not null,
    gate text collate "C" not null,
    key text collate "C" not null,                          -- empty where all keys share the limits
    primary key (gate, key)
);

alter table tenure.gated set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
alter table tenure.turn set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table tenure.gate_hold set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table tenure.gate set (fillfactor = 50);

alter table tenure.job add column gate text, add column gate_key text;
alter table tenure.history add column gate text, add column gate_key text;

-- As before, with the tickets at gates; the new columns come last.
create or replace view tenure.live as
    select j.id, j.token,
           (case when j.parked = 'parents' then 'waiting'
                 when j.parked = 'held' then 'queued'
                 when j.due_at is not null then 'scheduled'
                 when j.gate is null
                      and exists (select from tenure.ready r
                                  where r.queue = j.queue and r.priority = j.priority
                                    and r.position = j.position and r.token = j.token) then 'queued'
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
               (select count(*) from tenure.parent p
                where p.job_id = j.id and p.parent_state is null) else 0 end as unfinished_parents,
           j.timeout_seconds, j.retry, j.metadata, j.unique_scope, j.unique_key, j.unique_until,
           null::json as result, j.error, j.gate, j.gate_key
    from tenure.job j;

create or replace view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, false, false, false, 0, h.timeout_seconds,
           h.retry, h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key
    from tenure.history h;
