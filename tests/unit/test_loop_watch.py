"""Which handler blocks the event loop, and for how long: by a clock that is set by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.worker.environment import Environment
from tenure.worker.leases import Watchlist
from tenure.worker.stopping import loop_watch
from tenure.worker.stopping.loop_watch import BLOCKED_SECONDS, LOOKS, LoopWatch

PAUSE = BLOCKED_SECONDS / LOOKS


class At(Environment):
    """An environment whose time is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.monotonic = lambda: self.seconds


class Watched:
    """A loop that last ticked at 0, and the job that is on it at each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job_at: Callable[[float], Any]) -> None:
        self.environment = At()
        self.watchlist = Watchlist(0.0)
        self.reports: list[tuple[Any, int, float]] = []
        """The job, the seconds that the line names, and when it was written."""
        reporter = SimpleNamespace(say=self._say)
        self.watch = LoopWatch("w", self.environment, self.watchlist, cast(Any, reporter))
        monkeypatch.setattr(loop_watch, "_job_on", lambda _: job_at(self.environment.seconds))

    def _say(self, _level: int, job: Any, what: str) -> None:
        [seconds] = re.findall(r"^has blocked the event loop for (\d+) s", what)
        self.reports.append((job, int(seconds), self.environment.seconds))

    def run(self, until: float) -> None:
        """Look whenever it wants to."""
        while self.environment.seconds < until:
            self.environment.seconds = self.watch.look()


def job(number: int, started_at: float) -> Any:
    return SimpleNamespace(job=number, started_at=started_at)


def test_each_of_many_handlers_in_a_row_is_told_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [job(n, 5.0 * n) for n in range(8)]
    watched = Watched(monkeypatch, lambda now: jobs[min(7, int(now // 5))])
    watched.watchlist.in_use.set()
    watched.run(39.5)
    assert [(n, said) for n, said, _ in watched.reports] == [
        (n, seconds) for n in range(8) for seconds in (2, 4)
    ]


def test_handlers_that_go_on_in_a_row_are_told_their_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When they started says nothing: they have waited since."""
    jobs = [job(n, -100.0) for n in range(8)]
    watched = Watched(monkeypatch, lambda now: jobs[min(7, int(now // 3))])
    watched.watchlist.in_use.set()
    watched.run(23.0)
    assert [(n, said) for n, said, _ in watched.reports] == [(n, 2) for n in range(8)]
    for n, _, at in watched.reports:
        assert 3 * n + BLOCKED_SECONDS - PAUSE <= at <= 3 * n + BLOCKED_SECONDS + PAUSE


def test_many_short_handlers_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(n, -100.0) for n in range(40)]
    watched = Watched(monkeypatch, lambda now: jobs[int(now)])
    watched.watchlist.in_use.set()
    watched.run(30.0)
    assert watched.reports == []


@pytest.mark.parametrize("begins", [0.0, 0.1, 1.0, 1.9, 7.3])
def test_a_block_is_reported_in_time_whenever_it_begins(
    monkeypatch: pytest.MonkeyPatch, begins: float
) -> None:
    watched = Watched(monkeypatch, lambda _: job(1, begins))
    blocks = job(1, begins)
    monkeypatch.setattr(loop_watch, "_job_on", lambda _: blocks)
    looks: list[float] = []
    while not watched.reports:
        looks.append(watched.environment.seconds)
        if watched.environment.seconds >= begins and not watched.watchlist.in_use.is_set():
            watched.watchlist.wake(begins)
        watched.environment.seconds = watched.watch.look()
    [(_, said, at)] = watched.reports
    assert said == 2
    assert at == pytest.approx(begins + BLOCKED_SECONDS)
    assert len(looks) < 20
