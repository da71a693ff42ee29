"""A clock that stands still, and an application that uses it."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, ParamSpec, TypeVar

from tenure.client import Client
from tenure.errors import InvalidInput
from tenure.rules.limits import check_seconds, check_time
from tenure.store import AsyncStore, Store
from tenure.store.api import Operation
from tenure.store.jobs.enqueue import enqueue
from tenure.store.proxy import AsyncStoreProxy, StoreProxy

P = ParamSpec("P")
R = TypeVar("R")

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that moves only when told to, and never back."""

    def __init__(self, now: datetime = START) -> None:
        check_time("now", now)
        self._now = now

    def __repr__(self) -> str:
        return f"<Clock {self._now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Advance the clock. Returns the new time."""
        check_seconds("seconds", seconds)
        self._now += timedelta(seconds=seconds)
        return self._now

    def advance_to(self, at: datetime) -> datetime:
        """Advance the clock to this time."""
        check_time("at", at)
        if at < self._now:
            raise InvalidInput(
                f"the clock is at {self._now.isoformat()}, and cannot go back to {at}"
            )
        self._now = at
        return at


class Trial:
    """An application under test: its stores use this clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def wrap(self, store: Store) -> Store:
        return TrialStore(store, self)

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return TrialAsyncStore(store, self)

    def after_enqueue(self) -> None:
        """Called after each enqueue. Does nothing, except in `inline`."""

    async def after_enqueue_async(self) -> None:
        """The same for async calls."""


class TrialStore(StoreProxy):
    """A store that is told the time."""

    def __init__(self, store: Store, trial: Trial) -> None:
        super().__init__(store, trial)
        self._trial = trial

    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer = self._store.run(operation, *args, **_told(operation, kwargs, self._trial.clock))
        if _enqueues(operation, kwargs):
            self._trial.after_enqueue()
        return answer


class TrialAsyncStore(AsyncStoreProxy):
    """The same for async stores."""

    def __init__(self, store: AsyncStore, trial: Trial) -> None:
        super().__init__(store, trial)
        self._trial = trial

    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer = await self._store.run(
            operation, *args, **_told(operation, kwargs, self._trial.clock)
        )
        if _enqueues(operation, kwargs):
            await self._trial.after_enqueue_async()
        return answer


def _told(operation: Callable[..., Any], kwargs: Any, clock: Clock) -> Any:
    """The arguments of an operation with the time, where it takes one and none was given."""
    if _takes_time(operation) and kwargs.get("now") is None:
        return {**kwargs, "now": clock.now}
    return kwargs


@cache
def _takes_time(operation: Callable[..., Any]) -> bool:
    return "now" in inspect.signature(operation).parameters


def _enqueues(operation: Callable[..., Any], kwargs: Any) -> bool:
    """Does this enqueue? In a transaction of the caller the jobs are not visible yet."""
    return operation is enqueue and kwargs.get("on") is None


@contextmanager
def frozen(app: Client, *, url: str | None = None, clock: Clock | None = None) -> Iterator[Clock]:
    """Let an application use a clock that stands still and, with `url`, another database.

    At the end the application is closed, and uses its own clock and database again. A `Worker`
    always uses the real time: run jobs with `drain`.
    """
    clock = clock or Clock()
    with app.on_trial(Trial(clock), url):
        yield clock
