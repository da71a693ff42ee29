"""SQLite: a count of all jobs has a connection of its own, and holds up no other read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.rules.job import State
from tenure.store import open_store
from tenure.store.sqlite.tx import SQLiteTx
from tests.support.races import Background
from tests.support.stores import Clock
from tests.support.work import add


def test_other_reads_do_not_wait_for_a_count(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing: while a worker counted, its claimers waited."""
    path = tmp_path / "jobs.db"
    store = open_store(f"sqlite:///{path}")
    id = add(store, clock.now)
    real, seen = SQLiteTx.fetch, []

    async def fetch(tx: SQLiteTx, statement: str, **params: object) -> list[Any]:
        if statement == "count_depth":
            peeking = Background(lambda: store.peek(["default"], now=clock.now))
            seen.append((peeking.result().ready, store.get(id).state))
        return await real(tx, statement, **params)

    monkeypatch.setattr(SQLiteTx, "fetch", fetch)
    assert store.sample_depth(now=clock.now)
    assert seen == [(frozenset({"default"}), State.QUEUED)]
    store.close()
    assert not Path(f"{path}-wal").exists(), "a connection is still open"
