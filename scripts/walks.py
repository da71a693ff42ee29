"""Follow jobs through the code: how many functions and files a reader has to visit.

    python -m scripts.walks             # a table of all walks, on both databases
    python -m scripts.walks --files way # the files of the walks whose name contains "way"

Each walk runs on a fresh database: once to warm up, once traced. `jumps` counts how often a call
goes to another file than the call before it. Only files of `src/tenure` count. A comprehension is
part of its function, as Python 3.12 runs it. The last walk is the way of one job through a worker,
from `enqueue` until its row is in history, without the loops of the worker that do nothing for this
job. A second table divides its files by the folder that they are in.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import tenure
from tenure import Gate, Tenure, Worker
from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import abort, succeed
from tenure.store import Store
from tenure.tasks import Task
from tests.support.postgres import Server

ROOT = f"{Path(tenure.__file__).parent}/"
WORKER = "a-worker"
LOOPS = {"Timekeeper.run", "Heartbeat._run", "Ticker.run", "Upkeep._repeat"}
"""Loops that run by the clock, whatever jobs there are."""
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
QUIET = {"heartbeat_seconds": 1000.0, "promote_seconds": 1000.0, "sweep_seconds": 1000.0,
         "schedule_seconds": 1000.0, "lease_seconds": 3600.0}  # fmt: skip

Step = tuple[str, str]
"""The file and the function of one call."""


class Trace:
    """The calls inside `src/tenure`, thread by thread, and the statements that they ran."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Step]] = defaultdict(list)
        self.statements: set[str] = set()
        self.transactions: set[FrameType] = set()
        self.is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace this thread, and the threads that were told to call `note`."""
        sys.setprofile(self.note)
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            sys.setprofile(None)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Called by the interpreter for each call and return."""
        code = frame.f_code
        if not self.is_on or event != "call" or not code.co_filename.startswith(ROOT):
            return
        if code.co_name in COMPREHENSIONS or _outermost(frame) in LOOPS:
            return
        step = code.co_filename.removeprefix(ROOT), code.co_qualname
        self.calls[threading.get_ident()].append(step)
        if step[1] in {"SQLite.transact", "Postgres.transact"}:
            self.transactions.add(frame)  # a coroutine is called again whenever it resumes
        if "statement" in code.co_varnames[: code.co_argcount]:
            self.statements.add(frame.f_locals["statement"])

    @property
    def steps(self) -> set[Step]:
        """Each function once."""
        return {step for steps in self.calls.values() for step in steps}

    @property
    def files(self) -> list[str]:
        """Each file once."""
        return sorted({file for file, _ in self.steps})

    def __str__(self) -> str:
        jumps = sum(
            first != second
            for steps in self.calls.values()
            for (first, _), (second, _) in pairwise(steps)
        )
        numbers = [len(self.steps), len(self.files), jumps]
        numbers += [len(self.statements), len(self.transactions)]
        return " / ".join(map(str, numbers))


def _outermost(frame: FrameType) -> str:
    """The function of Tenure that began this chain of calls."""
    name = ""
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_filename.startswith(ROOT):
            name = above.f_code.co_qualname
        above = above.f_back
    return name


async def echo(text: str) -> str:
    """The handler of all jobs."""
    return text


class Stage:
    """An application on a fresh database, and its tasks."""

    def __init__(self, url: str) -> None:
        self.app = Tenure(url)
        self.app.migrate()
        self.store: Store = self.app.whole_store
        self.plain: Task[..., str] = self.app.task(name="plain")(echo)

    @cached_property
    def gated(self) -> Task[..., str]:
        """A task with a gate. Only walks at gates have gates in their database."""
        return self.app.task(name="gated", gate=Gate("narrow", max_running=2))(echo)

    def claim(self) -> Claimed:
        """Claim one job."""
        [lease] = self.store.claim(WORKER, {"default": 1})
        return lease.jobs[0]

    def succeed(self, job: Claimed) -> object:
        """Settle the attempt, the last one of its lease."""
        return self.store.settle(WORKER, [succeed(job)], done_leases=[job.lease_id])


Act = Callable[[], object]
Walk = Callable[[Stage], Act]
"""Prepares everything, and returns the call to trace."""


def _claim(task: Callable[[Stage], Task[..., str]]) -> Walk:
    def prepare(stage: Stage) -> Act:
        task(stage).enqueue("x")
        return stage.claim

    return prepare


def _settle(task: Callable[[Stage], Task[..., str]]) -> Walk:
    def prepare(stage: Stage) -> Act:
        task(stage).enqueue("x")
        job = stage.claim()
        return lambda: stage.succeed(job)

    return prepare


def _plain(stage: Stage) -> Task[..., str]:
    return stage.plain


def _gated(stage: Stage) -> Task[..., str]:
    return stage.gated


def _workflow(stage: Stage) -> Act:
    workflow = stage.app.workflow("two")
    first = workflow.add(stage.plain.call("x"), name="first")
    workflow.add(stage.plain.call("x"), name="second", after=[first])
    return workflow.enqueue


def _settle_parent(stage: Stage) -> Act:
    _workflow(stage)()
    job = stage.claim()
    return lambda: stage.succeed(job)


def _fire(stage: Stage) -> Act:
    names = [schedule.name for schedule in stage.app.schedules.list()]
    for name in names:
        stage.app.schedules.remove(name)
    stage.app.schedules.add(
        f"{'very-' * len(names)}often", stage.plain.call("x"), every_seconds=1.0
    )
    later = datetime.now(UTC) + timedelta(seconds=5)

    def fire() -> None:
        assert stage.store.fire(now=later).jobs, "the schedule was not due"

    return fire


def _cancel(stage: Stage) -> Act:
    handle = stage.plain.enqueue("x")
    stage.claim()
    return lambda: stage.app.cancel(handle.id)


def _heartbeat(stage: Stage) -> Act:
    handle = stage.plain.enqueue("x")
    job = stage.claim()
    stage.app.cancel(handle.id)
    return lambda: stage.store.extend(WORKER, {job.lease_id: [job.id]})


def _abort(stage: Stage) -> Act:
    handle = stage.plain.enqueue("x")
    job = stage.claim()
    stage.app.cancel(handle.id)
    return lambda: stage.store.settle(WORKER, [abort(job)], done_leases=[job.lease_id])


def _why(task: Callable[[Stage], Task[..., str]]) -> Walk:
    def prepare(stage: Stage) -> Act:
        handle = task(stage).enqueue("x")
        return lambda: stage.app.why(handle.id)

    return prepare


class Named(NamedTuple):
    """A walk and its name."""

    name: str
    walk: Walk


WALKS = [
    Named("enqueue", lambda stage: lambda: stage.plain.enqueue("x")),
    Named("claim", _claim(_plain)),
    Named("settle", _settle(_plain)),
    Named("gate: enqueue", lambda stage: lambda: stage.gated.enqueue("x")),
    Named("gate: claim", _claim(_gated)),
    Named("gate: settle", _settle(_gated)),
    Named("workflow: enqueue two nodes", _workflow),
    Named("workflow: settle the parent", _settle_parent),
    Named("schedule: fire one tick", _fire),
    Named("cancel a running job", _cancel),
    Named("... the heartbeat that learns of it", _heartbeat),
    Named("... settle as aborted", _abort),
    Named("why, queued", _why(_plain)),
    Named("why, at a gate", _why(_gated)),
]


def trace_walk(walk: Walk, url: str) -> Trace:
    """Run the walk once to warm up, and once traced."""
    stage = Stage(url)
    trace = Trace()
    with stage.app:
        walk(stage)()
        act = walk(stage)
        with trace.on():
            act()
    return trace


def trace_worker(url: str) -> Trace:
    """One job through a worker, from `enqueue` until the store has settled it."""
    stage, trace = Stage(url), Trace()
    threading.setprofile(trace.note)  # for the threads that the worker and the store start
    try:
        with stage.app:
            asyncio.run(_whole_way(stage, trace))
    finally:
        threading.setprofile(None)
    return trace


async def _whole_way(stage: Stage, trace: Trace) -> None:
    async with Worker(stage.app, **QUIET) as worker:  # type: ignore[arg-type]
        process = worker._process
        assert process is not None
        for _ in range(3):
            await (await stage.plain.enqueue_async("x")).wait_async()
        await _until_async(lambda: not process.leased_jobs.leases)
        await asyncio.sleep(0.5)  # the bell and the claimer come to rest
        with trace.on():
            await stage.plain.enqueue_async("x")
            await _until_async(lambda: process.leased_jobs.leases)
            await _until_async(lambda: not process.leased_jobs.leases)


async def _until_async(done: Callable[[], object]) -> None:
    while not done():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


PARTS = {
    "worker/": "the worker",
    "store/sqlite/": "the database",
    "store/postgres/": "the database",
    "store/": "operations of the store",
    "rules/": "rules",
    "": "tasks, client and running job",
}
"""Where a file belongs: the first match counts."""


def parts(trace: Trace) -> Counter[str]:
    """How many files of each part a walk visits."""
    return Counter(
        next(part for prefix, part in PARTS.items() if file.startswith(prefix))
        for file in trace.files
    )


Tracer = Callable[[str], Trace]
WHOLE_WAY = "the whole way through a worker"


def tracers() -> dict[str, Tracer]:
    """Each walk by its name, as a function of the URL of an empty database."""
    found: dict[str, Tracer] = {
        name: lambda url, walk=walk: trace_walk(walk, url)  # type: ignore[misc]
        for name, walk in WALKS
    }
    return {**found, WHOLE_WAY: trace_worker}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", metavar="NAME", help="list the files of these walks")
    asked = parser.parse_args().files
    print("functions / files / jumps / statements / transactions\n")
    print("| walk | SQLite | PostgreSQL |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        for number, (name, tracer) in enumerate(tracers().items()):
            if asked is not None and asked not in name:
                continue
            sqlite = tracer(f"sqlite:///{folder}/{number}.db")
            postgres = tracer(server.create_database())
            print(f"| {name} | {sqlite} | {postgres} |", flush=True)
            if asked is not None:
                _print_files(sqlite)
                _print_files(postgres)
            if name == WHOLE_WAY:
                _print_parts(parts(sqlite), parts(postgres))
    return 0


def _print_parts(sqlite: Counter[str], postgres: Counter[str]) -> None:
    print(f"\n| files of {WHOLE_WAY} | SQLite | PostgreSQL |\n|---|---|---|")
    for part in dict.fromkeys(PARTS.values()):
        print(f"| {part} | {sqlite[part]} | {postgres[part]} |")


def _print_files(trace: Trace) -> None:
    for file in trace.files:
        functions = sorted(function for where, function in trace.steps if where == file)
        print(f"    {file:34} {', '.join(functions)}")
    print(f"    statements: {', '.join(sorted(trace.statements))}\n")


if __name__ == "__main__":
    sys.exit(main())
