"""A caller's psycopg2 connection. It puts the values into the text of the statement."""

from collections.abc import Mapping

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from tenure.store.postgres.connection import ForeignWire, as_psycopg
from tenure.store.session import Row


class Psycopg2Wire(ForeignWire):
    """psycopg2's connection, whatever its cursors make of rows."""

    def __init__(self, connection: connection) -> None:
        self.connection = connection

    async def fetch(
        self, sql: str, params: Mapping[str, object], *, prepare: bool = False
    ) -> list[Row]:
        assert not prepare
        try:
            with self.connection.cursor(cursor_factory=cursor) as rows:
                rows.execute(sql, params)
                return rows.fetchall() if rows.description else []
        except psycopg2.Error as error:
            raise as_psycopg(error, error.pgcode) from error

    @property
    def broken(self) -> bool:
        return bool(self.connection.closed)

    @property
    def idle(self) -> bool:
        return self.connection.get_transaction_status() == TRANSACTION_STATUS_IDLE

    @property
    def client_encoding(self) -> str | None:
        return self.connection.get_parameter_status("client_encoding")
