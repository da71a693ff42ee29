"""transaction() on SQLite: a connection of its own, under the writer lock of the process.

It is neither the writing nor the reading connection, so what its callers set on it (row traces,
`pragma foreign_keys`, functions) stays away from the store. It is kept for the next transaction.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenure.store.lending import GivenConnection, Params, Rows, Standing

if TYPE_CHECKING:
    from tenure.store.sqlite.session import SQLite


class SQLiteLent(GivenConnection):
    """The connection of one transaction. All of it happens in one thread."""

    connection: Any = None

    def __init__(self, session: "SQLite") -> None:
        self._session = session
        self._pid = os.getpid()
        self._has_asked = False

    async def begin(self) -> None:
        session = self._session
        session.lock_to_lend(self._asks)
        self.connection = session.begin_lent()

    def _asks(self) -> None:
        """From here on the lock may be ours, whatever interrupts this thread."""
        self._has_asked = True

    async def execute(self, sql: str, params: Params) -> Any:
        values: Any = () if params is None else params
        return Rows([tuple(row) for row in self.connection.execute(sql, values).fetchall()])

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(sql, [tuple(row) for row in rows])

    def standing(self) -> Standing:
        return Standing.OPEN if self.connection.in_transaction else Standing.ENDED

    async def commit(self) -> None:
        self._session.commit_lent(self.connection)

    async def undo(self) -> None:
        if self._pid == os.getpid() and self._has_asked:
            self._session.undo_lent()

    async def leave(self) -> None:
        if self._pid == os.getpid() and self._has_asked:
            self._session.unlock_lent()
