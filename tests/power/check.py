"""Is everything there that somebody was told of? Asked of the files that a power cut has left."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tenure.rules import lifecycle
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob, State
from tenure.store import LANDED, Store, open_store
from tenure.store.sqlite import session as engine
from tests.power.disk import Told
from tests.power.play import GATE, QUEUES
from tests.support.audit import check as check_rows
from tests.support.plain import Plain
from tests.support.stores import START

LATER = START + timedelta(days=1)
ROUNDS = 200


@dataclass
class Promises:
    """What the store has told its callers so far."""

    asked: set[int] = field(default_factory=set)
    """The numbers of jobs that somebody began to enqueue."""
    enqueued: dict[int, int | None] = field(default_factory=dict)
    """Job id -> its number."""
    claimed: list[tuple[int, int]] = field(default_factory=list)
    settled: dict[int, str] = field(default_factory=dict)
    stepped: list[tuple[int, str]] = field(default_factory=list)

    def hear(self, told: Iterable[Told]) -> None:
        """More was told."""
        for what, details in told:
            match what:
                case "asked":
                    self.asked.update(details[0])
                case "enqueued":
                    self.enqueued.update({id: number for number, id in details[0]})
                case "flowed" | "fired":
                    self.enqueued.update(dict.fromkeys(details[0]))
                case "claimed":
                    self.claimed += details[0]
                case "settled":
                    self.settled[details[0]] = details[1]
                case "stepped":
                    self.stepped.append(details)
                case _:
                    raise AssertionError(what)


def put(files: dict[str, bytes], folder: Path, chance: random.Random) -> Path:
    """Lay the files of an image into an empty folder; the shared memory may be there as garbage."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if chance.random() < 0.3:
        (folder / "jobs.db-shm").write_bytes(chance.randbytes(32768))
    return folder / "jobs.db"


def violations(
    path: Path, promises: Promises, *, kept: bool = True, to_the_end: bool = False
) -> list[str]:
    """What is wrong with an image; nothing, one hopes.

    `kept`: what was told must be there. `to_the_end`: everything is done that is left.
    """
    url = f"sqlite:///{path}?synchronous=NORMAL"  # nobody cuts the power again: it need not wait
    try:
        with patch.object(engine, "boot_id", lambda: "the boot after the cut"):
            store = open_store(url)
        try:
            with Plain(url) as plain:
                integrity = plain.rows("pragma integrity_check")
                if integrity != [("ok",)]:
                    return [f"integrity: {integrity[:3]}"]
                check_rows(plain)
                found = [*_ghosts(plain, promises)]
                found += [*_missing(plain, promises)] if kept else []
                if not found:
                    _go_on(store, to_the_end=to_the_end)
                    check_rows(plain)
                    found = [*_missing(plain, promises)] if kept and to_the_end else []
        finally:
            store.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not happen
        return [f"{type(error).__name__}: {error}"]
    return found


def _ghosts(plain: Plain, promises: Promises) -> Iterator[str]:
    for (args,) in plain.rows(
        "select args from tenure.job union all select args from tenure.history"
    ):
        number = json.loads(args).get("n")
        if number is not None and number not in promises.asked:
            yield f"number {number} was never enqueued"


def _missing(plain: Plain, promises: Promises) -> Iterator[str]:
    live: dict[int, Any] = {
        id: (token, json.loads(args).get("n"))
        for id, token, args in plain.rows("select id, token, args from tenure.job")
    }
    final: dict[int, Any] = {
        id: (token, json.loads(args).get("n"), state)
        for id, token, args, state in plain.rows(
            "select id, token, args, cast(state as text) from tenure.history"
        )
    }
    on_lease = {
        (id, token)
        for (jobs,) in plain.rows("select jobs from tenure.lease")
        for id, token in json.loads(jobs)
    }
    steps = set(plain.rows("select job_id, name from tenure.step"))
    for id, number in promises.enqueued.items():
        if id not in live and id not in final:
            yield f"job {id} is lost"
        elif number is not None and (live.get(id) or final[id])[1] != number:
            yield f"job {id} is another one"
    for id, state in promises.settled.items():
        if id not in final or final[id][2] != state:
            yield f"job {id} was {state}, and is {final.get(id) or live.get(id)}"
    for id, token in promises.claimed:
        now = (live.get(id) or final.get(id) or (0,))[0]
        if now < token or (id in live and now == token and (id, token) not in on_lease):
            yield f"the claim of job {id} with token {token} is undone"
    for id, name in promises.stepped:
        if id in live and (id, name) not in steps:
            yield f"{name} of job {id} is lost"


def _go_on(store: Store, *, to_the_end: bool) -> None:
    """The machine is up again: leases of the last boot are swept, and what is in line is done."""
    [added] = store.enqueue([NewJob(task="app.after")], now=LATER)
    store.declare_gates({GATE: Limits(max_running=1000)}, now=LATER)
    for _ in range(ROUNDS if to_the_end else 1):
        store.sweep(most=1000, now=LATER)
        store.promote(now=LATER)
        for lease in store.claim("after", dict.fromkeys(QUEUES, 1000), now=LATER):
            ends = [lifecycle.succeed(held) for held in lease.jobs]
            answers = store.settle("after", ends, done_leases=[lease.id], now=LATER)
            assert answers == [LANDED] * len(ends)
        if to_the_end and not store.count_live(now=LATER):
            break
    if to_the_end:
        assert store.count_live(now=LATER) == []
    assert store.get(added.id).state is State.SUCCEEDED
