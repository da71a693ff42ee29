"""A caller's asyncpg connection, which speaks `$1` where psycopg speaks `%(name)s`.

Parameters and results are binary, and of the types that psycopg has: int, str, bool, datetime with
a time zone. JSON is sent as text, because callers may have set their own codecs for json.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import asyncpg

from tenure.store.postgres.connection import ForeignWire, as_psycopg
from tenure.store.session import Row

_PARAMETER = re.compile(r"%\((\w+)\)s(::json\b)?|%%")


class AsyncpgWire(ForeignWire):
    """asyncpg's connection, or the one that its pool hands out."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def fetch(
        self, sql: str, params: Mapping[str, object], *, prepare: bool = False
    ) -> list[Row]:
        """Planned again each time, as the unnamed statement: asyncpg keeps named statements."""
        assert not prepare
        text, names = numbered(sql)
        try:
            statement = await self.connection.prepare(text, name="")
            rows = await statement.fetch(*[params[name] for name in names])
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise as_psycopg(error, getattr(error, "sqlstate", None)) from error
        return [tuple(row) for row in rows]

    @property
    def broken(self) -> bool:
        try:
            return bool(self.connection.is_closed())
        except asyncpg.InterfaceError:  # it went back to its pool
            return True

    @property
    def idle(self) -> bool:
        return not self.connection.is_in_transaction()

    @property
    def client_encoding(self) -> str | None:
        return str(self.connection.get_settings().client_encoding)


@lru_cache
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """A statement with numbered parameters, and their names in order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name, is_json = match.groups()
        if name is None:
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}{'::text::json' if is_json else ''}"

    return _PARAMETER.sub(number, sql), tuple(names)
