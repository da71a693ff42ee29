"""A cancel is pushed to workers: what the wire loses of it is looked for when the bell is back."""

from __future__ import annotations

from collections.abc import Collection

from tenure.rules.job import State
from tenure.store import Store, open_store
from tests.support.patience import until
from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import add_many, take


def test_a_cancel_while_the_bell_is_cut_off_is_told_when_it_is_back(
    pg_server: Server, pg_migrated_url: str, clock: Clock
) -> None:
    """A notification goes to the connections of its moment: the bell had none."""
    told: list[Collection[int] | None] = []
    with open_store(pg_migrated_url) as near, Proxy(pg_server.port) as proxy:
        ids = running(near, clock)
        far = open_store(proxy.url(database_name(pg_migrated_url)))
        bell = far.bell(lambda: None, told.append)
        bell.start()
        try:
            until(lambda: told == [None])
            assert near.cancel(ids[0], now=clock.now) is State.RUNNING
            until(lambda: told == [None, {ids[0]}])
            proxy.hold_new()
            proxy.cut_all()
            until(lambda: not bell.alive)
            assert near.cancel_many(ids[1:], now=clock.now).asked == tuple(ids[1:])
            assert len(told) == 2
            proxy.let_new()
            until(lambda: told == [None, {ids[0]}, None])
        finally:
            bell.stop()
            far.close()


def running(store: Store, clock: Clock) -> list[int]:
    """Three jobs that run."""
    ids = add_many(store, clock.now, 3)
    assert len(take(store, clock.now)) == 3
    return ids
