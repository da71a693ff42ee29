"""Django without a project: its settings are global, so they are put in and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connection, connections, transaction
from django.utils.functional import empty
from psycopg.conninfo import conninfo_to_dict


@contextmanager
def one_django(
    backend: str, address: str, *, autocommit: bool = True, **options: Any
) -> Iterator[Any]:
    """Django set up for one database; `options` are settings. Gives its default connection."""
    _forget()
    database = {
        "ENGINE": f"django.db.backends.{backend}",
        "AUTOCOMMIT": autocommit,
        **_place(backend, address),
    }
    settings.configure(DATABASES={"default": database}, LOGGING_CONFIG=None, **options)
    django.setup()
    try:
        yield connection
    finally:
        connection.close()
        _forget()


def _forget() -> None:
    for alias in list(connections) if settings.configured else []:
        if hasattr(connections._connections, alias):
            del connections[alias]
    connections.__dict__.pop("settings", None)
    connections._settings = None
    settings._wrapped = empty


def _place(backend: str, address: str) -> dict[str, Any]:
    if backend == "sqlite3":
        return {"NAME": address}
    parts = conninfo_to_dict(address)
    return {
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
    }


def connection_of_django() -> Any:
    """What a Django project imports: `from django.db import connection`."""
    return connection


def atomic() -> Any:
    """`transaction.atomic()`, a transaction or a savepoint in one."""
    return transaction.atomic()
