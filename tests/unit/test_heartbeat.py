"""When leases are renewed, and when not any more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tenure.rules.job import Beat
from tenure.rules.limits import LONG_AGO
from tenure.worker.environment import Environment
from tenure.worker.leases import NO_TASK, LeasedJob, LeasedJobs, Stop, WorkerLease
from tenure.worker.settings import WorkerSettings
from tenure.worker.stopping.heartbeat import CANCEL_SECONDS, CLAIMING_SECONDS, Heartbeat


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

    def look(self) -> float:
        """So there is nothing to look at."""
        return math.inf


def test_a_lease_that_was_given_up_is_not_renewed_while_the_event_loop_is_blocked() -> None:
    leased_jobs, store, environment = LeasedJobs(), Renewals(), At()
    leased_jobs.leases = {
        1: WorkerLease(1, 30.0, 5.0, {}, LONG_AGO),
        2: WorkerLease(2, 30.0, 50.0, {}, LONG_AGO),
    }
    timekeeper = Timekeeper()
    heartbeat = Heartbeat(
        cast(Any, store), "me", WorkerSettings(queues={"default": 0}), environment,
        leased_jobs=leased_jobs, timekeeper=cast(Any, timekeeper),
        loop_watch=cast(Any, timekeeper), info=cast(Any, None),
    )  # fmt: skip
    environment.seconds = 10.0
    heartbeat.give_up_expired()
    heartbeat.give_up_expired()
    assert timekeeper.lost == [1], "told once; the loop has not come to drop it yet"
    heartbeat.beat()
    assert store.leases == [2]
    assert leased_jobs.leases[1].safe_until == 5.0


class Wake:
    """An event whose `wait` lets the time pass, until the last rest is over."""

    def __init__(self, environment: At, most: int) -> None:
        self.rests: list[float] = []
        self._environment = environment
        self._most = most
        self.heartbeat: Heartbeat | None = None

    def set(self) -> None:
        """The time passes anyway."""

    def clear(self) -> None:
        """It is never set."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert self.heartbeat is not None
        self.rests.append(round(timeout, 6))
        self._environment.seconds += timeout
        if len(self.rests) >= self._most:
            self.heartbeat._stopping = True
        return False


def made(store: object, environment: At, leased_jobs: LeasedJobs, rests: int) -> tuple[Any, Wake]:
    """A heartbeat that ends after so many rests."""
    wake = Wake(environment, rests)
    environment.event = lambda: cast(Any, wake)  # type: ignore[method-assign]
    wake.heartbeat = Heartbeat(
        cast(Any, store), "me", WorkerSettings(queues={"default": 0}), environment,
        leased_jobs=leased_jobs, timekeeper=cast(Any, Timekeeper()),
        loop_watch=cast(Any, Timekeeper()), info=cast(Any, lambda: None),
    )  # fmt: skip
    return wake.heartbeat, wake


def with_a_lease() -> LeasedJobs:
    leased_jobs = LeasedJobs()
    leased_jobs.leases = {1: WorkerLease(1, 30.0, 1000.0, {7: cast(Any, Reporting())}, LONG_AGO)}
    return leased_jobs


class Reporting:
    """A leased job."""

    waits = None

    started_at = None
    progress: tuple[float | None, str | None] | None = None
    notes: None = None
    notes_sent: None = None
    job = "the job"


def test_a_beat_that_took_long_is_followed_at_once() -> None:
    """Leases that were claimed meanwhile have waited for it, and their time runs from the claim."""
    environment, took = At(), iter([0.0, 4.0, 25.0, 0.0])

    class Slow(Renewals):
        def extend(self, worker: str, leases: Mapping[int, Sequence[int]], **more: Any) -> Beat:
            environment.seconds += next(took)
            return super().extend(worker, leases, **more)

    store = Slow()
    heartbeat, wake = made(store, environment, with_a_lease(), rests=3)
    heartbeat._run()
    assert WorkerSettings(queues={"default": 0}).heartbeat_seconds == 10.0
    assert wake.rests == [10.0, 6.0, 10.0]
    assert store.leases == [1, 1, 1, 1], "the third one took long: no rest before the fourth"


class Reports(Renewals):
    """A store that notes when progress came, and which handler reports again meanwhile."""

    def __init__(self, environment: At, leased: Reporting, heartbeat: list[Heartbeat]) -> None:
        super().__init__()
        self.at: list[float] = []
        self._environment, self._leased, self._heartbeat = environment, leased, heartbeat

    def report_progress(self, worker: str, reports: Sequence[object]) -> None:
        assert worker == "me"
        assert len(reports) == 1
        self.at.append(self._environment.seconds)
        self._leased.progress = (0.5, f"again after {len(self.at)}")
        self._heartbeat[0].progress_reported()


def test_progress_is_sent_once_a_second_however_often_it_is_reported() -> None:
    environment, leased_jobs = At(), with_a_lease()
    leased = cast(Reporting, leased_jobs.leases[1].jobs[7])
    leased.progress = (0.1, "first")
    hearts: list[Heartbeat] = []
    store = Reports(environment, leased, hearts)
    heartbeat, _ = made(store, environment, leased_jobs, rests=5)
    hearts.append(heartbeat)
    heartbeat._run()
    assert store.at == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert store.leases == [1], "no lease was renewed for that"


def test_a_worker_that_hears_of_no_report_and_no_cancel_does_nothing_between_heartbeats() -> None:
    environment = At()
    heartbeat, wake = made(Renewals(), environment, with_a_lease(), rests=3)
    heartbeat._run()
    assert wake.rests == [10.0, 10.0, 10.0]


def test_a_cancel_request_renews_the_leases_of_the_worker_that_has_the_job() -> None:
    environment, store = At(), Renewals()
    heartbeat, _ = made(store, environment, with_a_lease(), rests=1)
    heartbeat._beat_at = 100.0
    heartbeat.cancel_requested({6, 8})
    heartbeat._run()
    assert store.leases == [], "it concerns other workers"
    heartbeat._stopping = False
    heartbeat.cancel_requested({6, 7})
    heartbeat._run()
    assert store.leases == [1]


def test_a_cancel_request_that_comes_before_the_claimed_job_is_looked_at_again() -> None:
    environment, store, leased_jobs = At(), Renewals(), LeasedJobs()
    heartbeat, wake = made(store, environment, leased_jobs, rests=2)
    heartbeat._beat_at = 100.0
    heartbeat.cancel_requested({7})
    heartbeat._part_of_beat()
    leased_jobs.leases = with_a_lease().leases
    heartbeat._run()
    assert store.leases == [1]
    assert wake.rests[0] == CLAIMING_SECONDS


def test_many_cancel_requests_cost_few_heartbeats() -> None:
    environment, store = At(), Renewals()
    heartbeat, wake = made(store, environment, with_a_lease(), rests=1)
    heartbeat._beat_at = 100.0
    for _ in range(1000):
        heartbeat.cancel_requested({7})
    heartbeat._part_of_beat()
    heartbeat.cancel_requested({7})
    heartbeat._run()
    assert wake.rests == [CANCEL_SECONDS]
    assert store.leases == [1]


def test_the_handlers_of_an_expired_lease_are_told_before_the_event_loop_runs() -> None:
    """The loop may be blocked by the very handler that asks."""
    leased_jobs, environment = LeasedJobs(), At()
    job = LeasedJob(cast(Any, None), NO_TASK, 0.0)
    stopping = job.stopping()
    leased_jobs.leases = {1: WorkerLease(1, 30.0, 5.0, {7: job}, LONG_AGO)}
    leased_jobs.heartbeats_fail = True
    environment.seconds = 10.0
    assert leased_jobs.give_up_expired(environment.monotonic()) == [1]
    assert (bool(job.lost), bool(stopping), job.stop) == (True, True, Stop.EXPIRED)

    interrupts: list[int] = []
    job.started_at, job.stop_now = 1.0, lambda: interrupts.append(1)
    job.ask_to_stop(Stop.EXPIRED, 10.0)  # the loop runs again, and interrupts the handler, once
    job.ask_to_stop(Stop.EXPIRED, 11.0)
    assert interrupts == [1]


class Broken(Renewals):
    def extend(self, *_: object, **__: Any) -> Beat:
        raise RuntimeError("a bug")


def test_any_error_of_a_heartbeat_ends_the_claims_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leased_jobs, environment = LeasedJobs(), At()
    leased_jobs.leases = {1: WorkerLease(1, 30.0, 1000.0, {}, LONG_AGO)}
    heartbeat = Heartbeat(
        cast(Any, Broken()), "me", WorkerSettings(queues={"default": 0}), environment,
        leased_jobs=leased_jobs, timekeeper=cast(Any, Timekeeper()),
        loop_watch=cast(Any, Timekeeper()), info=cast(Any, None),
    )  # fmt: skip
    assert heartbeat.works()
    for _ in range(3):
        assert not heartbeat._sent(heartbeat._whole_beat)
    assert not heartbeat.works()
    assert len(caplog.records) == 1
