"""What this worker holds: jobs on leases, from the claim until their settlement has landed."""

import threading
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from tenure.rules.job import Claimed, Feature, Lease
from tenure.running import Flag
from tenure.tasks import Task

if TYPE_CHECKING:
    from tenure.worker.claiming.gates import Line

_GATE = Feature.GATE
_ending = threading.Lock()


class Stop(Enum):
    """Why an attempt is stopped from outside."""

    TIMEOUT = auto()
    CANCELLED = auto()
    LOST = auto()
    SHUTDOWN = auto()


class Holding:
    """One job in this worker's hands. Changed on the event loop, except where it says otherwise."""

    __slots__ = (
        "asked_at",
        "cancelled",
        "completed",
        "done",
        "job",
        "line",
        "lost",
        "over",
        "progress",
        "started_at",
        "stop",
        "stop_now",
        "taken_at",
        "task",
    )  # fmt: skip

    def __init__(self, job: Claimed, task: Task[..., Any], taken_at: float) -> None:
        self.job = job
        self.task = task
        self.taken_at = taken_at
        self.line: Line | None = None
        """Where it has a place at a gate, as long as it has."""
        self.started_at: float | None = None
        """Set where the handler runs, when it starts."""
        self.stop: Stop | None = None
        self.stop_now: Callable[[], object] | None = None
        """Set by the executor: makes the handler stop as far as that is possible."""
        self.asked_at = 0.0
        self.cancelled = Flag()
        self.lost = Flag()
        self.completed = False
        """Set where the handler runs: it has completed its job in a transaction of its own."""
        self.progress: tuple[float | None, str | None] | None = None
        """Set where the handler runs, taken by the heartbeat."""
        self.done = False
        """Somebody writes how the attempt ended: the settler, or the heartbeat's thread."""
        self.over = False
        """The handler has ended and its slot is free."""

    def take_end(self) -> bool:
        """May the caller write how the attempt ended? The first who asks: the loop or a thread."""
        with _ending:
            taken, self.done = self.done, True
        return not taken

    def asked_to(self) -> Stop | None:
        """Why it must stop, if it must: looked at anew, because it changes at any time."""
        return self.stop

    def ask_to_stop(self, why: Stop, now: float) -> None:
        """Tell the attempt to stop. The first reason counts; but a timeout comes on top of a
        cancellation, which a handler may ignore for ever, and a lost lease wins."""
        if why is Stop.CANCELLED:
            self.cancelled.set()
        if why is Stop.LOST:
            self.lost.set()
        if self.done or self.stop is why:
            return
        late = why is Stop.TIMEOUT and self.stop is Stop.CANCELLED
        if self.stop is None or late or why is Stop.LOST:
            self.stop = why
            self.asked_at = now
            if self.started_at is not None and self.stop_now is not None:
                self.stop_now()


class HeldLease:
    """A lease, when it may be gone by our own clock, and its jobs that are not settled yet."""

    __slots__ = ("given_up", "holdings", "id", "lease_seconds", "safe_until")

    def __init__(
        self, id: int, lease_seconds: float, safe_until: float, holdings: dict[int, Holding]
    ) -> None:
        self.id = id
        self.lease_seconds = lease_seconds
        self.safe_until = safe_until
        self.holdings = holdings
        self.given_up = False
        """It may be gone: its jobs are being stopped, and others may have them."""


class Held:
    """Everything that this worker holds. Changed on the event loop only; read from anywhere."""

    def __init__(self) -> None:
        self.leases: dict[int, HeldLease] = {}
        self.gated: set[int] = set()
        """Leases of jobs that have passed a gate: what ends there may let others pass."""

    def add(
        self, lease: Lease, holdings: Iterable[Holding], lease_seconds: float, safe_until: float
    ) -> None:
        """A claim was granted. `safe_until` is counted from before the claim was sent."""
        jobs = {holding.job.id: holding for holding in holdings}
        self.leases[lease.id] = HeldLease(lease.id, lease_seconds, safe_until, jobs)
        if lease.jobs[0].features & _GATE:  # they do not share leases with others
            self.gated.add(lease.id)

    def settled(self, holdings: Iterable[Holding]) -> None:
        """The ends of these attempts have been answered."""
        leases = self.leases
        for holding in holdings:
            job = holding.job
            lease = leases.get(job.lease_id)
            if lease is not None:
                lease.holdings.pop(job.id, None)
                if not lease.holdings:
                    del leases[lease.id]
                    self.gated.discard(lease.id)

    def has(self, holding: Holding) -> bool:
        """Is this job still ours, as far as we know?"""
        lease = self.leases.get(holding.job.lease_id)
        return lease is not None and holding.job.id in lease.holdings

    def drop(self, lease_id: int) -> list[Holding]:
        """A lease is gone. Answers the jobs that were still on it."""
        lease = self.leases.pop(lease_id, None)
        self.gated.discard(lease_id)
        return list(lease.holdings.values()) if lease else []

    def all(self) -> list[Holding]:
        """Every job in hand, a copy."""
        return [h for lease in list(self.leases.values()) for h in list(lease.holdings.values())]
