"""One database behind a proxy, on which a deed is done again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tenure.store import Store
from tenure.store.postgres.session import Postgres
from tests.faults.conftest import check_transactions
from tests.support.audit import check as check_rows
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain import Plain, Row
from tests.support.proxy import SIDES, Fault, Proxy, Side, Way
from tests.support.stores import Clock, open_face
from tests.wire.deeds import Deed


def worth_a_fault(kinds: str) -> Iterator[int]:
    """All of them, except in the middle of many alike: libpq has no row until all are there."""
    for number in range(1, len(kinds) + 1):
        around = kinds[max(0, number - 3) : number + 2]
        if len(around) < 5 or len(set(around)) > 1:
            yield number


class Bench:
    """A store behind the proxy is opened for each deed."""

    def __init__(self, colour: str, url: str, proxy: Proxy, dbname: str) -> None:
        self.colour = colour
        self.proxy = proxy
        self._far_url = proxy.url(dbname, connect_timeout="2")
        self._near = open_face("postgres-sync", url)
        self._plain = Plain(url)

    def close(self) -> None:
        """Close what is open."""
        self._plain.close()
        self._near.close()

    def lay(self, kind: type[Deed]) -> Deed:
        """An empty database, and the scene of a deed."""
        self._plain.wipe()
        return kind(self._near, self._plain, Clock())

    @contextmanager
    def far(self, *, give_up_seconds: float = PATIENCE_SECONDS) -> Iterator[Store]:
        """A store that reaches its database through the proxy."""
        store = open_face(self.colour, self._far_url, give_up_seconds=give_up_seconds)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def struck(
        self, store: Store, fault: Fault | None, silence_seconds: float | None = None
    ) -> Iterator[None]:
        """While this lasts the fault is on the wire, and so much silence is too much."""
        session = session_of(store)
        usual = session.silence_seconds, session.read_silence_seconds
        if silence_seconds is not None:
            session.silence_seconds = session.read_silence_seconds = silence_seconds
        self.proxy.order(fault)
        try:
            yield
        finally:
            self.proxy.order(None)
            session.silence_seconds, session.read_silence_seconds = usual

    def listen(self, kind: type[Deed]) -> dict[Side, str]:
        """Do it undisturbed. Answers the kinds of the messages of each side."""
        deed = self.lay(kind)
        with self.far() as store:
            self.warm(store, kind)
            answer = deed.do(store)
            kinds = dict(self.proxy.links[-1].passed)
            deed.check(answer, store)
        self.forget()
        return kinds

    def faults(self, kind: type[Deed], *ways: Way, again: bool = False) -> list[Fault]:
        """Every fault of these ways that a deed can meet."""
        kinds = self.listen(kind)
        return [
            Fault(side, number, way, again)
            for side in SIDES
            for number in worth_a_fault(kinds[side])
            for way in ways
            if side == "client" or way != "late"
        ]

    def do(
        self, kind: type[Deed], fault: Fault | None, *, silence_seconds: float | None = None
    ) -> None:
        """Do it with a fault on the wire, and check everything."""
        deed = self.lay(kind)
        with self.far() as store:
            self.warm(store, kind)
            with self.struck(store, fault, silence_seconds):
                answer = deed.do(store)
            check_rows(self._plain)
            if fault is not None and fault.way == "late":
                self._deliver_late()
            deed.check(answer, store)
            check_rows(self._plain)
        self.forget()

    def _deliver_late(self) -> None:
        """What arrives after its caller has done it again changes nothing."""
        before = self._plain.everything()
        assert self.proxy.deliver_late() == 1
        check_rows(self._plain)
        assert self._plain.everything() == before

    def warm(self, store: Store, kind: type[Deed]) -> None:
        """Connect, unless that is a part of the deed."""
        if not kind.is_cold:
            store.paused_queues()
            self.proxy.order(None)

    def forget(self) -> None:
        """On each connection every COMMIT belonged to a BEGIN. They are not looked at again."""
        for link in self.proxy.links:
            check_transactions(link.said)
            link.said.clear()

    def rows(self) -> dict[str, list[Row]]:
        """All rows of all tables, which are in order."""
        check_rows(self._plain)
        return self._plain.everything()


def session_of(store: Store) -> Postgres:
    """What is inside, in both colours."""
    return cast(Postgres, cast(Any, getattr(store, "store", store))._scope.session)
