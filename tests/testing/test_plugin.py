"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import page

SECONDS = 120.0
SHOP = """
from tenure import Tenure

app = Tenure("postgresql://nobody@localhost:1/nothing")  # never to be opened

@app.task()
def add(a: int, b: int) -> int:
    return a + b
"""
BOTH = """
import pytest

@pytest.fixture(params=["sqlite", "postgres"])
def tenure_url(request, tenure_url):
    if request.param == "sqlite":
        return tenure_url
    return request.getfixturevalue("tenure_postgres_url")
"""
TESTS = """
from shop import add, app
from tenure.testing import drain

def test_it(tenure_app, tenure_clock, tenure_url):
    assert tenure_app is app and app.url == tenure_url
    assert app.about().now == tenure_clock.now
    add.enqueue(1, 2)
    assert [job.result for job in drain(app)] == [3]

def test_again(tenure_app):
    assert app.list_jobs().jobs == ()
    app.cancel(add.enqueue(1, 2).id)
"""


def run(folder: Path, *options: str, **files: str) -> str:
    """Run pytest in a folder with these files. Answers what it says."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others take seconds to load
    # No summary: its lines are cut at the terminal's width, but not where CI is set.
    options = ("-r", "N", "-p", "tenure.testing.plugin", "-p", "no:cacheprovider", *options)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *options],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    return f"{done.stdout}\n{done.stderr}"


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("select nspname from pg_namespace where nspname ~ '^tenure'")
        return [name for (name,) in found]


@pytest.mark.slow
def test_an_application_is_tested_on_both_stores(
    tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_TEST_POSTGRES", pg_url)
    told = run(tmp_path, "-o", "tenure_app=shop:app", shop=SHOP, conftest=BOTH, test_shop=TESTS)
    assert re.search(r"^=+ 4 passed in", told, re.MULTILINE), told
    assert schemas(pg_url) == []


@pytest.mark.slow
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_TEST_POSTGRES", raising=False)
    told = run(
        tmp_path,
        conftest=BOTH,
        shop=SHOP,
        test_shop="def test_server(tenure_postgres_url): ...\ndef test_app(tenure_app): ...",
    )
    assert "3 errors in" in told
    assert told.count("tenure_postgres_url needs a database: --tenure-postgres postgresql://") == 2
    assert told.count("tenure_app needs to know the application: tenure_app = module:name") == 1
    told = run(tmp_path, "-o", "tenure_app=shop:SHOP", "-k", "app and sqlite", shop="SHOP = 3")
    assert "tenure_app = shop:SHOP is not an application, but 3" in told


@pytest.mark.slow
def test_a_failed_assertion_points_at_the_test(tmp_path: Path) -> None:
    """Frames of ours are left out, and the handler's own error shows its line."""
    told = run(
        tmp_path, "-o", "tenure_app=shop:app", "--tb=short",
        shop=SHOP + "\n@app.task()\ndef bad() -> None:\n    raise OSError('mine')\n",
        test_shop="import shop\nfrom tenure.testing import assert_enqueued, drain\n"
        "def test_assert(tenure_app):\n    assert_enqueued(tenure_app, shop.add)\n"
        "def test_raise(tenure_app):\n    shop.bad.enqueue()\n    drain(tenure_app)\n",
    )  # fmt: skip
    assert "2 failed" in told
    assert "test_shop.py:4: in test_assert" in told
    assert "look.py" not in told
    assert "raise OSError('mine')" in told
    assert "in job 1 of shop.bad, attempt 1" in told


def test_pytest_finds_the_plugin_by_itself(pytestconfig: pytest.Config) -> None:
    found = {
        str(plugin): distribution.project_name
        for plugin, distribution in pytestconfig.pluginmanager.list_plugin_distinfo()
    }
    assert [found[name] for name in found if "tenure.testing.plugin" in name] == ["tenure"]


def test_a_run_of_pytest_that_does_not_use_it_pays_nothing() -> None:
    """The plugin is loaded by every run of pytest in an environment that has Tenure."""
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import tenure.testing.plugin\n"
        "print(sorted(name for name in set(sys.modules) - before if 'tenure' in name))\n"
        "print(sorted({'psycopg', 'apsw', 'msgspec', 'click', 'asyncio'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout.splitlines() == [
        "['tenure', 'tenure.testing', 'tenure.testing.plugin']",
        "[]",
    ], done.stderr


@pytest.mark.slow
def test_the_tests_of_the_page_pass_on_the_server_that_the_option_names(
    tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snippets as they are printed, in files as they are named there."""
    monkeypatch.setenv("TENURE_TEST_POSTGRES", "postgresql://nobody@localhost:1/nothing")
    how_to = page("docs/how-to/testing.md")
    [settings] = [block.text for block in how_to.blocks if block.marks == ("toml",)]
    (tmp_path / "pyproject.toml").write_text(settings, "utf-8")
    files = {each.file.removesuffix(".py"): each.code for each in how_to.snippets}
    files.pop("snippet")
    assert set(files) == {"shop", "conftest", "test_shop", "test_inline"}
    told = run(tmp_path, f"--tenure-postgres={pg_url}", **files)
    assert re.search(r"^=+ 12 passed in", told, re.MULTILINE), told
