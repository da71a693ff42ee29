"""Permits at gates: a worker starts no more jobs of a line than it has permits."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from tenure import Tenure
from tenure.rules.claim import Claimed, Kind, Permits
from tenure.worker.claiming.gates import GatePermits
from tenure.worker.leases import LeasedJob

SLOTS: dict[Kind, int] = {"async": 10, "thread": 2, "process": 1}

app = Tenure("sqlite://")


@app.task(name="async")
async def send() -> None:
    """A coroutine."""


@app.task(name="thread")
def send_blocking() -> None:
    """A function."""


class Desk:
    """Permits, and jobs that come and end."""

    def __init__(self) -> None:
        self.waiting: Counter[Kind] = Counter()
        self.permits = GatePermits(SLOTS.__getitem__, self.waiting)
        self._last = 0

    def come(self, count: int, most: int, key: str = "", task: str = "async") -> list[LeasedJob]:
        """A claim brings `count` jobs of one line. Returns those that may run."""
        found = app.find(task)
        assert found is not None
        new = []
        for _ in range(count):
            self._last += 1
            job = Claimed(
                self._last, 1, 1, task, "{}", "default", 0, "", 0, 5, 0,
                datetime(2026, 3, 1, tzinfo=UTC), None, None, None, 32,
            )  # fmt: skip
            new.append(LeasedJob(job, found, float(self._last)))
        ids = frozenset(leased.job.id for leased in new)
        return self.permits.admit(new, [Permits("g", key, most, ids)])

    def end(self, leased: LeasedJob) -> list[LeasedJob]:
        """One ends. Returns those that may run now."""
        return self.permits.free(leased)


def test_no_more_jobs_run_than_there_are_permits() -> None:
    desk = Desk()
    [first, second] = desk.come(5, most=2)
    assert desk.waiting["async"] == 3
    assert desk.come(2, most=2) == []
    [third] = desk.end(first)
    assert third.job.id == 3
    assert [leased.job.id for leased in desk.end(second)] == [4]


def test_lines_do_not_share_permits() -> None:
    desk = Desk()
    assert len(desk.come(3, most=2, key="a")) == len(desk.come(3, most=2, key="b")) == 2


def test_more_permits_let_more_jobs_run() -> None:
    desk = Desk()
    assert len(desk.come(6, most=1)) == 1
    assert len(desk.come(1, most=4)) == 3
    assert desk.waiting["async"] == 3


def test_fewer_permits_count_when_jobs_end() -> None:
    desk = Desk()
    running = desk.come(6, most=4)
    assert desk.come(1, most=1) == []
    assert [desk.end(leased) for leased in running[:3]] == [[], [], []]
    assert len(desk.end(running[3])) == 1


def test_with_a_permit_for_each_slot_no_job_waits() -> None:
    """The slots are limit enough: the executor has the jobs that wait."""
    desk = Desk()
    assert len(desk.come(50, most=10)) == 50
    assert desk.come(1, most=10, task="thread") == []  # 12 slots in all


def test_waiting_jobs_are_put_back_and_forgotten() -> None:
    desk = Desk()
    [first] = desk.come(4, most=1)
    assert len(desk.permits.take_back_waiting(since=3.0)) == 2
    assert len(desk.permits.take_back_waiting()) == 1
    assert desk.waiting["async"] == 0
    assert desk.end(first) == []
    assert desk.permits._lines == {}


def test_a_claim_that_returns_too_late_takes_permits_away_and_gives_none() -> None:
    """What it has given is gone; what it has taken, others may have by now."""
    desk = Desk()
    running = desk.come(6, most=2)
    desk.permits.lower(
        [Permits("g", "", 1, frozenset({99})), Permits("g", "unknown", 5, frozenset())]
    )
    assert desk.end(running[0]) == []
    assert len(desk.end(running[1])) == 1
    desk.permits.lower([Permits("g", "", 4, frozenset({99}))])
    assert desk.waiting["async"] == 3
    assert len(desk.come(1, most=2)) == 1
