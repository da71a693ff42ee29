"""Which database: the argument, or TENURE_URL. Nothing is opened before it is needed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.errors import ConfigError, SchemaMissing


def test_the_environment_names_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenure()  # at import, before anybody has said where
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'env.db'}")
    with app:
        assert app.list_jobs().jobs == ()
    assert (tmp_path / "env.db").exists()


def test_the_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'env.db'}")
    with Tenure(f"sqlite:///{tmp_path / 'argument.db'}") as app:
        app.list_jobs()
    assert [file.name for file in tmp_path.iterdir()] == ["argument.db"]


def test_a_warning_says_that_the_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'argument.db'}"
    monkeypatch.setenv("TENURE_URL", "postgresql://me:secret@host/db")
    with Tenure(url) as app:
        app.migrate()
        app.list_jobs()
    [record] = caplog.records
    assert "and the code wins; write Tenure() to use TENURE_URL" in record.getMessage()
    assert "secret" not in record.getMessage()
    caplog.clear()
    other = Tenure("sqlite:///never.db")
    other.use_url(url)
    monkeypatch.setenv("TENURE_URL", "sqlite:///never.db")
    with other, Tenure(url) as same:
        other.list_jobs()
        monkeypatch.setenv("TENURE_URL", url)
        same.list_jobs()
    assert caplog.records == []


def test_a_look_creates_nothing_in_the_file_of_another_program(tmp_path: Path) -> None:
    """Seen failing without the check: 24 tables were created."""
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute("create table theirs (x)")
        theirs.commit()
    before = file.read_bytes()
    app = Tenure(f"sqlite:///{file}")

    @app.task()
    def work() -> None: ...

    for look in (app.list_jobs, app.count_live, lambda: app.get(1)):
        with pytest.raises(SchemaMissing, match="belongs to another program"):
            look()
    with pytest.raises(SchemaMissing):
        asyncio.run(app.list_jobs_async())
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.db"]
    assert file.read_bytes() == before
    with app:
        with pytest.raises(SchemaMissing, match="belongs to another program"):
            work.enqueue()
        app.migrate()
        work.enqueue()
        assert len(app.list_jobs().jobs) == 1
    with Tenure(app.url) as again:
        assert len(again.list_jobs().jobs) == 1


@pytest.mark.parametrize("value", [None, ""])
def test_without_any_the_error_says_what_to_do(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("TENURE_URL", value)
    app = Tenure()

    @app.task()
    def work() -> None: ...

    with pytest.raises(ConfigError, match=r"use Tenure\('sqlite:///jobs.db'\) or set TENURE_URL"):
        work.enqueue()
    with pytest.raises(ConfigError):
        asyncio.run(work.enqueue_async())
    app.close()  # there is nothing to close
    asyncio.run(app.close_async())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (5, "url must be a string, not 5"),
        (Path("jobs.db"), "url must be a string, not PosixPath"),
        ("jobs.db", "must start with sqlite:/// or .*; this one has no scheme; write sqlite:///jobs.db"),
        ("/srv/jobs.db", "write sqlite:////srv/jobs.db"),
        ("host=h password=hunter2", "list of keywords; write postgresql://USER:PASSWORD@HOST/DATABASE$"),
        ("mysql://localhost/jobs", "must start with sqlite:/// or .*; mysql:// is not supported"),
        ("postgresql+psycopg://h/jobs", r"remove \+psycopg and write postgresql://\.\.\."),
        ("postgres+asyncpg://h/jobs", r"remove \+asyncpg and write postgres://\.\.\."),
        ("sqlite+aiosqlite:///jobs.db", r"remove \+aiosqlite and write sqlite:///\.\.\."),
        ("sqlite:jobs.db", "write sqlite:///jobs.db$"),
        ("sqlite:/jobs.db", "sqlite:///jobs.db, or sqlite:////jobs.db for an absolute path$"),
        ("sqlite://jobs.db", "write sqlite:///jobs.db"),
        ("sqlite://[x/y.db", "the URL cannot be read"),
        ("sqlite:///jobs.db?colour=red", "unknown option 'colour'"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used(url: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tenure(url).list_jobs()


@pytest.mark.parametrize("url", ["jobs.db", "mysql://localhost/jobs", "SQLITE:///jobs.db", " "])
def test_the_address_of_another_database_is_refused_before_it_is_used(url: str) -> None:
    with pytest.raises(ConfigError, match="must start with sqlite:/// or postgresql://"):
        Tenure(url)


def test_a_url_is_not_shown_because_it_may_hold_a_password() -> None:
    with pytest.raises(ConfigError) as refusal:
        Tenure("mysql://root:hunter2@localhost/jobs").list_jobs()
    assert "hunter2" not in str(refusal.value)


def test_a_tenant_is_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave it out for an application of all tenants"):
        Tenure(f"sqlite:///{tmp_path / 'jobs.db'}", tenant="")


def test_an_empty_postgres_database_wants_to_be_migrated(pg_url: str) -> None:
    with Tenure(pg_url) as app:
        with pytest.raises(SchemaMissing, match="migrate"):
            app.list_jobs()
        app.migrate()
        assert app.list_jobs().jobs == ()


def test_declaring_tasks_opens_nothing(tmp_path: Path) -> None:
    """Neither a database nor its driver: `import` stays cheap and harmless."""
    code = """
import sys
from tenure import Tenure
app = Tenure("sqlite:///never.db")
@app.task()
def work() -> None: ...
print([name for name in ("psycopg", "sqlalchemy", "django") if name in sys.modules])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")
    assert list(tmp_path.iterdir()) == []
