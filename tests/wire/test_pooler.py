"""PgBouncer in transaction mode: workers run through it, and leave nothing in its sessions.

The conformance suite goes through it as well: `pytest --pooler tests/contract`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure.rules.job import State
from tests.crash.cast import Stage
from tests.crash.handlers import hold, quick
from tests.processes.crew import Crew
from tests.support.pgbouncer import Bouncer
from tests.support.plain import drivers_url
from tests.support.postgres import Server

POOL = 3
"""Fewer than the connections of two workers and a client."""
KEPT = """
select (select count(*) from pg_prepared_statements),
       (select count(*) from pg_listening_channels()),
       (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
       current_setting('enable_seqscan'), current_setting('search_path'),
       current_setting('lock_timeout'), current_setting('synchronous_commit')
"""
CLEAN = (0, 0, 0, "on", '"$user", public', "0", "on")


@pytest.fixture
def stage(pg_server: Server, pg_migrated_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose every way to the database leads through PgBouncer."""
    folder, crew_folder = tmp_path / "stage", tmp_path / "crew"
    folder.mkdir()
    crew_folder.mkdir()
    with Bouncer(pg_server, pool_size=POOL) as bouncer, Crew(crew_folder) as crew:
        stage = Stage(bouncer.url(pg_migrated_url), folder, crew)
        yield stage
        stage.close()


@pytest.mark.slow
def test_workers_run_through_it_and_leave_nothing_in_its_sessions(stage: Stage) -> None:
    for _ in range(2):
        stage.worker()
    ids = stage.add(*[quick.call() for _ in range(50)], hold.call("end"))
    stage.heard("ran", ids[-1])
    stage.heard("ran", times=len(ids))
    stage.open("end")
    stage.drained()

    assert {stage.store.get(id).state for id in ids} == {State.SUCCEEDED}
    stage.check()
    url = drivers_url(stage.url)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as user:
        seen = {
            user.execute(f"select pg_backend_pid(), kept.* from ({KEPT}) as kept").fetchone()
            for _ in range(4 * POOL)
        }
    assert len({row[0] for row in seen if row}) > 1, "only one session was looked at"
    assert {row[1:] for row in seen if row} == {CLEAN}
