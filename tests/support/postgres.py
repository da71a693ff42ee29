"""A real PostgreSQL server, private to the process that starts it.

The server lives in a temporary directory, in memory if it may: data, log and unix socket. It also
listens on a port of 127.0.0.1 that nobody else uses. It runs as an unprivileged account when root
starts it, because PostgreSQL refuses root. Nothing is left running or lying about, even after
`kill -9` of the owner: see watchdog.py.

    with Server() as server:
        url = server.create_database()
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support import watchdog
from tests.support.postgres_binaries import Binaries, find_binaries

Mode = Literal["fast", "immediate"]
Setting = str | int | bool

# The longest socket path that every Unix accepts is 103 bytes; the socket's own name takes 20.
LONGEST_DIRECTORY = 80
START_SECONDS = 180.0
STOP_SECONDS = 180.0
UNPRIVILEGED = ("postgres", "nobody")
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30

BASIC_SETTINGS: dict[str, Setting] = {
    "listen_addresses": "127.0.0.1",
    "logging_collector": False,
    "max_connections": 200,
}
# Survives a crash of the server, though not of the machine: good enough for tests, and much faster.
FAST_SETTINGS: dict[str, Setting] = {"fsync": False, "full_page_writes": False}


class ServerError(Exception):
    """The server did not do as asked; the message holds the end of its log."""


class Server:
    """A private PostgreSQL server.

    `durable=True` keeps the stock settings, with fsync and synchronous commit on, for measurements.
    `settings` are put over all others. `parent` is where the temporary directory goes, for a server
    on a certain disk. Databases and the address survive `stop`, `start` and `restart`; `close` ends
    everything and removes the directory.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, Setting] | None = None,
        binaries: Binaries | None = None,
        parent: Path | None = None,
    ) -> None:
        self._settings = {
            **BASIC_SETTINGS,
            **({} if durable else FAST_SETTINGS),
            **(settings or {}),
        }
        self._account = unprivileged_account()
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._binaries = binaries or find_binaries()
        self.port = free_port()
        self.directory = make_directory(parent or usual_place(durable=durable), self._account)
        atexit.register(self.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def major(self) -> int:
        """The major version of PostgreSQL."""
        return self._binaries.major

    @property
    def is_running(self) -> bool:
        return self._watchdog is not None and self._watchdog.poll() is None

    @property
    def postmaster_pid(self) -> int:
        """The process id of the server's first process, for tests that hurt it."""
        return int(self._pid_file.read_text().splitlines()[0])

    def url(self, dbname: str = "postgres", *, tcp: bool = False) -> str:
        """The address of a database: by unix socket, or by TCP if asked."""
        if tcp:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{dbname}"
        return f"postgresql://postgres@/{dbname}?host={self.directory}&port={self.port}"

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or a copy of `template` (its address), and return its address.

        Nobody may be connected to the template meanwhile.
        """
        name = f"tenure_{next(self._numbers)}"
        # To copy the files takes half of the time that it takes to log every page.
        statement = sql.SQL("create database {} template {} strategy file_copy").format(
            sql.Identifier(name),
            sql.Identifier("template1" if template is None else database_name(template)),
        )
        self._administer(statement)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database, ending whatever is still connected to it."""
        self._administer(
            sql.SQL("drop database if exists {} with (force)").format(
                sql.Identifier(database_name(url))
            )
        )

    def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        if self.is_running:
            return
        if not self._data.exists():
            self._initialise()
        self._pid_file.unlink(missing_ok=True)
        self._release_watchdog()
        self._watchdog = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", watchdog.__file__),
                *(self.directory, self._log, self._account_option()),
                *(self._binaries.folder / "postgres", "-D", self._data, "-p", str(self.port)),
            ],
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_ready(self._watchdog)

    def stop(self, mode: Mode = "immediate") -> None:
        """Stop the server, and return when all its processes are gone."""
        if self._watchdog is None:
            return
        assert self._watchdog.stdin is not None
        with suppress(BrokenPipeError):
            self._watchdog.stdin.write(f"{mode}\n".encode())
            self._watchdog.stdin.flush()
        try:
            self._watchdog.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServerError(f"did not stop ({mode}):\n{self.log_tail()}") from None
        self._release_watchdog()

    def kill(self) -> None:
        """SIGKILL for every process of the server, and return when all are gone."""
        if self._watchdog is None:
            return
        first = self.postmaster_pid
        for pid in (first, *children_of(first)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._watchdog.wait(STOP_SECONDS)
        self._release_watchdog()

    def restart(self, mode: Mode = "fast") -> None:
        """Stop in the given mode and start again at the same address.

        "fast" ends every session and shuts down cleanly; "immediate" is a crash with recovery.
        """
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End the server and remove its directory. Safe to call again, and in a fork: no effect."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        try:
            self.stop()
        finally:
            self._release_watchdog()  # end of file: the watchdog kills what did not stop
            shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        if not self._log.exists():
            return "(no log)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    @property
    def _pid_file(self) -> Path:
        return self._data / "postmaster.pid"

    def _account_option(self) -> str:
        return "-" if self._account is None else f"{self._account.pw_uid}:{self._account.pw_gid}"

    def _initialise(self) -> None:
        try:
            self._run_as_account("postgres", "--version")
        except PermissionError:
            self._binaries = self._binaries.copy_to(self.directory)
        self._run_as_account(
            "initdb",
            *("--pgdata", str(self._data), "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", f"--locale={'C.UTF-8' if sys.platform == 'linux' else 'C'}"),
            *("--no-sync", "--no-instructions"),
        )
        settings = {**self._settings, "unix_socket_directories": str(self.directory)}
        with (self._data / "postgresql.conf").open("a") as configuration:
            for name, value in settings.items():
                quoted = str(value).replace("'", "''")
                configuration.write(f"{name} = '{quoted}'\n")

    def _run_as_account(self, program: str, *arguments: str) -> None:
        account = self._account
        done = subprocess.run(
            [self._binaries.folder / program, *arguments],
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise ServerError(f"{program} failed:\n{done.stdout}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """The server writes its status into the eighth line of its pid file, as pg_ctl reads it."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerError(f"ended while starting:\n{self.log_tail()}")
            with suppress(FileNotFoundError):
                lines = self._pid_file.read_text().splitlines()
                if len(lines) >= 8 and lines[7].strip() == "ready":
                    return
            time.sleep(0.01)
        raise ServerError(f"not ready after {START_SECONDS} s:\n{self.log_tail()}")

    def _release_watchdog(self) -> None:
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            with suppress(BrokenPipeError):
                self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)


def unprivileged_account() -> pwd.struct_passwd | None:
    """The account to run the server as; None keeps the present one."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerError(f"root cannot run PostgreSQL, and there is no account {UNPRIVILEGED}")


def usual_place(*, durable: bool) -> Path:
    """Where servers go: memory if there is room and nothing must be durable, else the disk.

    Creating a database makes some 300 files: 20 ms in memory, 20 to 340 ms on a disk that was
    measured at different times.
    """
    if not durable and os.access(MEMORY, os.W_OK | os.X_OK):
        state = os.statvfs(MEMORY)
        if state.f_bavail * state.f_frsize >= MEMORY_BYTES and not state.f_flag & os.ST_NOEXEC:
            return MEMORY
    usual = Path(tempfile.gettempdir())
    is_short = len(os.fsencode(usual)) <= LONGEST_DIRECTORY - 20
    return usual if is_short else Path("/tmp")


def make_directory(parent: Path, account: pwd.struct_passwd | None) -> Path:
    """Make a directory that belongs to the account, with a path short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="tenure-pg-", dir=parent))
    if len(os.fsencode(directory)) > LONGEST_DIRECTORY:
        directory.rmdir()
        raise ServerError(f"path too long for a unix socket: {directory}")
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)
    return directory


def children_of(parent: int) -> list[int]:
    """The processes that this one has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = status.read_text().rpartition(")")[2].split()
            if int(after_name[1]) == parent:
                found.append(int(status.parent.name))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def database_name(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])
