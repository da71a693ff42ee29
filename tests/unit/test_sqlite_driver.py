"""How connections are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import apsw

from tenure.store.sqlite import driver


def test_a_statement_is_prepared_once_whatever_is_bound(tmp_path: Path) -> None:
    """SQLite may plan by a value, where there are partial indexes, and then again for the next."""
    connection = cast(apsw.Connection, driver.connect(str(tmp_path / "app.db"), "apsw"))
    connection.execute("create table job (id integer, state text)")
    connection.execute("create index done on job (id) where state = 'done'")
    prepared: list[object] = []

    def note(*what: Any) -> int:  # called while a statement is prepared
        prepared.append(what)
        return apsw.SQLITE_OK

    connection.authorizer = note
    look = "select id from job where id = :id and state = :state limit :most"
    list(connection.execute(look, {"id": 1, "state": "new", "most": 1}))
    once = len(prepared)
    list(connection.execute(look, {"id": 2, "state": "done", "most": 2}))
    connection.close()
    assert 0 < once == len(prepared)
