"""A real PgBouncer in transaction mode, in front of a test server.

    with Bouncer(server) as bouncer:
        url = bouncer.url(server.create_database())

The program is the machine's own, or it comes from the Debian package, which is unpacked beside the
Python environment and not installed. Each transaction goes to the next of the server's connections
in turn, so that whatever a session keeps is missed by the next transaction. Nothing is left
running: see watchdog.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.support import watchdog
from tests.support.postgres import (
    Server,
    ServerError,
    database_name,
    free_port,
    make_directory,
    unprivileged_account,
    usual_place,
)

START_SECONDS = 180.0
TURNS = 3
"""So many connections to the server take turns, though one might do."""
UNPACKED = Path(sys.prefix) / "pgbouncer"
USUAL_PLACES = ("/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer")
SETTINGS = """
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
server_round_robin = 1
default_pool_size = {pool_size}
max_client_conn = 500
log_connections = 0
log_disconnections = 0
"""


class Bouncer:
    """PgBouncer in transaction mode on a free port of 127.0.0.1."""

    def __init__(self, server: Server, *, pool_size: int = 8) -> None:
        self._server = server
        self._pool_size = pool_size
        self._account = unprivileged_account()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.directory = make_directory(usual_place(durable=False), self._account)

    def __enter__(self) -> Self:
        try:
            self._start()
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

    def url(self, server_url: str, *, sessions: int = TURNS) -> str:
        """The address of a database of the server, for a store, through PgBouncer.

        Some connections to the server are made at once: with a single one, all that a session keeps
        would be found again.
        """
        name = database_name(server_url)
        address = f"postgresql://postgres@127.0.0.1:{self.port}/{name}?sslmode=disable"
        with ExitStack() as stack:
            for _ in range(sessions):
                client = stack.enter_context(psycopg.connect(address))
                client.execute("select 1")  # and keep the transaction open
        return f"{address}&pooler=transaction"

    def close(self) -> None:
        """End it and remove its directory."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            with suppress(BrokenPipeError):
                self._watchdog.stdin.close()  # end of file: the watchdog stops it
            self._watchdog.wait()
            self._watchdog = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        program, libraries = find_program()
        folder = self.directory / "program"  # a copy, for an account that cannot reach the original
        shutil.copytree(libraries, folder) if libraries else folder.mkdir()
        shutil.copy(program, folder / "pgbouncer")
        (self.directory / "users").write_text('"postgres" ""\n')
        (self.directory / "ini").write_text(
            SETTINGS.format(
                host=self._server.directory,
                server_port=self._server.port,
                port=self.port,
                directory=self.directory,
                pool_size=self._pool_size,
            )
        )
        account = self._account
        self._watchdog = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", watchdog.__file__),
                *(self.directory, self.directory / "log"),
                "-" if account is None else f"{account.pw_uid}:{account.pw_gid}",
                *("env", f"LD_LIBRARY_PATH={folder}", folder / "pgbouncer"),
                self.directory / "ini",
            ],
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_ready(self._watchdog)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            time.sleep(0.01)
        log = self.directory / "log"
        raise ServerError(f"PgBouncer did not start:\n{log.read_text() if log.exists() else ''}")


def find_program() -> tuple[Path, Path | None]:
    """PgBouncer, and the folder of the libraries that came with it."""
    for place in (*USUAL_PLACES, shutil.which("pgbouncer")):
        if place is not None and Path(place).is_file():
            return Path(place), None
    if not UNPACKED.exists():
        unpack(UNPACKED)
    return UNPACKED / "pgbouncer", UNPACKED


def unpack(target: Path, *apt_options: str) -> None:
    """Fetch the Debian package and the libraries that it names, and unpack what runs."""
    if shutil.which("apt-get") is None:
        raise ServerError("no PgBouncer found, and no apt-get to fetch it: install pgbouncer")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        apt = Apt(Path(scratch), apt_options)
        [package] = apt.download("pgbouncer")
        needs = apt.output("dpkg-deb", "-f", str(package), "Depends").split(",")
        names = [need.split()[0] for need in needs]
        apt.download(*(name for name in names if name.startswith("lib") and name != "libc6"))
        for each in Path(scratch).glob("*.deb"):
            apt.output("dpkg-deb", "-x", str(each), f"{scratch}/root")
        ready = Path(scratch) / "ready"
        ready.mkdir()
        shutil.copy(f"{scratch}/root/usr/sbin/pgbouncer", ready)
        for library in Path(scratch).glob("root/**/*.so.*"):
            shutil.copy(library, ready)
        with suppress(OSError):  # somebody else was faster
            ready.rename(target)


class Apt:
    """Debian's package client, used in one folder: nothing of the machine is changed."""

    def __init__(self, folder: Path, options: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._options: list[str] = list(options)
        if os.geteuid() == 0:  # the folder is root's: the account for downloads cannot write there
            self._options.append("APT::Sandbox::User=root")

    def download(self, *names: str) -> list[Path]:
        """Fetch packages; with package lists of our own if the machine has none."""
        before = set(self._folder.glob("*.deb"))
        try:
            self._apt("download", *names)
        except ServerError:
            self._use_own_lists()
            self._apt("download", *names)
        return sorted(set(self._folder.glob("*.deb")) - before)

    def _use_own_lists(self) -> None:
        for part in ("lists/partial", "cache/archives/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        self._options = [
            *(option for option in self._options if not option.startswith("Dir::")),
            f"Dir::State::Lists={self._folder}/lists",
            f"Dir::Cache={self._folder}/cache",
        ]
        self._apt("update")

    def _apt(self, *words: str) -> str:
        options = [word for option in self._options for word in ("-o", option)]
        return self.output("apt-get", "--quiet", *options, *words)

    def output(self, *command: str) -> str:
        """Run a program in the folder."""
        done = subprocess.run(
            command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerError(f"{' '.join(command)}:\n{done.stdout}")
        return done.stdout
