"""Every store and calling style behind one face, so that one suite serves all of them.

`Face` has the methods of `tenure.store.Store`. For an async store it runs each call on an event
loop of its own, so a test is written once, in plain calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from tenure.store import AsyncStore, Store, open_async_store, open_store

STYLES = ("sqlite-apsw", "sqlite-sqlite3", "sqlite-async", "postgres-sync", "postgres-async")
QUICK = {"sqlite-apsw", "postgres-async"}
"""Styles in the inner loop: each database, and each way of calling, once."""
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class Clock:
    """Time in the tests' hands. Pass `clock.now` as `now=` to every operation."""

    now: datetime = START

    def advance(self, seconds: float) -> datetime:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        return self.now


@dataclass
class Face:
    """An async store with the blocking face of `Store`."""

    store: AsyncStore
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.store, name)
        if name == "for_tenant":
            return lambda tenant: cast(Store, Face(method(tenant), self.loop))
        if name in ("bell", "transaction"):
            return cast(Callable[..., Any], method)
        return partial(self._run, method)

    def _run(self, method: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        return self.loop.run_until_complete(method(*args, **kwargs))

    def close(self) -> None:
        """Close the store and the loop."""
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


def url_of(style: str, path: str, pg_url: str | None) -> str:
    """The URL of a store of this style: a file for SQLite, a migrated database for PostgreSQL."""
    if style == "sqlite-sqlite3":
        return f"sqlite:///{path}?driver=sqlite3&allow_affected_sqlite=1"
    if style.startswith("sqlite"):
        return f"sqlite:///{path}"
    assert pg_url is not None
    return pg_url


def open_face(style: str, url: str, **options: float) -> Store:
    """Open a store of this style, with the face of `Store`."""
    if style.endswith("async"):
        loop = asyncio.new_event_loop()

        async def opened() -> AsyncStore:
            return open_async_store(url, **cast(Any, options))

        return cast(Store, Face(loop.run_until_complete(opened()), loop))
    return open_store(url, **cast(Any, options))
