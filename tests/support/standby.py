"""A PostgreSQL server with a hot standby, to be killed and replaced.

    with Pair() as pair:
        pair.follow(wait=True)      # every COMMIT waits for the standby
        pair.primary.kill()
        pair.promote()              # pair.url(...) reaches it now

The standby begins as a copy of the primary's files, made while that one is stopped, so nothing but
the server's own programs is needed. It follows through a proxy, which can hold it back.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import psycopg

from tests.support.postgres import Server
from tests.support.proxy import Proxy

NAME = "standby"
FOLLOW_SECONDS = 180.0
CAUGHT_UP = """
select 1 from pg_stat_replication
 where state = 'streaming' and replay_lsn >= pg_current_wal_flush_lsn()
"""
SYNCHRONOUS = "select 1 from pg_stat_replication where sync_state = 'sync'"


class Standby(Server):
    """A server that follows another one from a copy of its files."""

    def __init__(self, primary: Server, port: int) -> None:
        super().__init__()
        self._primary = primary
        self._upstream_port = port

    def _initialise(self) -> None:
        assert not self._primary.is_running, "files are copied while nobody writes to them"
        shutil.copytree(self._primary.directory / "data", self._data, symlinks=True)
        (self._data / "standby.signal").touch()
        upstream = (
            f"host=127.0.0.1 port={self._upstream_port} user=postgres application_name={NAME}"
        )
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write(f"unix_socket_directories = '{self.directory}'\n")
            configuration.write(f"primary_conninfo = '{upstream}'\n")
            configuration.write("wal_retrieve_retry_interval = '100ms'\n")
        if self._account is not None:
            for path in (self._data, *self._data.rglob("*")):
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)


class Pair:
    """A primary, its standby, and the proxy by which the standby follows."""

    def __init__(self) -> None:
        self.primary = Server()
        self.stream = Proxy(self.primary.port)
        self.standby = Standby(self.primary, self.stream.port)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.primary.close)
            stack.callback(self.standby.close)
            stack.enter_context(self.stream)
            self.primary.start()
            self.primary.stop("fast")
            self.standby.start()
            self.primary.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def url(self, dbname: str) -> str:
        """The address of a database on whichever of the two can be written to."""
        hosts = f"{self.primary.directory},{self.standby.directory}"
        ports = f"{self.primary.port},{self.standby.port}"
        return (
            f"postgresql://postgres@/{dbname}?host={hosts}&port={ports}"
            "&target_session_attrs=read-write"
        )

    def follow(self, *, wait: bool) -> None:
        """Wait until the standby has caught up; then let every COMMIT wait for it, or none."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        with psycopg.connect(self.primary.url(), autocommit=True) as admin:
            while not admin.execute(CAUGHT_UP).fetchall():
                assert time.monotonic() < deadline, self.standby.log_tail()
                time.sleep(0.01)
            admin.execute(f"alter system set synchronous_standby_names = '{NAME if wait else ''}'")
            admin.execute("select pg_reload_conf()")
            while wait and admin.execute(SYNCHRONOUS).fetchall() == []:
                assert time.monotonic() < deadline, self.standby.log_tail()
                time.sleep(0.01)

    def promote(self) -> None:
        """Make the standby the primary, and return when it can be written to."""
        with psycopg.connect(self.standby.url(), autocommit=True) as admin:
            assert admin.execute("select pg_promote()").fetchall() == [(True,)]
