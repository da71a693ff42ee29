"""A place for measurements on a user's database: away from the user's jobs, and gone afterwards.

PostgreSQL    a schema of its own, beside the user's
SQLite        a folder of its own, beside the user's file and so on the same disk

Nothing exists before `create`. `remove` may be called at any time, again and again; where it cannot
do its work it says what is left behind. The rest is what a measurement needs besides the store: the
bare speed of the database, and a count of the rows behind the store's back.
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
from tenure.store.api import sqlite_path, without
from tenure.store.statements import qualify

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
    """What the tables hold."""

    live: int
    """Rows of jobs and of tickets."""
    finished: int
    ran_once: int
    """Finished jobs, each counted once, that succeeded at their first attempt."""
    events: int
    """Anything out of the ordinary: retries, crashes, releases."""


class Scratch(ABC):
    """A place on the database of `url`. Its own `url` is where a store can be opened."""

    url: str
    has_round_trips: bool
    """Is there a server to talk to?"""

    @abstractmethod
    def create(self) -> None:
        """Make the place, without the tables of a store, and connect to it."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the place with all that is in it."""

    @abstractmethod
    def ask(self) -> None:
        """The smallest question: `select 1`."""

    @abstractmethod
    def commit(self) -> None:
        """Insert one row and commit it, as durably as a store does."""

    @abstractmethod
    def count(self) -> Counted:
        """What the store's tables hold now."""

    @abstractmethod
    def log_bytes(self) -> int | None:
        """How many bytes of WAL the server has written so far; None where nobody tells."""


def scratch_on(url: str, *, give_up_seconds: float) -> Scratch:
    """A place on this database. Nothing is done yet."""
    if url.startswith("sqlite:"):
        return SQLiteScratch(url)
    if url.startswith(("postgresql:", "postgres:")):
        return PostgresScratch(url, give_up_seconds)
    raise ConfigError("a store URL must start with sqlite:/// or postgresql://")


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
        if self._run("show synchronous_commit") == [("off",)]:  # a store does not trust it
            self._insert = f"begin; set local synchronous_commit = on; {self._insert}; commit"

    def remove(self) -> None:
        if self._connection is None:  # so there is nothing
            return
        self._connection.close()
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            try:
                with self._connect() as self._connection:
                    # Whoever still works there is not waited for in silence.
                    self._run("begin; set local lock_timeout = '5s';"
                              f"drop schema if exists {self.schema} cascade; commit")  # fmt: skip
                return
            except StoreError as error:
                if time.monotonic() > deadline:
                    raise type(error)(
                        f"schema {self.schema} is left behind, as it could not be dropped "
                        f"({error}); later, say: drop schema {self.schema} cascade"
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
        except StoreReadOnly:  # this role may not know
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
                f"{self.folder} cannot be created ({error.strerror}); the measurement needs a "
                "folder beside the file"
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
                f"{self.folder} is left behind, as it could not be removed ({error}); remove it"
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
        from tenure.store.sqlite.driver import translate
        from tenure.store.sqlite.tx import DriverError

        try:
            return list(connection.execute(sql))
        except DriverError as error:
            raise translate(error, str(self.folder)) from error

    def _connect(self, path: str) -> "Connection":
        from tenure.store.sqlite.driver import connect

        return connect(path, "sqlite3" if self._options.get("driver") == "sqlite3" else "apsw")
