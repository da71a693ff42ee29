"""A scratch area for measurements on a user's database, separate from the user's jobs.

PostgreSQL    its own schema
SQLite        its own folder next to the user's file, and so on the same disk

Nothing exists before `create`. `remove` may be called at any time and more than once; if it fails,
its error says what is left behind. The other methods measure the bare speed of the database and
count rows without the store.
"""

import secrets
import shutil
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from tenure.errors import ConfigError, StoreError, StoreReadOnly, StoreUnavailable
from tenure.store.statements import qualify
from tenure.store.url import sqlite_path, without

if TYPE_CHECKING:
    import psycopg

    from tenure.store.sqlite.driver import Connection

NAME = "tenure_bench_"
RETRY_SECONDS = 0.2

_COUNT = """
select (select count(*) from tenure.job) + (select count(*) from tenure.ready),
       (select count(*) from tenure.history),
       (select count(distinct id) from tenure.history
        where state = 'succeeded' and attempts = 1 and crashes = 0),
       (select count(*) from tenure.event)
"""


class Counted(msgspec.Struct, frozen=True):
    """The rows in the tables."""

    live: int
    """Rows of live jobs and of tickets."""
    finished: int
    ran_once: int
    """Finished jobs, each counted once, that succeeded at their first attempt."""
    events: int
    """Unusual events: retries, crashes, releases."""


class Scratch(ABC):
    """A scratch area on a database. A store can be opened at its `url`."""

    url: str
    has_round_trips: bool
    """Is there a server to talk to?"""

    @abstractmethod
    def create(self) -> None:
        """Create the area, without the tables of a store, and connect to it."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the area with everything in it."""

    @abstractmethod
    def ask(self) -> None:
        """Run the smallest query: `select 1`."""

    @abstractmethod
    def commit(self) -> None:
        """Insert one row and commit it, as durably as a store does."""

    @abstractmethod
    def count(self) -> Counted:
        """Count the rows in the tables of the store."""

    @abstractmethod
    def log_bytes(self) -> int | None:
        """How many bytes of WAL the server has written so far; None if unknown."""


def scratch_on(url: str, *, give_up_seconds: float) -> Scratch:
    """A scratch area on this database. Nothing is created yet."""
    if url.startswith("sqlite:"):
        return SQLiteScratch(url)
    if url.startswith(("postgresql:", "postgres:")):
        return PostgresScratch(url, give_up_seconds)
    raise ConfigError("url must start with sqlite:/// or postgresql://")


class PostgresScratch(Scratch):
    """A schema of its own."""

    has_round_trips = True

    def __init__(self, url: str, give_up_seconds: float) -> None:
        self.schema = f"{NAME}{secrets.token_hex(6)}"
        theirs = without(url, ("schema",))
        self.url = f"{theirs}{'' if theirs.endswith('?') else '&'}schema={self.schema}"
        self._conninfo = without(url, ("schema", "pooler", "notify"))
        self._give_up_seconds = give_up_seconds
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._insert = f"insert into {self.schema}.probe values (1)"

    def create(self) -> None:
        self._connection = self._connect()
        self._run(f"create schema {self.schema}; create table {self.schema}.probe (n int)")
        if self._run("show synchronous_commit") == [("off",)]:  # a store sets it to on, too
            self._insert = f"begin; set local synchronous_commit = on; {self._insert}; commit"

    def remove(self) -> None:
        if self._connection is None:  # so there is nothing
            return
        self._connection.close()
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            try:
                with self._connect() as self._connection:
                    # Do not wait long for a transaction that still uses the schema.
                    self._run("begin; set local lock_timeout = '5s';"
                              f"drop schema if exists {self.schema} cascade; commit")  # fmt: skip
                return
            except StoreError as error:
                if time.monotonic() > deadline:
                    raise type(error)(
                        f"schema {self.schema} could not be dropped ({error}); "
                        f"drop it later: drop schema {self.schema} cascade"
                    ) from error
            time.sleep(RETRY_SECONDS)

    def ask(self) -> None:
        self._run("select 1")

    def commit(self) -> None:
        self._run(self._insert)

    def count(self) -> Counted:
        [row] = self._run(qualify(_COUNT, "postgres", self.schema))
        return Counted(*row)

    def log_bytes(self) -> int | None:
        try:
            [(position,)] = self._run("select (pg_current_wal_lsn() - '0/0')::bigint")
        except StoreReadOnly:  # this role may not read it
            return None
        return int(position)

    def _connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        try:
            import psycopg

            from tenure.store.postgres.errors import translate
        except ImportError as error:
            raise ConfigError(
                "PostgreSQL needs a driver: pip install 'tenure[postgres]'"
            ) from error
        try:
            return psycopg.connect(
                self._conninfo, autocommit=True, prepare_threshold=None, application_name="tenure",
                connect_timeout=max(2, min(5, round(self._give_up_seconds))),
            )  # fmt: skip
        except psycopg.Error as error:
            raise translate(error) from error

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        from tenure.store.postgres.errors import translate

        assert self._connection is not None
        try:
            cursor = self._connection.execute(sql)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise translate(error) from error


class SQLiteScratch(Scratch):
    """A folder with two files: the store's, and one for the bare speed."""

    has_round_trips = False

    def __init__(self, url: str) -> None:
        path = sqlite_path(url)
        self.folder = Path(path).resolve().parent / f"{NAME}{secrets.token_hex(6)}"
        query = urlsplit(url).query
        self._file = str(self.folder / "jobs.db")
        self.url = f"sqlite:///{quote(self._file)}{'?' if query else ''}{query}"
        self._path = path
        self._options = dict(parse_qsl(query))
        self._probe: Connection | None = None

    def create(self) -> None:
        from tenure.store.sqlite.driver import check_path

        check_path(self._path)
        try:
            self.folder.mkdir(0o700)
        except OSError as error:
            raise StoreUnavailable(
                f"{self.folder} cannot be created ({error.strerror}); the measurement needs to "
                "create a folder next to the database file"
            ) from error
        self._probe = self._connect(str(self.folder / "probe.db"))
        for sql in ("pragma journal_mode = wal", f"pragma synchronous = {self._synchronous}",
                    "create table probe (n int)"):  # fmt: skip
            self._run(self._probe, sql)

    def remove(self) -> None:
        if self._probe is not None:
            self._probe.close()
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
        except OSError as error:
            raise StoreError(
                f"{self.folder} could not be removed ({error}); remove it by hand"
            ) from error

    def ask(self) -> None:
        assert self._probe is not None
        self._run(self._probe, "select 1")

    def commit(self) -> None:
        assert self._probe is not None
        self._run(self._probe, "insert into probe values (1)")

    def count(self) -> Counted:
        connection = self._connect(self._file)
        try:
            [row] = self._run(connection, qualify(_COUNT, "sqlite", "tenure"))
            return Counted(*row)
        finally:
            connection.close()

    def log_bytes(self) -> int | None:
        return None

    @property
    def _synchronous(self) -> str:
        return "normal" if self._options.get("synchronous") == "NORMAL" else "full"

    def _run(self, connection: "Connection", sql: str) -> list[tuple[Any, ...]]:
        from tenure.store.sqlite.driver import DriverError, translate

        try:
            return list(connection.execute(sql))
        except DriverError as error:
            raise translate(error, str(self.folder)) from error

    def _connect(self, path: str) -> "Connection":
        from tenure.store.sqlite.driver import connect

        return connect(path, "sqlite3" if self._options.get("driver") == "sqlite3" else "apsw")
