"""Stores that stand in front of another store, to see or to change what passes through."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from tenure.store.api import AsyncStore, Store
from tenure.store.bell import Bell, OnCancel, Ring
from tenure.store.lending import AsyncTransaction, Transaction
from tenure.store.sqlite.threads import WRITING_THREADS


class StoreWrapper(Protocol):
    """Puts a proxy in front of a store, and in front of each store that is made from it."""

    def wrap(self, store: Store) -> Store:
        """A store to use in place of this one."""

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        """A store to use in place of this one."""


class StoreProxy(Store):
    """Passes everything on. Override `run` to see each operation."""

    def __init__(self, store: Store, wrapper: StoreWrapper) -> None:
        self._store = store
        self._wrapper = wrapper

    def in_threads(self, *, most: int = WRITING_THREADS, owns_session: bool = True) -> AsyncStore:
        return self._wrapper.wrap_async(
            self._store.in_threads(most=most, owns_session=owns_session)
        )

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        return self._store.bell(ring, on_cancel)

    def transaction(self) -> AbstractContextManager[Transaction]:
        return self._store.transaction()

    def for_tenant(self, tenant: str) -> Store:
        return self._wrapper.wrap(self._store.for_tenant(tenant))


class AsyncStoreProxy(AsyncStore):
    """Passes everything on. Override `run` to see each operation."""

    def __init__(self, store: AsyncStore, wrapper: StoreWrapper) -> None:
        self._store = store
        self._wrapper = wrapper

    async def close(self) -> None:
        await self._store.close()

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        return self._store.bell(ring, on_cancel)

    def transaction(self) -> AbstractAsyncContextManager[AsyncTransaction]:
        return self._store.transaction()

    def for_tenant(self, tenant: str) -> AsyncStore:
        return self._wrapper.wrap_async(self._store.for_tenant(tenant))
