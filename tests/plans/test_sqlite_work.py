"""On SQLite, the work of an operation does not grow with the tables.

SQLite counts the steps of its virtual machine per statement. The steps per job are compared between
a file with some thousand jobs and one with a million live and a million finished ones, analysed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.rules.lifecycle import retry, succeed
from tenure.store import Store, open_store

# One process fills the files once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sqlite-work")]

WORST_RATIO = 1.5
SMALL, LARGE = 50_000, 1_000_000
WORKER = "host-1:42"
ERROR = encode({"type": "E"})
OPERATIONS = (
    "claim", "succeed", "retry", "promote", "sweep", "extend", "get_live", "get_finished", "cancel",
    "oldest_ready", "list_queued", "list_failed",
)  # fmt: skip
Steps = dict[str, float]

# Of n jobs, 6/10 are queued, 2/10 are due and 2/10 run on expired leases of 500; as many finished.
_FILL = (
    """
    with recursive n (n) as (select 1 union all select n + 1 from n where n < :jobs)
    insert into tenure_job (id, position, created_at, due_at, task, args)
    select n, iif(n <= :jobs * 6 / 10, n, null), 0,
           iif(n between :jobs * 6 / 10 + 1 and :jobs * 8 / 10, n, null),
           'app.send', '{"user_id": 1234567}'
    from n
    """,
    """
    insert into tenure_ready (queue, priority, position, job_id, token)
    select queue, priority, position, id, 1 from tenure_job where position is not null
    """,
    """
    insert into tenure_due (due_at, job_id, token)
    select due_at, id, 1 from tenure_job where due_at is not null
    """,
    """
    insert into tenure_lease (claimed_at, boot, expires_tick, expires_at, worker, jobs)
    select 0, 'an earlier boot', min(id), 0, 'w', json_group_array(json_array(id, 1))
    from tenure_job where position is null and due_at is null group by (id - 1) / 500
    """,
    """
    insert into tenure_history (
        id, token, created_at, finished_at, state, priority, attempts, max_attempts, crashes,
        features, tenant, queue, task, args)
    select id + :jobs, 1, 0, id, iif(id % 50 = 0, 'failed', 'succeeded'), 0, 1, 5, 0, 0, '',
           'default', 'app.send', '{"user_id": 1234567}'
    from tenure_job
    """,
    "update tenure_counter set job_id = 3 * :jobs, position = 3 * :jobs",
)


class Meter:
    """Counts the steps of every statement on every connection made while it listens."""

    def __init__(self) -> None:
        self._steps = 0

    def __enter__(self) -> Meter:
        apsw.connection_hooks.append(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(self._listen)

    def count(self, work: Callable[[], object]) -> int:
        """The steps that `work` took."""
        before = self._steps
        work()
        return self._steps - before

    def _listen(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self._steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Steps, Steps]]:
    """Steps per job of every operation: in a small file, and in a large one."""
    folder = tmp_path_factory.mktemp("steps")
    yield measure(folder / "small.db", SMALL), measure(folder / "large.db", LARGE)
    for file in folder.iterdir():
        file.unlink()


def measure(path: Path, jobs: int) -> Steps:
    """Fill a file with so many live and as many finished jobs, and run every operation."""
    open_store(f"sqlite:///{path}").close()
    fill(path, jobs)
    with Meter() as meter, open_store(f"sqlite:///{path}?synchronous=NORMAL") as store:
        return measure_operations(store, meter, jobs)


def fill(path: Path, jobs: int) -> None:
    """Write the jobs behind the store's back."""
    connection = apsw.Connection(str(path))
    connection.execute("pragma synchronous = off")
    connection.execute("begin")
    for statement in _FILL:
        connection.execute(statement, {"jobs": jobs} if ":jobs" in statement else None)
    connection.execute("commit")
    connection.execute("analyze")
    connection.close()


def measure_operations(store: Store, meter: Meter, jobs: int) -> Steps:
    """Run every operation and count."""
    found: Steps = {}

    def cost(name: str, count: int, work: Callable[[], object]) -> None:
        found[name] = meter.count(work) / count

    blocks = [store.claim(WORKER, {"default": 200}, lease_seconds=600)]
    cost("claim", 600, lambda: blocks.extend(store.claim(WORKER, {"default": 200}) for _ in "abc"))
    held = [job for leases in blocks for lease in leases for job in lease.jobs]
    assert len(held) == 800
    cost("succeed", 400, lambda: store.settle(WORKER, [succeed(job) for job in held[:400]]))
    cost("retry", 200, lambda: store.settle(WORKER, [retry(j, ERROR, 60.0) for j in held[400:600]]))
    cost("extend", 1, lambda: store.extend(WORKER, {blocks[-1][0].id: []}))
    cost("promote", 300, lambda: store.promote(most=300))
    cost("sweep", 500, lambda: store.sweep(most=1))
    live = range(jobs // 2, jobs // 2 + 50)
    cost("get_live", 50, lambda: [store.get(id) for id in live])
    cost("get_finished", 50, lambda: [store.get(jobs + id) for id in live])
    cost("cancel", 20, lambda: [store.cancel(id) for id in live[:20]])
    cost("oldest_ready", 1, store.oldest_ready)
    top = jobs * 6 // 10
    queued = [State.QUEUED]
    cost("list_queued", 50, lambda: store.list_jobs(f"id<{top}", limit=50, states=queued))
    cost("list_failed", 50, lambda: store.list_jobs(limit=50, states=[State.FAILED]))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_takes_as_many_steps_among_a_million_jobs_as_among_some_thousand(
    steps: tuple[Steps, Steps], operation: str
) -> None:
    small, large = steps[0][operation], steps[1][operation]
    print(f"steps per job: {small:.0f} among {SMALL:,} jobs, {large:.0f} among {LARGE:,}")
    assert small > 0
    assert large <= WORST_RATIO * small + 20
