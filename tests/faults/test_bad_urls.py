"""Addresses that lead nowhere: refused at once, by an error that says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.errors import ConfigError, OutOfRange, StoreUnavailable
from tenure.store import open_async_store, open_store


class Address:
    """Its text is a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url


CONFIG: dict[str, tuple[Any, str]] = {
    "no scheme": ("jobs.db", "must start with sqlite:/// or postgresql://"),
    "empty": ("", "must start with sqlite:/// or postgresql://"),
    "another scheme": ("mysql://localhost/jobs", "must start with sqlite:/// or postgresql://"),
    "http": ("http://localhost:5432/jobs", "must start with sqlite:/// or postgresql://"),
    "not a string": (None, "must be a string, not NoneType"),
    "a path": (Path("jobs.db"), "must be a string, not PosixPath"),
    "bytes": (b"sqlite:///jobs.db", "must be a string, not bytes"),
    "a host in a file's URL": ("sqlite://jobs.db", "write sqlite:///jobs.db"),
    "a host and a path": ("sqlite://data/jobs.db", "write sqlite:///data/jobs.db"),
    "no file": ("sqlite://", "needs a file"),
    "no file, but a slash": ("sqlite:///", "needs a file"),
    "memory": ("sqlite:///:memory:", "needs a file"),
    "NUL in the path": ("sqlite:///jobs%00.db", "NUL"),
    "a fragment": ("sqlite:///jobs#1.db", "%23"),
    "an unknown SQLite option": ("sqlite:///jobs.db?journal=wal", "unknown option 'journal'"),
    "a misspelt option": ("sqlite:///jobs.db?drivers=apsw", "known options: "),
    "an unknown driver": ("sqlite:///jobs.db?driver=pysqlite", "one of apsw, sqlite3"),
    "an unknown sync mode": ("sqlite:///jobs.db?synchronous=OFF", "one of FULL, NORMAL"),
    "a network option": ("sqlite:///jobs.db?allow_network=true", "allow_network=true in the URL"),
    "a yes": ("sqlite:///jobs.db?allow_affected_sqlite=yes", "use one of 0, 1"),
    "an object": (Address("sqlite:///jobs.db"), "must be a string, not Address"),
    "an unclosed bracket in a file's URL": ("sqlite://[x/y.db", "cannot be read"),
    "an unknown PostgreSQL option": ("postgresql:///jobs?colour=red", "colour"),
    "a bad port": ("postgresql://127.0.0.1:abc/jobs", "port"),
    "an unclosed bracket": ("postgresql://[::1/jobs", "cannot be read"),
    "quotes": ("'postgresql:///jobs'", "this one is in quotes; remove them"),
    "keywords": ("host=localhost dbname=x", "list of keywords; write postgresql://USER:PASS"),
    "an @ in the password": ("postgresql://bob:p@ss@localhost/jobs", "write %40 for @, %3A for"),
    "a / in the password": ("postgresql://bob:p/ss@localhost/jobs", "%2F for /"),
    "a # in the password": ("postgresql://bob:p#ss@localhost/jobs", "%23 for #"),
    "an unknown pooler": ("postgresql:///jobs?pooler=session", "one of none, transaction"),
    "SQL in the schema": ("postgresql:///jobs?schema=a;drop%20table%20job", "lower-case letters"),
    "quotes in the schema": ('postgresql:///jobs?schema=a"b', "lower-case letters"),
    "an upper-case schema": ("postgresql:///jobs?schema=Jobs", "lower-case letters"),
    "no schema": ("postgresql:///jobs?schema=", "lower-case letters"),
    "a system schema": ("postgresql:///jobs?schema=pg_jobs", "pg_"),
}


@pytest.mark.parametrize("name", CONFIG)
def test_a_wrong_url_is_refused_with_the_right_one_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url, match = CONFIG[name]
    with pytest.raises(ConfigError, match=match):
        open_store(url)
    with pytest.raises(ConfigError, match=match):
        open_async_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_not_repeated_in_the_error() -> None:
    for url in (
        "postgresql://me:s3cret@127.0.0.1:abc/jobs",
        "postgresql://me:s3cret@127.0.0.1/jobs?colour=red",
        "me:s3cret@127.0.0.1/jobs",
        "postgres:me:s3cret@127.0.0.1/jobs",
    ):
        with pytest.raises(ConfigError) as refusal:
            open_store(url)
        assert "s3cret" not in str(refusal.value)


def test_bad_options_of_the_store_itself_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for connections in (0, -1, 1.5, None, 2**63):
        with pytest.raises(OutOfRange, match="connections must be a whole number"):
            open_store(url, connections=connections)  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), float("inf"), "10"):
        with pytest.raises(OutOfRange, match="give_up_seconds must be"):
            open_store(url, give_up_seconds=seconds)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_server_that_is_not_there_is_unavailable_after_the_given_time() -> None:
    store = open_store("postgresql://postgres@127.0.0.1:1/jobs", give_up_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="start the server, or check the host"):
        store.claim("w1", {"default": 1})
    with pytest.raises(StoreUnavailable, match="start the server, or check the host"):
        store.migrate()
    store.close()


def test_a_socket_folder_without_a_server_is_unavailable(tmp_path: Path) -> None:
    store = open_store(f"postgresql:///jobs?host={tmp_path}", give_up_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="start the server, or check the folder"):
        store.claim("w1", {"default": 1})
    store.close()
