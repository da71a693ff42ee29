"""A million live and a million finished jobs on PostgreSQL, written by plain SQL in half a minute.

Two queues, `stale` and `fresh`, stand side by side, so that what one measurement takes leaves no
dead tickets in the way of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]

QUEUES = ("stale", "fresh")
QUEUED = range(1, 600_001)
DUE = range(600_001, 800_001)
RUNNING = range(800_001, 1_000_001)
FINISHED = range(1_000_001, 2_000_001)
BLOCK = 500
RARE_TASK = "app.rare"

_NO_AUTOVACUUM = """
do $$
declare t record;
begin
    for t in select oid::regclass as name from pg_class
             where relnamespace = 'tenure'::regnamespace and relkind = 'r'
    loop
        execute format('alter table %s set (autovacuum_enabled = false)', t.name);
    end loop;
end $$
"""

# Odd ids are in queue `stale`, even ones in `fresh`; every 100,000th job is of the rare task.
_JOBS = """
insert into tenure.job (id, token, position, created_at, due_at, queue, task, args)
select n, 1, case when n <= 600000 then n + 1000 end, now() - interval '1 hour',
       case when n between 600001 and 800000
            then now() - interval '30 minutes' + n * interval '1 ms' end,
       case when n % 2 = 1 then 'stale' else 'fresh' end,
       case when n % 100000 = 0 then 'app.rare' else 'app.send' end,
       '{"user_id": 1234567, "template": "welcome"}'
from generate_series(1, 1000000) as n
"""
_TICKETS = """
insert into tenure.ready (position, job_id, token, priority, queue)
select position, id, token, priority, queue from tenure.job
where position is not null and id <= 600000
order by id
"""
_DUE = """
insert into tenure.due (due_at, job_id, token)
select due_at, id, token from tenure.job where due_at is not null order by due_at
"""
_LEASES = """
insert into tenure.lease (id, claimed_at, expires_at, worker, jobs)
select 1000 + block, now() - interval '10 minutes', now() - interval '5 minutes', 'w',
       (select json_agg(json_build_array(800000 + (block - 1) * 500 + n, 1))
        from generate_series(1, 500) as n)
from generate_series(1, 400) as block
"""
_HISTORY = """
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, state, priority, attempts, max_attempts,
    crashes, features, tenant, queue, task, args, worker)
select n, 1, now() - interval '1 hour', now(), now() - interval '1 hour' + n * interval '1 ms',
       case when n % 1000 = 0 then 'failed' else 'succeeded' end::tenure.state, 0, 1, 5, 0, 0, '',
       case when n % 2 = 1 then 'stale' else 'fresh' end,
       case when n % 100000 = 0 then 'app.rare' else 'app.send' end, '{"user_id": 1234567}', 'w'
from generate_series(1000001, 2000000) as n
"""
_SEQUENCES = """
select setval('tenure.job_id', 3000000), setval('tenure.position', 3000000),
       setval('tenure.lease_id', 100000)
"""


def make_room(connection: Connection) -> None:
    """Before a store is used: leave the backlog's ids alone, and the tables to themselves."""
    connection.execute(_SEQUENCES)
    connection.execute(_NO_AUTOVACUUM)


def load(connection: Connection) -> None:
    """Write the backlog behind the store's back."""
    for statement in (_JOBS, _TICKETS, _DUE, _LEASES, _HISTORY):
        connection.execute(statement)


@dataclass(frozen=True)
class Cost:
    """Pages touched by an operation, and the number of jobs that it dealt with."""

    pages: int
    jobs: int

    @property
    def per_job(self) -> float:
        """Pages per job."""
        return self.pages / max(1, self.jobs)
