"""transaction() on PostgreSQL: a connection with the settings that the caller's own would have.

Those of the store have another search path, and plan without sequential scans.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from tenure.errors import InvalidInput, OutcomeUnknown
from tenure.store.borrowing import ASYNC_ON
from tenure.store.lending import AsyncTransaction, GivenConnection, Params, Standing, Transaction
from tenure.store.postgres.connection import Suspending, Wire
from tenure.store.postgres.errors import is_outage, translate

if TYPE_CHECKING:
    from tenure.store.postgres.session import Postgres

_STANDING = {
    psycopg.pq.TransactionStatus.INTRANS: Standing.OPEN,
    psycopg.pq.TransactionStatus.ACTIVE: Standing.OPEN,
    psycopg.pq.TransactionStatus.INERROR: Standing.FAILED,
}


class PostgresLent(GivenConnection):
    """The connection of one transaction, in the colour of its session."""

    def __init__(self, session: "Postgres") -> None:
        self._session = session
        self._pid = os.getpid()
        self._wire: Wire | None = None
        self._has_entered = False

    @property
    def connection(self) -> Any:
        return getattr(self._wire, "connection", None)

    async def begin(self) -> None:
        await self._session.enter_to_lend()
        self._has_entered = True
        self._wire = await self._session.connect_to_lend()
        try:
            await self._wire.script("begin; reset all")
        except psycopg.Error as error:
            raise translate(error) from error
        self.connection.row_factory = tuple_row  # whatever its last user made of rows

    async def execute(self, sql: str, params: Params) -> Any:
        answer = self.connection.execute(sql, params)
        return await answer if isinstance(self._wire, Suspending) else answer

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        answer = self.connection.cursor().executemany(sql, rows)
        if isinstance(self._wire, Suspending):
            await answer

    def standing(self) -> Standing:
        return _STANDING.get(self.connection.info.transaction_status, Standing.ENDED)

    async def commit(self) -> None:
        assert self._wire is not None
        try:
            await self._wire.script("commit")
        except psycopg.Error as error:
            if is_outage(error):
                raise OutcomeUnknown(
                    "PostgreSQL went away while the COMMIT of a transaction() was under way; it "
                    "may have been kept. Look before you repeat it"
                ) from error
            raise translate(error) from error

    async def undo(self) -> None:
        if self._wire is not None and self._pid == os.getpid() and not self._wire.broken:
            try:
                await self._wire.script("rollback")
            except psycopg.Error:
                await self._lose(self._wire)

    async def leave(self) -> None:
        if not self._has_entered or self._pid != os.getpid():
            return
        try:
            if self._wire is not None:
                await self._session.take_back(self._wire)
        finally:
            self._session.leave_lent()

    async def _lose(self, wire: Wire) -> None:
        with suppress(psycopg.Error):
            await wire.close()


def unwrap_lent(on: object, session: "Postgres", *, blocking: bool) -> object:
    """The connection under a transaction of the same database and schema; else `on` as it is."""
    if isinstance(on, AsyncTransaction) and blocking:
        raise InvalidInput(ASYNC_ON)
    if isinstance(on, Transaction | AsyncTransaction):
        connection = on.driver_connection
        if getattr(on.session, "place", None) != session.place:
            raise InvalidInput(
                "on= is a transaction of a store on another database or schema; open it on the "
                "same store, or on one with the same URL"
            )
        return connection
    return on
