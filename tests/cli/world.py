"""A small world of jobs in every state, and an application beside it, for commands to act on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.benchmark.scratch import NAME
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import Job, NewJob, State, WorkerInfo
from tenure.store import Store, open_store
from tests.support.plain import Plain

SHOP = """
import time
from tenure import Tenure

app = Tenure()


@app.task(max_attempts=3)
def greet(name: str, loud: bool = False) -> str:
    return f"Hello, {name}!"


@app.task(queue="mail", max_attempts=1)
def send(to: str) -> None:
    raise ValueError(f"no such address: {to}")


@app.task()
def long(seconds: float) -> str:
    print("the long job has begun", flush=True)
    time.sleep(seconds)
    return "done"
"""

ERROR = {"type": "ValueError", "message": "no such address: bob", "traceback": "  in send\n"}


@dataclass(frozen=True, slots=True)
class World:
    """Where the jobs are, and their ids."""

    url: str
    folder: Path
    succeeded: int
    failed: int
    failed_too: int
    cancelled: int
    queued: int
    scheduled: int
    waiting: int
    held: int

    @property
    def ids(self) -> set[int]:
        """All of them."""
        return {self.succeeded, self.failed, self.failed_too, self.cancelled, self.queued,
                self.scheduled, self.waiting, self.held}  # fmt: skip

    @property
    def flow(self) -> int:
        """The newest workflow."""
        with open_store(self.url) as store:
            return store.list_workflows()[0].id

    @property
    def ended_flow(self) -> int:
        """The oldest workflow."""
        with open_store(self.url) as store:
            return store.list_workflows()[-1].id

    def job(self, id: int) -> Job:
        """A job as the database has it now."""
        with open_store(self.url) as store:
            return store.get(id)

    def state(self, id: int) -> State:
        """The state of a job."""
        return self.job(id).state

    def stored(self, id: int) -> dict[str, Any]:
        """A job as --json must show it."""
        return self.job(id).as_dict()


def make_world(url: str, folder: Path) -> World:
    """Fill a database, which is migrated unless it is a file, and write the application."""
    (folder / "shop.py").write_text(SHOP)
    with open_store(url) as store:
        greet = NewJob(task="shop.greet", args=encode({"name": "Ada"}))
        send = NewJob(task="shop.send", args=encode({"to": "bob"}), queue="mail", max_attempts=1)
        [succeeded, failed, failed_too] = _enqueue(store, greet, send, send)
        for claimed in _claim(store):
            end = (
                lifecycle.succeed(claimed, encode("Hello, Ada!"), 0.5)
                if claimed.id == succeeded
                else lifecycle.fail(claimed, encode(ERROR), "error", 0.5)
            )
            store.settle("w-1", [end], done_leases=[claimed.lease_id])
        [cancelled, queued, scheduled, held] = _enqueue(
            store, greet, greet,
            NewJob(task="shop.greet", args=encode({"name": "Bob"}), delay_seconds=3600), greet,
        )  # fmt: skip
        [waiting] = _enqueue(store, NewJob(task="shop.long", parents=(queued,)))
        store.cancel(cancelled, reason="not needed")
        store.hold(held, reason="wait for Eve")
    return World(url, folder, succeeded, failed, failed_too, cancelled, queued, scheduled, waiting,
                 held)  # fmt: skip


def _enqueue(store: Store, *jobs: NewJob) -> list[int]:
    return [enqueued.id for enqueued in store.enqueue(list(jobs))]


def _claim(store: Store) -> list[Claimed]:
    leases = [*store.claim("w-1", {"default": 10}), *store.claim("w-1", {"mail": 10})]
    return [claimed for lease in leases for claimed in lease.jobs]


def places(world: World) -> list[str]:
    """The places of `tenure bench` that there are now: schemas or folders."""
    if world.url.startswith("sqlite:"):
        return [path.name for path in world.folder.iterdir() if path.name.startswith(NAME)]
    with Plain(world.url) as plain:
        return [name for (name,) in plain.rows(
            "select nspname from pg_namespace where starts_with(nspname, ?)", NAME
        )]  # fmt: skip


def announce(world: World) -> None:
    """Have a worker say that it is there."""
    info = WorkerInfo(
        name="w-1", host="host.example", pid=42, queues={"default": 4, "mail": 0},
        tasks=("shop.greet",), counts={"stuck": 1},
    )  # fmt: skip
    with open_store(world.url) as store:
        store.announce(info)
