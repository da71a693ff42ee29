"""An environment for the worker in which chosen operations fail, with named moments.

The worker's own stores go through it; those of clients and of handlers do not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tenure.errors import StoreError, StoreUnavailable
from tenure.store import AsyncStore, Bell, Store
from tenure.store.bell import OnCancel, Ring
from tenure.store.session import Scope
from tenure.worker.environment import Environment


class FaultyEnvironment(Environment):
    """`broken` names the operations that fail now; `moments` what to do at a named moment."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.error: type[StoreError] = StoreUnavailable
        self.failures: Counter[str] = Counter()
        self.sent_at: dict[str, list[float]] = {}
        self.moments: dict[str, Callable[[], object]] = {}

    def crash_point(self, name: str) -> None:
        if name in self.moments:
            self.moments.pop(name)()

    def wrap(self, store: Store) -> Store:
        return _FaultyStore(store, self)

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return FaultyAsyncStore(store, self)

    def meet(self, operation: str) -> None:
        """An operation is about to be sent."""
        self.sent_at.setdefault(operation, []).append(time.monotonic())
        if operation in self.broken:
            self.failures[operation] += 1
            raise self.error(f"{operation} is broken by the test")


class _FaultyStore(Store):
    def __init__(self, store: Store, environment: FaultyEnvironment) -> None:
        self._store, self._environment = store, environment

    @property
    def _scope(self) -> Scope:  # type: ignore[override]
        return self._store._scope

    def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._environment.meet(call.__name__)
        return self._store.run(call, *args, **kwargs)

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        return self._store.bell(ring, on_cancel)


class FaultyAsyncStore(AsyncStore):
    def __init__(self, store: AsyncStore, environment: FaultyEnvironment) -> None:
        self._store, self._environment = store, environment

    async def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._environment.meet(call.__name__)
        return await self._store.run(call, *args, **kwargs)

    async def close(self) -> None:
        await self._store.close()
