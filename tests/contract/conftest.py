"""Every test of the contract ends with an audit of the rows that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.store import Store, open_store
from tests.support.audit import audit
from tests.support.plain import Plain
from tests.support.races import Background, OpenTransaction, session_of, wait_until

Opener = Callable[[], Store]
Begin = Callable[[], OpenTransaction]
BlockedBy = Callable[..., None]


@pytest.fixture(autouse=True)
def audited(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test, and after its store was closed, the invariants hold."""
    if "store_url" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("store_url")
    yield
    audit(url)


@pytest.fixture
def plain(store: Store, store_url: str) -> Iterator[Plain]:  # noqa: ARG001 - the store opens first
    """Plain SQL on the same database."""
    with Plain(store_url) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def open_shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens stores on one database, one for each thread."""
    if request.param == "postgres":
        url = str(request.getfixturevalue("pg_migrated_url"))
    else:
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    opened: list[Store] = []

    def open_one() -> Store:
        opened.append(open_store(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
    audit(url)


@pytest.fixture
def pg(pg_migrated_url: str) -> Iterator[Store]:
    """A store on PostgreSQL for several threads."""
    store = open_store(pg_migrated_url, connections=8)
    yield store
    store.close()
    audit(pg_migrated_url)


@pytest.fixture
def pg_plain(pg: Store, pg_migrated_url: str) -> Iterator[Plain]:  # noqa: ARG001 - it opens first
    """Plain SQL on the database of `pg`."""
    with Plain(pg_migrated_url) as opened:
        yield opened


@pytest.fixture
def begin(pg: Store, pg_migrated_url: str) -> Iterator[Begin]:
    """Begins transactions that stay open until the test ends them."""
    begun: list[OpenTransaction] = []

    def begin_one() -> OpenTransaction:
        begun.append(OpenTransaction(pg_migrated_url, session_of(pg)))
        return begun[-1]

    yield begin_one
    for transaction in begun:
        transaction.close()


@pytest.fixture
def blocked_by(pg_plain: Plain) -> BlockedBy:
    """Waits until a connection waits for a lock of this transaction, or until a call has ended."""

    def wait(transaction: OpenTransaction, or_ended: Background[Any] | None = None) -> None:
        blocked = (
            "select count(*) from pg_stat_activity"
            f" where {transaction.pid} = any (pg_blocking_pids(pid))"
        )
        wait_until(
            lambda: pg_plain.one(blocked) or (or_ended is not None and or_ended.ends_within(0))
        )

    return wait
