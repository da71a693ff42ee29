"""Threads that call a SQLite store, and a look inside it: who waits, who holds a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import apsw

from tenure.rules.job import NewJob
from tenure.store import AsyncStore, Store
from tenure.store.sqlite.session import SQLite
from tests.support.patience import PATIENCE_SECONDS


class Caller:
    """A call in a thread of its own, with what became of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._thread.ident is not None
        self.ident: int = self._thread.ident

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:  # noqa: BLE001 - that is what the tests look at
            self.error = error

    def join(self) -> Caller:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call is still waiting for something"
        return self


def session_of(store: Store | AsyncStore) -> SQLite:
    return cast(SQLite, cast(Any, store)._scope.session)


def process_of(store: Store | AsyncStore) -> Any:
    return session_of(store)._processes[-1]


def line_of(store: Store | AsyncStore) -> Any:
    return process_of(store).waiting


def add(store: Store, task: str, now: datetime | None = None) -> int:
    [added] = store.enqueue([NewJob(task=task)], now=now)
    return added.id


@contextmanager
def write_lock_of_another(path: Path) -> Iterator[None]:
    """Stands for another process that writes."""
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    try:
        yield
    finally:
        other.execute("rollback")
        other.close()
