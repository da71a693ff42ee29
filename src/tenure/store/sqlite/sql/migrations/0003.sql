-- Gates: the same tables as on PostgreSQL, where they are explained.

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
    primary key (queue, gate, key, priority, position)
) strict, without rowid;

alter table tenure.counter add column turn integer not null default 0;

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
    places integer not null check (places > 0),
    primary key (gate, key, worker)
) strict, without rowid;

create view tenure.gate_live as
    select h.lease, h.worker, h.queue, h.gate, h.key,
           (select count(*) from json_each(h.jobs) as p
                cross join tenure.job as j on j.id = p.value ->> 0 and j.token = p.value ->> 1) as live
    from tenure.gate_hold h;

create view tenure.gate_used as
    select w.gate, w.key, w.worker, w.live, min(w.live, coalesce(s.places, w.live)) as used
    from (select l.gate, case when g.keyed then l.key else '' end as key, l.worker, sum(l.live) as live
          from tenure.gate_live l join tenure.gate g on g.name = l.gate group by 1, 2, 3) as w
         left join tenure.gate_share s on s.gate = w.gate and s.key = w.key and s.worker = w.worker;

create table tenure.bucket (
    gate text not null,
    key text not null,
    tokens real not null,
    filled_at integer not null,
    primary key (gate, key)
) strict, without rowid;

alter table tenure.job add column gate text;
alter table tenure.job add column gate_key text;
alter table tenure.history add column gate text;
alter table tenure.history add column gate_key text;

drop view tenure.jobs;
drop view tenure.live;

-- As before, with the tickets at gates; the new columns come last.
create view tenure.live as
    select j.id, j.token,
           case when j.parked = 'parents' then 'waiting'
                when j.parked = 'held' then 'queued'
                when j.due_at is not null then 'scheduled'
                when j.gate is null
                     and exists (select 1 from tenure.ready r
                                 where r.queue = j.queue and r.priority = j.priority
                                   and r.position = j.position and r.token = j.token) then 'queued'
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
           null as result, j.error, j.gate, j.gate_key
    from tenure.job j;

create view tenure.jobs as
    select * from tenure.live
    union all
    select h.id, h.token, h.state, h.task, h.args, h.queue, h.priority, h.tenant, h.attempts,
           h.max_attempts, h.crashes, h.created_at, h.created_at, null, h.claimed_at, h.finished_at,
           h.duration_seconds, h.worker, h.reason, 0, 0, 0, 0, h.timeout_seconds, h.retry,
           h.metadata, h.unique_scope, h.unique_key, h.unique_until, h.result, h.error,
           h.gate, h.gate_key
    from tenure.history h;
