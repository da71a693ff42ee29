"""Histories by hand, true or false, for the tests of the checker.

All clocks are one here: a step of the story takes a second, its answer comes half a second later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.testing.recorder import Answered, Granted, Key, Refused, Sent
from tests.support.history import (
    Call,
    EventRow,
    Final,
    JobRow,
    Records,
    Run,
    TickRow,
    WorkflowRow,
)

LEASE_SECONDS = 30.0
PIDS = {"w1": 101, "w2": 102}


@dataclass
class Forger:
    """Writes down what never happened."""

    records: Records = field(default_factory=Records)
    final: Final = field(default_factory=Final)
    now: float = 1000.0

    def enqueue(
        self, *ids: int, created: bool = True, key: Key | None = None, answered: bool = True,
        on: bool = False, tenant: str = "", later: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """A client enqueues jobs, some of them for a later time."""
        keys = [key for _ in ids] if key else []
        tenants = [tenant for _ in ids] if tenant else []
        answer = Answered(n=0, enqueued=[(id, created) for id in ids]) if answered else None
        sent = Sent(
            n=0, op="enqueue", count=len(ids), keys=list(keys), on=on, tenants=tenants,
            later=list(later),
        )  # fmt: skip
        self._call(1, sent, answer)

    def claim(
        self, id: int, token: int = 1, worker: str = "w1", lease: int | None = None, *,
        answered: bool = True,
    ) -> None:  # fmt: skip
        """A worker is handed a job."""
        lease = 100 * id + token if lease is None else lease
        at = self.now + 0.25
        granted = Granted(lease, at, at + LEASE_SECONDS, [(id, token)])
        sent = Sent(n=0, op="claim", worker=worker, lease_seconds=LEASE_SECONDS)
        answer = Answered(n=0, granted=[granted]) if answered else None
        self._call(PIDS[worker], sent, answer)

    def claim_block(self, *ids: int, worker: str = "w1") -> None:
        """A worker is handed several jobs on one lease."""
        at = self.now + 0.25
        granted = Granted(100, at, at + LEASE_SECONDS, [(id, 1) for id in ids])
        sent = Sent(n=0, op="claim", worker=worker, lease_seconds=LEASE_SECONDS)
        self._call(PIDS[worker], sent, Answered(n=0, granted=[granted]))

    def extend(self, lease: int, worker: str = "w1", *, lost: bool = False) -> None:
        """A worker renews a lease."""
        sent = Sent(n=0, op="extend", worker=worker, leases=[lease], lease_seconds=LEASE_SECONDS)
        self._call(PIDS[worker], sent, Answered(n=0, lost=[lease] if lost else []))

    def run(
        self, id: int, token: int = 1, worker: str = "w1", *, seconds: float = 0.5, tenant: str = ""
    ) -> None:
        """A handler runs."""
        self.now += 1
        self.records.runs.append(
            Run(PIDS[worker], id, token, worker, self.now, self.now + seconds, tenant=tenant)
        )

    def settle(
        self, id: int, token: int = 1, worker: str = "w1", *, outcome: str = "succeed",
        answer: str | None = "landed", on: bool = False,
    ) -> None:  # fmt: skip
        """A worker ends an attempt; `unknown` and None: it never learns what came of it."""
        sent = Sent(
            n=0, op="settle", worker=worker, jobs=[(id, token)], outcomes=[outcome], on=on
        )  # fmt: skip
        answered: Answered | Refused | None = None
        if answer == "unknown":
            answered = Refused(n=0, error="OutcomeUnknown", unknown=True)
        elif answer is not None:
            answered = Answered(n=0, answers=[answer])
        self._call(PIDS[worker], sent, answered)

    def write(self, op: str, id: int, token: int, worker: str = "w1", *, answer: str) -> None:
        """A worker reports progress or saves a checkpoint."""
        sent = Sent(n=0, op=op, worker=worker, jobs=[(id, token)])
        self._call(PIDS[worker], sent, Answered(n=0, answers=[answer]))

    def event(self, id: int, token: int, kind: str, worker: str | None = "w1", **more: Any) -> None:
        """The database notes what happened to a job."""
        self.now += 1
        self.final.events.append(
            EventRow(id=id, token=token, kind=kind, at=self.now, worker=worker, detail=more)
        )

    def row(self, id: int, token: int = 1, state: str = "succeeded", **more: Any) -> None:
        """What the database holds of a job in the end."""
        self.now += 1
        values: dict[str, Any] = {
            "attempts": 1, "max_attempts": 5, "crashes": 0, "created_at": 1000.0,
            "finished_at": None if state == "live" else self.now,
        }  # fmt: skip
        self.final.jobs.append(JobRow(id=id, token=token, state=state, **values | more))

    def flow(self, *ids: int, after: Sequence[tuple[int, int]] = (), **more: Any) -> None:
        """A workflow of these jobs, of which some wait for others; it has ended."""
        self.now += 1
        values: dict[str, Any] = {"ended_at": self.now, "outcome": "succeeded"}
        nodes = dict.fromkeys(ids, "all_succeeded")
        self.final.workflows.append(WorkflowRow(id=9, nodes=nodes, **values | more))
        self.final.parents += after

    def ticked(self, id: int, at: float, *, schedule: str = "beat", tenant: str = "") -> None:
        """A schedule has fired for this tick, unheard, and its job has run."""
        self.final.ticks.append(TickRow(schedule, at, id, tenant=tenant))
        self.claim(id)
        self.run(id, tenant=tenant)
        self.settle(id)
        self.row(id, fired=(schedule, at), tenant=tenant)

    def operate(self, op: str, *, said: str | None = "True") -> None:
        """Somebody does something to a workflow; None: it is not answered."""
        answer = None if said is None else Answered(n=0, said=said)
        self._call(1, Sent(n=0, op=op), answer)

    def replay(self, id: int, token: int) -> None:
        """An operator begins a job anew."""
        self.event(id, token, "replayed", None)
        sent = Sent(n=0, op="replay", jobs=[(id, 0)])
        sent.mono = sent.wall = self.now - 0.25
        answer = Answered(n=0, said="True")
        answer.mono = answer.wall = self.now + 0.25
        self.records.calls.append(Call(1, sent, answer))

    def wait(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.now += seconds

    def _call(self, pid: int, sent: Sent, answer: Answered | Refused | None) -> None:
        self.now += 1
        sent.mono = sent.wall = self.now
        if answer is not None:
            answer.mono = answer.wall = self.now + 0.5
        self.records.calls.append(Call(pid, sent, answer))

    # --- whole stories ---------------------------------------------------------------------------

    def happy(self, id: int, **more: Any) -> None:
        """A job that is enqueued, claimed, run and settled."""
        self.enqueue(id)
        self.ends_well(id, **more)

    def ends_well(self, id: int, **more: Any) -> None:
        """What follows an enqueue: `more` is what its row says besides."""
        self.claim(id)
        self.run(id)
        self.settle(id)
        self.row(id, **more)

    def crashed(self, id: int, *, charged: bool = True) -> None:
        """A job whose first worker died, up to the claim of the second."""
        self.enqueue(id)
        self.claim(id)
        self.run(id)
        self.wait(LEASE_SECONDS - 1.5)
        self.event(id, 1, "crashed", charged=charged)
        self.claim(id, 2, "w2")

    def recovered(self, id: int) -> None:
        """The same, with a good end."""
        self.crashed(id)
        self.run(id, 2, "w2")
        self.settle(id, 2, "w2")
        self.row(id, 2, attempts=2, crashes=1)
