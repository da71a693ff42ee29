"""When leases are renewed, and when not any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tenure.rules.job import Beat
from tenure.worker.environment import World
from tenure.worker.leases import Held, HeldLease
from tenure.worker.settings import WorkerSettings
from tenure.worker.settling.heartbeat import Heartbeat


class At(World):
    """A world whose time is set by hand."""

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


def test_a_lease_that_was_given_up_is_not_renewed_while_the_event_loop_is_blocked() -> None:
    held, store, world = Held(), Renewals(), At()
    lost: list[Sequence[int]] = []
    held.leases = {1: HeldLease(1, 30.0, 5.0, {}), 2: HeldLease(2, 30.0, 50.0, {})}
    heartbeat = Heartbeat(
        cast(Any, store), "me", held, WorkerSettings(queues={"default": 0}), world,
        tell=lambda leases, _: lost.append(leases), announce=lambda: None, beside=lambda: None,
    )  # fmt: skip
    world.seconds = 10.0
    heartbeat.give_up_expired()
    heartbeat.give_up_expired()
    assert lost == [[1]], "told once; the loop has not come to drop it yet"
    heartbeat.beat()
    assert store.leases == [2]
    assert held.leases[1].safe_until == 5.0


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
    world, rests, took = At(), Rests(4), iter([0.0, 4.0, 25.0])
    world.event = lambda: cast(Any, rests)  # type: ignore[method-assign]

    class Slow(Renewals):
        def extend(self, worker: str, leases: Mapping[int, Sequence[int]], **more: Any) -> Beat:
            world.seconds += next(took)
            return super().extend(worker, leases, **more)

    held = Held()
    held.leases = {1: HeldLease(1, 30.0, 1000.0, {})}
    settings = WorkerSettings(queues={"default": 0})
    heartbeat = Heartbeat(
        cast(Any, Slow()), "me", held, settings, world,
        tell=lambda *_: None, announce=lambda: None, beside=lambda: None,
    )  # fmt: skip
    heartbeat._run()
    assert settings.heartbeat_seconds == 10.0
    assert rests.seconds == [0.0, 10.0, 6.0, 0.0]
