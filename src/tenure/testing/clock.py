"""A clock that stands still, and an application that lives by it."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from tenure.client import Client
from tenure.job import check_seconds, check_time
from tenure.store import AsyncStore, Bell, Store
from tenure.store.api import WRITING_THREADS, Call

P = ParamSpec("P")
R = TypeVar("R")

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A time that moves when it is told to."""

    def __init__(self, now: datetime = START) -> None:
        check_time("now", now)
        self.now = now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        check_seconds("seconds", seconds)
        self.now += timedelta(seconds=seconds)


class FrozenStore(Store):
    """A store that is told the time."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def run(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._store.run(call, *args, **_told(call, kwargs, self._clock))

    def in_threads(self, *, most: int = WRITING_THREADS, lent: bool = False) -> AsyncStore:
        return FrozenAsyncStore(self._store.in_threads(most=most, lent=lent), self._clock)

    def bell(self, ring: Callable[[], None]) -> Bell:
        return self._store.bell(ring)

    def for_tenant(self, tenant: str) -> Store:
        return FrozenStore(self._store.for_tenant(tenant), self._clock)


class FrozenAsyncStore(AsyncStore):
    """The same for the other colour."""

    def __init__(self, store: AsyncStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def run(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._store.run(call, *args, **_told(call, kwargs, self._clock))

    async def close(self) -> None:
        await self._store.close()

    def bell(self, ring: Callable[[], None]) -> Bell:
        return self._store.bell(ring)

    def for_tenant(self, tenant: str) -> AsyncStore:
        return FrozenAsyncStore(self._store.for_tenant(tenant), self._clock)


def _told(call: Callable[..., Any], kwargs: Any, clock: Clock) -> Any:
    """The arguments of an operation with the time, where it takes one and none was given."""
    if "now" in inspect.signature(call).parameters and kwargs.get("now") is None:
        kwargs["now"] = clock.now
    return kwargs


@contextmanager
def frozen(app: Client, *, url: str | None = None, clock: Clock | None = None) -> Iterator[Clock]:
    """Let an application live by a clock that stands still, and, with `url`, on another database.

    At the end the application is closed, and is as it was before.
    """
    clock = clock or Clock()
    with app.on_trial(_Freezer(clock), url):
        yield clock


class _Freezer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def watch(self, store: Store) -> Store:
        return FrozenStore(store, self._clock)

    def watch_async(self, store: AsyncStore) -> AsyncStore:
        return FrozenAsyncStore(store, self._clock)
