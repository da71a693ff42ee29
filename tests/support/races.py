"""Races as a fixed order of events, not as luck.

`OpenTransaction` is one of the engine's own transactions on PostgreSQL, kept open just before its
COMMIT. `Background` is a call in a thread, which a test can see waiting. `at_once` starts several
calls at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import psycopg

from tenure.store import AsyncStore, Store
from tenure.store.session import Mode, Operation, Scope, Session, drive
from tests.support.plain import Row
from tests.support.stores import Face

R = TypeVar("R")

PATIENCE_SECONDS = 20.0


class Background(Generic[R]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._answer: R | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller of `result`
            self._error = error

    def ends_within(self, seconds: float) -> bool:
        """Wait at most this long for the end of the call."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> R:
        """What the call returned, or its error raised again."""
        assert self.ends_within(PATIENCE_SECONDS), "the call is still waiting for something"
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)


def at_once(calls: Sequence[Callable[[], R]]) -> list[R]:
    """Run these calls in threads that start together. Returns their results in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], R]) -> R:
        barrier.wait(PATIENCE_SECONDS)
        return call()

    running = [Background(lambda call=call: run(call)) for call in calls]  # type: ignore[misc]
    return [call.result() for call in running]


class _OpenScope(Scope):
    """Runs each operation in one transaction of the test, and never commits."""

    __slots__ = ("_connection",)

    def __init__(self, session: Session, connection: object) -> None:
        super().__init__(session)
        self._connection = connection

    async def transact(self, op: Operation[R], mode: Mode = Mode.WRITE) -> R:
        del mode
        return await op(await self.borrow(self._connection))


class OpenTransaction:
    """A transaction on PostgreSQL in which the engine's operations run without their COMMIT."""

    def __init__(self, url: str, session: Session) -> None:
        self.connection = psycopg.connect(url)
        self._session = session
        self.pid = self.connection.info.backend_pid

    def do(self, operation: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Run one of the engine's operations: what it would commit stays open here."""
        return drive(operation(_OpenScope(self._session, self.connection), *args, **kwargs))

    def sql(self, text: str) -> list[Row]:
        """Run plain SQL in this transaction."""
        cursor = self.connection.execute(cast(Any, text))
        return [tuple(row) for row in cursor] if cursor.description else []

    def commit(self) -> None:
        """Commit what was done."""
        self.connection.commit()

    def rollback(self) -> None:
        """Undo what was done."""
        self.connection.rollback()

    def close(self) -> None:
        """Close the connection; what was not committed is undone."""
        self.connection.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Poll, with a deadline."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def session_of(store: Store | AsyncStore) -> Session:
    """The session under a store."""
    if isinstance(store, Face):
        store = store.store
    return store._scope.session
