"""When leases are renewed, and when not any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tenure.rules.job import Beat
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJobs, WorkerLease
from tenure.worker.settings import WorkerSettings
from tenure.worker.settling.heartbeat import Heartbeat


class At(Environment):
    """An environment whose time is set by hand."""

    seconds = 0.0

    def __init__(self) -> None:
        self.monotonic = lambda: self.seconds


class Renewals:
    """A store that notes which leases were renewed."""

    def __init__(self) -> None:
        self.leases: list[int] = []

    def extend(self, worker: str, leases: Mapping[int, Sequence[int]], **_: Any) -> Beat:
        assert worker == "me"
        self.leases += leases
        return Beat((), ())

    def announce(self, info: object) -> None:
        """Not of interest here."""


class Timekeeper:
    """Notes the leases whose jobs were to be stopped."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def stop_soon(self, lost: Sequence[int], cancelled: object = ()) -> None:  # noqa: ARG002
        self.lost += lost

    def time_out_if_blocked(self, store: object) -> None:
        """The loop is not blocked."""


def test_a_lease_that_was_given_up_is_not_renewed_while_the_event_loop_is_blocked() -> None:
    leased_jobs, store, environment = LeasedJobs(), Renewals(), At()
    leased_jobs.leases = {1: WorkerLease(1, 30.0, 5.0, {}), 2: WorkerLease(2, 30.0, 50.0, {})}
    timekeeper = Timekeeper()
    heartbeat = Heartbeat(
        cast(Any, store), "me", WorkerSettings(queues={"default": 0}), environment,
        leased_jobs=leased_jobs, timekeeper=cast(Any, timekeeper), info=cast(Any, None),
    )  # fmt: skip
    environment.seconds = 10.0
    heartbeat.give_up_expired()
    heartbeat.give_up_expired()
    assert timekeeper.lost == [1], "told once; the loop has not come to drop it yet"
    heartbeat.beat()
    assert store.leases == [2]
    assert leased_jobs.leases[1].safe_until == 5.0


class Rests:
    """An event that nobody sets; it notes how long somebody waited, and ends all after so often."""

    def __init__(self, most: int) -> None:
        self.seconds: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return len(self.seconds) == self._most


def test_a_beat_that_took_long_is_followed_at_once() -> None:
    """Leases that were claimed meanwhile have waited for it, and their time runs from the claim."""
    environment, rests, took = At(), Rests(4), iter([0.0, 4.0, 25.0])
    environment.event = lambda: cast(Any, rests)  # type: ignore[method-assign]

    class Slow(Renewals):
        def extend(self, worker: str, leases: Mapping[int, Sequence[int]], **more: Any) -> Beat:
            environment.seconds += next(took)
            return super().extend(worker, leases, **more)

    leased_jobs = LeasedJobs()
    leased_jobs.leases = {1: WorkerLease(1, 30.0, 1000.0, {})}
    settings = WorkerSettings(queues={"default": 0})
    heartbeat = Heartbeat(
        cast(Any, Slow()), "me", settings, environment, leased_jobs=leased_jobs,
        timekeeper=cast(Any, Timekeeper()), info=cast(Any, lambda: None),
    )  # fmt: skip
    heartbeat._run()
    assert settings.heartbeat_seconds == 10.0
    assert rests.seconds == [0.0, 10.0, 6.0, 0.0]
