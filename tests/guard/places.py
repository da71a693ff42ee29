"""The two stores, each with its meter: where the scenes are played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tenure import Tenure
from tenure.store import Store, open_store
from tests.guard import scenes
from tests.guard.counts import Counts, Meter
from tests.guard.on_postgres import PostgresMeter
from tests.guard.on_sqlite import SQLiteMeter
from tests.support.pages import connection_of
from tests.support.plain import Plain
from tests.support.postgres import Server

# Older than all that is there, so that new rows go where they always do: behind the last one.
_NUMBERS = {
    "sqlite": "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?)",
    "postgres": "with n as (select generate_series(1, ?) as n)",
}
_COLUMNS = {
    "sqlite": "select name from pragma_table_info('tenure_history')",
    "postgres": "select column_name from information_schema.columns"
    " where table_schema = 'tenure' and table_name = 'history'",
}
_COPY = """
insert into tenure.history (id, columns)
select -n, columns from n, (select * from tenure.history limit 1) as one
"""

Metering = Callable[[str], AbstractContextManager[Meter]]


class Place(ABC):
    """Makes fresh databases of one kind."""

    name: str

    @abstractmethod
    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh, migrated database."""

    @abstractmethod
    @contextmanager
    def meter(self, url: str) -> Iterator[Meter]:
        """Counts what is done there."""

    def silent(self, url: str) -> str:
        """The same database, without notifications."""
        return url

    @contextmanager
    def store(
        self, *, waiting: int = 0, finished: int = 0, change: str = ""
    ) -> Iterator[tuple[Store, Meter]]:
        """A store that has done everything once, in a fresh database, and a meter.

        So many jobs stand in line there, and so many more than a thousand are in history. `change`
        is a change of the schema.
        """
        with (
            self.database() as url,
            self.meter(url) as meter,
            open_store(url, connections=1) as store,
        ):
            if change:
                with Plain(url) as plain:
                    plain.rows(change)
            scenes.fill(store, 2 * scenes.BLOCK)
            for _ in range(2):
                leases = scenes.claim(store)
                scenes.beat(store, leases)
                scenes.settle(store, leases)
            assert not scenes.claim(store)
            scenes.fill(store, waiting)
            if finished:
                self.add_history(url, finished)
            self._keep(meter, store)
            yield store, meter

    def _keep(self, meter: Meter, store: Store) -> None:  # noqa: B027 - on SQLite nothing is to do
        """Tell the meter that the store's connection stays open."""

    def add_history(self, url: str, rows: int) -> None:
        """Write so many finished jobs behind the store's back: copies of one that is there."""
        with Plain(url) as plain:
            names = [str(name) for (name,) in plain.rows(_COLUMNS[self.name])]
            columns = ", ".join(name for name in names if name != "id")
            plain.rows(_NUMBERS[self.name] + _COPY.replace("columns", columns), rows)

    def idle(self, minutes: float) -> Counts:
        """What a worker costs that has nothing to do for so long, from its start to its end."""
        with self.database() as url, self.meter(url) as counting, Tenure(url) as app:
            return counting.count(lambda: scenes.idle(app, minutes))

    def drain(self, kind: scenes.Kind, jobs: int, *, meter: Metering | None = None) -> Counts:
        """What a worker costs that drains so many jobs, from its start to its end."""
        done: list[int] = []
        with self.database() as url:
            with open_store(url) as store:
                scenes.fill(store, jobs)
            with (meter or self.meter)(url) as counting, Tenure(url) as app:
                scenes.send_task(app, kind, done)
                counts = counting.count(lambda: scenes.drain(app, done, jobs))
            scenes.audit(url, jobs)
        return counts


class SQLitePlace(Place):
    """Files."""

    name = "sqlite"

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders

    @contextmanager
    def database(self) -> Iterator[str]:
        path = self._folders.mktemp("guard") / "jobs.db"
        try:
            yield f"sqlite:///{path}"
        finally:
            for file in path.parent.iterdir():
                file.unlink()

    @contextmanager
    def meter(self, url: str) -> Iterator[Meter]:  # noqa: ARG002
        with SQLiteMeter().listening() as meter:
            yield meter


class PostgresPlace(Place):
    """Databases of a server that does nothing else."""

    name = "postgres"

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template

    @contextmanager
    def database(self) -> Iterator[str]:
        url = self._server.create_database(template=self._template)
        try:
            yield url
        finally:
            self._server.drop_database(url)

    def silent(self, url: str) -> str:
        return f"{url}&notify=off"

    @contextmanager
    def meter(self, url: str) -> Iterator[Meter]:
        meter = PostgresMeter(self._server, url)
        try:
            yield meter
        finally:
            meter.close()

    def _keep(self, meter: Meter, store: Store) -> None:
        assert isinstance(meter, PostgresMeter)
        meter.keep(connection_of(store))
