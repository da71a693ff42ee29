"""First pages of searches beside many finished jobs against the same beside few.

Rows are written in bulk by SQL: so many finished jobs (`--sizes 10000,1000000`), and a tenth as
many live ones. The finished jobs lie on twenty days. Each search runs as a client runs it.
The figure is the median time of its first page, and the ratio compares it with the smallest size.
A search for rare jobs may end without a match; `detail` tells how many jobs it has looked at.
`statistics` and `depth` are counts that look at no job.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import apsw
import psycopg

from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.place import KINDS, Kind, Place, fresh_place
from tenure.rules.statistics import Depth
from tenure.store import Store
from tests.support.counting import counted

NOTHING = Depth(datetime.now(UTC), 0.0, 0.0, ())
SIZES = (10_000, 100_000)
DAYS = 20
TRIES = 5

SEARCHES = {
    "all": "",
    "oldest": "order=oldest",
    "by_finish": "order=finished",
    "next": "queue=mail order=next",
    "id": "id=5",
    "state": "state=succeeded",
    "state_failed": "state=failed",
    "state_running": "state=running",
    "state_scheduled": "state=scheduled",
    "queue": "queue=mail",
    "queue_rare": "queue=rare",
    "task": "task=app.t3",
    "task_rare": "task=app.rare",
    "tenant": "tenant=acme",
    "key": "key=k107",
    "worker": "worker=w3",
    "worker_rare": "worker=gone",
    "priority": "priority=5",
    "attempts": "attempts>=2",
    "error": "error=ValueError",
    "text": "text~timeout",
    "workflow": "workflow=3",
    "workflow_name": "workflow=import",
    "schedule": "schedule=nightly",
    "gate": "gate=door",
    "args": "args.user=17",
    "args_rare": "args.user=-1",
    "metadata": "metadata.region=eu",
    "created": "created>30d",
    "started": "started>30d",
    "due": "due<+9w",
    "finished": "finished>30d",
    "finished_before": "finished<3d",
    "not": "queue!=mail",
}
COUNTS: dict[str, Callable[[Store], Sequence[object]]] = {
    "statistics": lambda store: store.statistics(),
    "depth": lambda store: (store.depth() or NOTHING).queues,
}
"""Counts that look at no job: of what has ended within an hour, and of live jobs."""
FIGURES = (*SEARCHES, *COUNTS)
NAMES = tuple(f"lookups.{store}.{figure}" for store in KINDS for figure in FIGURES)
PERIODS, PERIOD_SECONDS = 360, 20


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        wanted = [name for name in FIGURES if lab.wants(f"lookups.{store}.{name}")]
        if wanted:
            yield from _results(lab, store, wanted)


def _results(lab: Lab, kind: Kind, wanted: Sequence[str]) -> Iterator[Result]:
    small: dict[str, list[float]] = {}
    sizes = sorted(lab.sizes or [lab.few(size) for size in SIZES])
    for size in sizes:
        with fresh_place(lab, kind) as place:
            fill(place, size)
            fill_statistics(place)
            for name in wanted:
                times, seen = _measure(place, name, TRIES * lab.rounds)
                base = small.setdefault(name, times)
                if size > sizes[0]:
                    ratios = [each / statistics.median(base) for each in times]
                    yield Result(
                        name=f"lookups.{kind}.{name}", value=1000 * statistics.median(times),
                        unit="ms", ratio=statistics.median(ratios),
                        against=f"{size:,} against {sizes[0]:,} finished jobs",
                        spread=(min(ratios), max(ratios)), detail={"finished": size, **seen},
                    )  # fmt: skip


def _measure(place: Place, name: str, tries: int) -> tuple[list[float], dict[str, object]]:
    if name in COUNTS:
        return _measure_counts(place, name, tries)
    text = SEARCHES[name]
    page = place.store.list_jobs(text)  # the connection, and the pages of an index
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        page = place.store.list_jobs(text)
        times.append(time.perf_counter() - start)
    check(bool(page.jobs) or page.next is not None or "rare" in name, f"{name} finds nothing")
    return times, {"filter": text, "jobs": len(page.jobs), "looked_at": page.looked_at}


def _measure_counts(place: Place, name: str, tries: int) -> tuple[list[float], dict[str, object]]:
    found = COUNTS[name](place.store)
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        found = COUNTS[name](place.store)
        times.append(time.perf_counter() - start)
    check(bool(found), f"{name} finds nothing")
    return times, {"jobs": len(found)}


def fill_statistics(place: Place) -> None:
    """What one process has counted of ten tasks in two hours, and a count of the live jobs."""
    rows = counted(
        *[("default", f"app.t{n % 10}", "succeeded", n / 100, n / 1000) for n in range(1000)]
    )
    now = datetime.now(UTC)
    for n in range(PERIODS):
        place.store.add_statistics("p", rows, at=now - timedelta(seconds=PERIOD_SECONDS * n))
    place.store.sample_depth(force=True)


# --- rows -----------------------------------------------------------------------------------------


def fill(place: Place, finished: int) -> None:
    """Write the rows: finished jobs first, then a tenth as many live ones."""
    live = max(40, finished // 10)
    if place.kind == "postgres":
        with psycopg.connect(place.url, autocommit=True) as server:
            for statement in (*_days(), *_rows("postgres", finished, live)):
                server.execute(statement)
            server.execute("vacuum analyze")
        return
    with closing(apsw.Connection(place.url.removeprefix("sqlite:///"))) as file:
        file.set_busy_timeout(10_000)
        file.execute("begin immediate")
        for statement in _rows("sqlite", finished, live):
            file.execute(statement)
        file.execute("commit")
        file.execute("analyze")


def _days() -> Iterator[str]:
    """A partition for each of the last days, as workers have made them day by day."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(DAYS + 1, 0, -1):
        day = today - timedelta(days=back)
        name = f"tenure.history_{day:%Y%m%d}"
        yield f"create table {name} (like tenure.history including all)"
        yield (
            f"alter table tenure.history attach partition {name} "
            f"for values from ('{day.isoformat()}') to ('{(day + timedelta(days=1)).isoformat()}')"
        )


# `n` is the id, and each value depends on it. The rare values belong to the oldest job.
_COMMON = """
    case when n = 1 then 'rare' when n % 10 = 3 then 'mail' else 'default' end,
    case when n = 1 then 'app.rare' else 'app.t' || cast(n % 10 as text) end,
    case when n % 5 = 0 then 'acme' else '' end,
    cast('{{"user":' || case when n = 1 then '-1' else cast(n % 100 as text) end || '}}' as {json}),
    cast(case when n % 4 = 0 then '{{"region":"eu"}}'
              when n % 50 = 1 then '{{"schedule":{{"name":"nightly"}}}}' end as {json}),
    case when n % 100 = 7 then 'k' || cast(n % 1000 as text) end,
    case when n % 100 = 7 then 'app.t7' end,
    case when n % 100 = 7 then 'finished' end,
    case when n % 20 = 0 then 'door' end,
    case when n % 20 = 0 then '' end,
    case when n % 7 = 0 then 5 else 0 end
"""
_COLUMNS = """queue, task, tenant, args, metadata, unique_key, unique_scope, unique_until, gate,
    gate_key, priority"""
_TABLES = (
    """
    insert into {t}history (id, token, created_at, claimed_at, finished_at, state, attempts,
        max_attempts, crashes, features, worker, error, {columns})
    select n, 1, {ended}, {ended}, {ended},
        cast(case when n % 100 = 9 then 'failed' else 'succeeded' end as {state}),
        case when n % 6 = 0 then 2 else 1 end, 5, 0, 0, 'w' || cast(n % 8 as text),
        cast(case when n % 100 = 9 then '{{"type":"builtins.ValueError","message":"Timeout of '
             || cast(n as text) || '"}}' end as {json}), {common}
    from {finished}
    """,
    """
    insert into {t}job (id, token, position, created_at, due_at, {columns})
    select n, 1, case when n % 25 <> 1 then n end, {created}, case when n % 25 = 1 then {due} end,
        {common}
    from {live}
    """,
    """
    insert into {t}ready (queue, needs, priority, position, job_id, token)
    select queue, 0, priority, position, id, 1 from {t}job
    where due_at is null and gate is null and id < {held}
    """,
    """
    insert into {t}gated (queue, gate, key, priority, position, job_id, token)
    select queue, gate, gate_key, priority, position, id, 1 from {t}job
    where due_at is null and gate is not null and id < {held}
    """,
    """
    insert into {t}due (due_at, job_id, token)
    select due_at, id, 1 from {t}job where due_at > {epoch}
    """,
    """
    insert into {t}workflow (id, created_at, tenant, name, on_failure)
    select n, {created}, '', 'import', 'finish' from {ten}
    """,
    """
    insert into {t}node (job_id, workflow_id, name, rule)
    select n, 1 + n % 10, 'n' || cast(n as text), 'all_succeeded' from {nodes}
    """,
)
_OWN = {
    "postgres": (
        """insert into tenure.lease (id, claimed_at, expires_at, worker, jobs)
        values (1, {created}, {due}, 'w3', '{jobs}')""",
        "select setval('tenure.job_id', {last} + 1)",
    ),
    "sqlite": (
        """insert into tenure_lease (id, claimed_at, expires_at, worker, jobs, boot, expires_tick)
        values (1, {created}, {due}, 'w3', '{jobs}', 'b', 0)""",
        "update tenure_counter set job_id = {last} + 1, position = {last} + 1",
    ),
}


def _rows(kind: Kind, finished: int, live: int) -> Iterator[str]:
    """The inserts. The last jobs run, all of them on one lease."""
    pg = kind == "postgres"
    wall = int(time.time() * 1e6)

    def at(seconds: str) -> str:
        if pg:
            return f"(now() + ({seconds}) * interval '1 second')"
        return f"cast({wall} + ({seconds}) * 1000000 as integer)"

    def series(first: int, last: int) -> str:
        if pg:
            return f"generate_series({first}::bigint, {last}::bigint) as s (n)"
        step = f"select {first} union all select n + 1 from s where n < {last}"
        return f"(with recursive s (n) as ({step}) select n from s)"

    last = finished + live
    held = max(finished + 1, last - 19)
    values: dict[str, object] = {
        "t": "tenure." if pg else "tenure_", "json": "json" if pg else "text", "last": last,
        "state": "tenure.state" if pg else "text", "epoch": "'-infinity'" if pg else 0,
        "columns": _COLUMNS, "held": held, "created": at("-60"), "due": at("3600"),
        "ended": at(f"(n - {finished}) * {DAYS * 86_400 / finished:.6f} - 1"),
        "finished": series(1, finished), "live": series(finished + 1, last), "ten": series(1, 10),
        "nodes": series(1, min(finished, 5000)),
        "jobs": "[" + ",".join(f"[{id},1]" for id in range(held, last + 1)) + "]",
    }  # fmt: skip
    values["common"] = _COMMON.format(**values)
    for statement in (*_TABLES, *_OWN[kind]):
        yield statement.format(**values)
