"""Stores that stand in front of another one, for who wants to see what passes, or to change it."""

from collections.abc import Callable
from typing import Protocol

from tenure.store.api import AsyncStore, Store
from tenure.store.bell import Bell
from tenure.store.sqlite.threads import WRITING_THREADS


class Watcher(Protocol):
    """Puts itself in front of stores, and of all that are made of them."""

    def watch(self, store: Store) -> Store:
        """A store to be used in place of this one."""

    def watch_async(self, store: AsyncStore) -> AsyncStore:
        """The same for the other colour."""


class WatchedStore(Store):
    """Passes everything on. What wants to see operations overrides `run`."""

    def __init__(self, store: Store, watcher: Watcher) -> None:
        self._store = store
        self._watcher = watcher

    def in_threads(self, *, most: int = WRITING_THREADS, lent: bool = False) -> AsyncStore:
        return self._watcher.watch_async(self._store.in_threads(most=most, lent=lent))

    def bell(self, ring: Callable[[], None]) -> Bell:
        return self._store.bell(ring)

    def for_tenant(self, tenant: str) -> Store:
        return self._watcher.watch(self._store.for_tenant(tenant))


class WatchedAsyncStore(AsyncStore):
    """The same for the other colour."""

    def __init__(self, store: AsyncStore, watcher: Watcher) -> None:
        self._store = store
        self._watcher = watcher

    async def close(self) -> None:
        await self._store.close()

    def bell(self, ring: Callable[[], None]) -> Bell:
        return self._store.bell(ring)

    def for_tenant(self, tenant: str) -> AsyncStore:
        return self._watcher.watch_async(self._store.for_tenant(tenant))
