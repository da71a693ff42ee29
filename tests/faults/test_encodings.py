"""Our connections speak UTF-8, and so must the database, whatever the environment says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from msgspec.json import decode

from tenure.errors import ConfigError, InvalidInput
from tenure.rules.codec import encode
from tenure.rules.job import State, Unique
from tenure.rules.lifecycle import fail
from tenure.store import open_store
from tests.support.patience import until
from tests.support.postgres import Server, database_name
from tests.support.stores import Clock, open_face
from tests.support.work import TASK, job, settle, take

TENURE = str(Path(sys.executable).with_name("tenure"))
TEXT = "Zoë ☃ \U0001f980"

APPLICATION = """
from tenure import Tenure
app = Tenure()

@app.task(name="app.echo")
def task(text: str) -> str:
    return text + "!"
"""


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoding(request: pytest.FixtureRequest) -> str:
    """One that is not ours."""
    return str(request.param)


@pytest.mark.parametrize("where", ["environment", "URL"])
@pytest.mark.parametrize("style", ["postgres-sync", "postgres-async"])
def test_an_encoding_of_the_client_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    pg_migrated_url: str,
    clock: Clock,
    encoding: str,
    style: str,
    where: str,
) -> None:
    url = pg_migrated_url
    if where == "URL":
        url = f"{url}&client_encoding={encoding}"
    else:
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
    store = open_face(style, url)
    args = encode({"text": TEXT})
    store.enqueue([job(args=args, unique=Unique(key=TEXT))], now=clock.now)
    store.enqueue([job(args=args)] * 120, now=clock.now)  # by COPY
    held = take(store, clock.now, 200)
    assert {(one.task, one.args) for one in held} == {(TASK, args.decode())}
    assert store.get(held[0].id).unique_key == TEXT
    settle(store, clock.now, fail(held[0], encode({"type": "E", "message": TEXT})))
    assert TEXT in str(store.get(held[0].id).error)
    rung: list[bool] = []
    bell = store.bell(lambda: rung.append(True))
    bell.start()
    try:
        until(lambda: rung)
    finally:
        bell.stop()
        store.close()


def test_a_worker_knows_its_tasks_whatever_the_environment_says(
    tmp_path: Path, pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    (tmp_path / "shop.py").write_text(APPLICATION, "utf-8")
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    monkeypatch.setenv("TENURE_URL", pg_migrated_url)
    monkeypatch.setenv("PYTHONUTF8", "1")
    with open_store(pg_migrated_url) as store:
        [added] = store.enqueue([job(task="app.echo", args=encode({"text": TEXT}))])
        worker = subprocess.Popen(
            [TENURE, "worker", "shop:app"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(lambda: store.get(added.id).state.final)
        finally:
            worker.terminate()
            worker.wait()
        assert store.get(added.id).state is State.SUCCEEDED
        assert decode(store.get(added.id).result_json or "") == TEXT + "!"


@pytest.fixture
def foreign_url(pg_server: Server, encoding: str) -> Iterator[str]:
    """A database of another encoding."""
    name = f"tenure_{encoding.lower()}"
    with psycopg.connect(pg_server.url(), autocommit=True) as admin:
        admin.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0")
    yield pg_server.url(name)
    pg_server.drop_database(pg_server.url(name))


@pytest.mark.parametrize("style", ["postgres-sync", "postgres-async"])
def test_a_database_of_another_encoding_is_refused(
    foreign_url: str, encoding: str, style: str
) -> None:
    store = open_face(style, foreign_url)
    try:
        for call in (store.migrate, store.about, lambda: store.enqueue([job()])):
            with pytest.raises(ConfigError, match=f"is {encoding}, .* encoding 'UTF8'"):
                call()
    finally:
        store.close()
    with psycopg.connect(foreign_url) as admin:
        assert admin.execute("select to_regnamespace('tenure')").fetchone() == (None,)


@pytest.mark.parametrize("command", ["doctor", "db migrate", "ls"])
def test_a_command_names_the_fix(foreign_url: str, encoding: str, command: str) -> None:
    done = subprocess.run(
        [TENURE, "--url", foreign_url, *command.split()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert f"is {encoding}, and Tenure needs UTF8" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_borrowed_connection_without_an_encoding_is_refused(
    connect: Any, pg_migrated_url: str
) -> None:
    connection = connect(pg_migrated_url, client_encoding="SQL_ASCII")
    with (
        open_store(pg_migrated_url) as store,
        pytest.raises(InvalidInput, match=r"client_encoding .* set it to UTF8"),
    ):
        store.enqueue([job()], on=connection)
    connection.close()


def test_a_borrowed_connection_of_asyncpg_without_an_encoding_is_refused(
    pg_server: Server, pg_migrated_url: str
) -> None:
    async def enqueue() -> None:
        connection = await asyncpg.connect(
            host=str(pg_server.directory), port=pg_server.port, user="postgres",
            database=database_name(pg_migrated_url),
            server_settings={"client_encoding": "SQL_ASCII"},
        )  # fmt: skip
        try:
            async with connection.transaction():
                await store.enqueue([job()], on=connection)
        finally:
            await connection.close()
            await store.close()

    from tenure.store import open_async_store

    store = open_async_store(pg_migrated_url)
    with pytest.raises(InvalidInput, match=r"client_encoding .* set it to UTF8"):
        asyncio.run(enqueue())
