"""Permits at gates as a worker keeps to them: no more of a line start than it has places for."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from tenure import Tenure
from tenure.rules.job import Claimed
from tenure.rules.permits import Permits
from tenure.tasks import Kind
from tenure.worker.claiming.gates import AtGates
from tenure.worker.leases import Holding

SLOTS: dict[Kind, int] = {"async": 10, "thread": 2, "process": 1}

app = Tenure("sqlite://")


@app.task(name="async")
async def send() -> None:
    """A coroutine."""


@app.task(name="thread")
def send_blocking() -> None:
    """A function."""


class Desk:
    """Lines, and jobs that come and end."""

    def __init__(self) -> None:
        self.waiting: Counter[Kind] = Counter()
        self.lines = AtGates(SLOTS.__getitem__, self.waiting)
        self._last = 0

    def come(self, count: int, most: int, key: str = "", task: str = "async") -> list[Holding]:
        """So many jobs of one line come by a claim. Answers those that may run."""
        found = app.find(task)
        assert found is not None
        new = []
        for _ in range(count):
            self._last += 1
            job = Claimed(
                self._last, 1, 1, task, "{}", "default", 0, "", 0, 5, 0,
                datetime(2026, 3, 1, tzinfo=UTC), None, None, None, 32,
            )  # fmt: skip
            new.append(Holding(job, found, float(self._last)))
        ids = frozenset(holding.job.id for holding in new)
        return self.lines.admit(new, [Permits("g", key, most, ids)])

    def end(self, holding: Holding) -> list[Holding]:
        """One ends. Answers those that may run by this."""
        line = holding.line
        assert line is not None
        holding.line = None
        line.running -= 1
        return self.lines.freed(line)


def test_no_more_than_its_places_are_let_go() -> None:
    desk = Desk()
    [first, second] = desk.come(5, most=2)
    assert desk.waiting["async"] == 3
    assert desk.come(2, most=2) == []
    [third] = desk.end(first)
    assert third.job.id == 3
    assert [holding.job.id for holding in desk.end(second)] == [4]


def test_lines_do_not_share_places() -> None:
    desk = Desk()
    assert len(desk.come(3, most=2, key="a")) == len(desk.come(3, most=2, key="b")) == 2


def test_more_places_let_more_go() -> None:
    desk = Desk()
    assert len(desk.come(6, most=1)) == 1
    assert len(desk.come(1, most=4)) == 3
    assert desk.waiting["async"] == 3


def test_fewer_places_count_when_jobs_end() -> None:
    desk = Desk()
    running = desk.come(6, most=4)
    assert desk.come(1, most=1) == []
    assert [desk.end(holding) for holding in running[:3]] == [[], [], []]
    assert len(desk.end(running[3])) == 1


def test_places_for_all_slots_need_no_line() -> None:
    """The slots are limit enough: the executor has the jobs that wait."""
    desk = Desk()
    assert len(desk.come(50, most=10)) == 50
    assert desk.come(1, most=10, task="thread") == []  # 12 slots in all


def test_what_waits_goes_back_and_is_forgotten() -> None:
    desk = Desk()
    [first] = desk.come(4, most=1)
    assert len(desk.lines.take_back_waiting(since=3.0)) == 2
    assert len(desk.lines.take_back_waiting()) == 1
    assert desk.waiting["async"] == 0
    assert desk.end(first) == []
    assert desk.lines._lines == {}


def test_an_answer_that_comes_too_late_takes_places_away_and_gives_none() -> None:
    """What it has given is gone; what it has taken, others may have by now."""
    desk = Desk()
    running = desk.come(6, most=2)
    desk.lines.lower(
        [Permits("g", "", 1, frozenset({99})), Permits("g", "unknown", 5, frozenset())]
    )
    assert desk.end(running[0]) == []
    assert len(desk.end(running[1])) == 1
    desk.lines.lower([Permits("g", "", 4, frozenset({99}))])
    assert desk.waiting["async"] == 3
    assert len(desk.come(1, most=2)) == 1
