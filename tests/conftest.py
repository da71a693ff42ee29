"""Fixtures that every test may ask for.

A PostgreSQL server starts only when a test asks for one of the `pg_` fixtures, once per xdist
worker.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tenure.store import Store
from tests.processes.crew import Crew
from tests.support.pgbouncer import Bouncer
from tests.support.postgres import Server, usual_place
from tests.support.recycled import Recycled
from tests.support.stores import QUICK, STYLES, Clock, open_face, url_of

RECYCLING = {
    "bells", "borrowing", "cli", "client", "contract", "crash", "faults", "gates", "processes",
    "schedules", "testing", "tour", "transfer", "wire", "worker", "workflows",
}  # fmt: skip
"""Folders whose tests leave no process behind that could come back to the database. A database
whose schema or settings have changed is not used again: see recycled.py."""
ASYNC = {"postgres-async", "psycopg-async"}
COUNTED = "counted: "
Count = Callable[[str, int], None]
POOLED = {"postgres-sync", "psycopg", *ASYNC}

# A busy machine is not a failing test.
settings.register_profile("tenure", deadline=None)
settings.load_profile("tenure")

# The files of tests are in memory if there is room: on a disk, most of the time was waiting for its
# syncs. The tests of power loss need no disk.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(usual_place(durable=False)))

# A shell that starts the tests in the background lets them ignore Ctrl-C, and `nohup` a hangup.
# What they start would inherit that: programs whose interruption is tested. What is not ignored
# here, they do not inherit.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` takes a share of the layers with thousands of cases; `make trust` takes all."""
    parser.addoption("--whole", action="store_true", help="every case, not a share of them")
    parser.addoption("--times", action="store_true", help="say how long each folder took")
    parser.addoption(
        "--pooler",
        action="store_true",
        help="only PostgreSQL, through PgBouncer: ?pooler=transaction",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --pooler, tests that do not go through it are left out.

    Without --whole, a test that runs in every style runs in those of the inner loop and in one
    other, unless it was asked for by name. Several processes begin with the long tests, so that
    none of them is the last. Of the contract on PostgreSQL, one test of four is in the inner loop.
    """
    for item in items:
        params = getattr(item, "callspec", None)
        if params is not None and params.params.get("style") == "postgres-async" and crc(item) % 4:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    whole = bool(config.getoption("--whole"))
    if config.getoption("--pooler"):
        kept = [item for item in items if goes_through_pooler(item, whole=whole)]
    else:
        by_name = config.getoption("keyword") or any("::" in each for each in config.args)
        kept = [item for item in items if whole or by_name or has_share(item)]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Each xdist_group runs in one process. The version of pytest-xdist fits that of pytest."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if hasattr(session.config, "workerinput") and any("@" not in each.nodeid for each in grouped):
        raise pytest.UsageError("pytest-xdist does not group tests: see constraints.txt")


def has_share(item: pytest.Item) -> bool:
    """Does this test run in `make test`? Of the styles besides those in QUICK: in one of them."""
    params = getattr(item, "callspec", None)
    style = params.params.get("style") if params is not None else None
    others = [each for each in STYLES if each not in QUICK]
    return style not in others or others[crc(item, style) % len(others)] == style


def goes_through_pooler(item: pytest.Item, *, whole: bool) -> bool:
    """Is this a test on PostgreSQL? For a share of them: in one colour, and every 24th."""
    params = getattr(item, "callspec", None)
    if params is None or "reach" not in getattr(item, "fixturenames", ()):
        return False
    styles = {str(value) for value in params.params.values()} & POOLED
    if whole or not styles:
        return bool(styles)
    return not styles & ASYNC and crc(item) % 24 == 0


def crc(item: pytest.Item, without: str = "") -> int:
    """A number of the test that stays the same, whatever the value of one of its parameters is."""
    return zlib.crc32(item.nodeid.replace(without, "").encode())


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Is every case wanted, and not a share of them?"""
    return bool(pytestconfig.getoption("--whole"))


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """Count something; the sum over all tests is told in the end."""
    return lambda what, number: record_property(f"{COUNTED}{what}", number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what tests have counted, also in other processes."""
    sums: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, number in report.user_properties:
            if name.startswith(COUNTED):
                sums[name.removeprefix(COUNTED)] += int(str(number))
    for what, number in sorted(sums.items()):
        terminalreporter.write_line(f"counted: {number:,} {what}")
    if terminalreporter.config.getoption("--times"):
        write_times(terminalreporter)


def write_times(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many tests each folder has, and how long they took, one after the other."""
    tests: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = Path(report.location[0]).parent.name
                seconds[folder] += report.duration
                tests[folder] += report.when == "call"
    terminalreporter.section("seconds of each folder")
    for folder, spent in sorted(seconds.items(), key=lambda each: -each[1]):
        terminalreporter.write_line(f"{folder:<12} {tests[folder]:6} tests {spent:8.1f} s")


def migrate(url: str) -> None:
    """Bring an empty database to the current schema, and leave no connection behind."""
    from tenure.store import open_store

    store = open_store(url)
    try:
        store.migrate()
    finally:
        store.close()


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Server]:
    """A running PostgreSQL server, private to this test process."""
    with Server() as server:
        yield server


@pytest.fixture
def pg_url(pg_server: Server) -> Iterator[str]:
    """The address of a fresh empty database, dropped after the test."""
    url = pg_server.create_database()
    yield url
    pg_server.drop_database(url)


@pytest.fixture(scope="session")
def pg_template(pg_server: Server) -> str:
    """The address of a migrated database, to copy and never to connect to."""
    url = pg_server.create_database()
    migrate(url)
    return url


@pytest.fixture(scope="session")
def recycled(pg_server: Server, pg_template: str) -> Iterator[Recycled]:
    """Migrated databases for tests that stay in one process."""
    databases = Recycled(pg_server, pg_template)
    yield databases
    databases.close()


@pytest.fixture
def pg_migrated_url(
    pg_server: Server, pg_template: str, recycled: Recycled, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The address of a fresh migrated database."""
    if request.path.parent.name in RECYCLING and not request.config.getoption("--pooler"):
        url = recycled.take()
        yield url
        recycled.give_back(url)
    else:
        url = pg_server.create_database(template=pg_template)
        yield url
        pg_server.drop_database(url)


@pytest.fixture(scope="session")
def reach(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """How a store reaches a database of the server: directly or, with --pooler, by PgBouncer."""
    if request.config.getoption("--pooler"):
        with Bouncer(request.getfixturevalue("pg_server")) as bouncer:
            yield bouncer.url
    else:
        yield str


@pytest.fixture(
    params=[pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in STYLES]
)
def style(request: pytest.FixtureRequest) -> str:
    """The store and calling style under test; a test that asks for it runs once per style.

    The styles that are not in QUICK are marked slow.
    """
    return str(request.param)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, to copy and never to open: to make one takes many syncs."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def store_url(
    style: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    reach: Callable[[str], str],
    sqlite_template: Path,
) -> str:
    """The address of a fresh, migrated store of this style."""
    pg_url, path = None, tmp_path / "jobs.db"
    if style.startswith("postgres"):
        pg_url = reach(request.getfixturevalue("pg_migrated_url"))
    else:
        shutil.copy(sqlite_template, path)
    return url_of(style, str(path), pg_url)


@pytest.fixture
def store(style: str, store_url: str) -> Iterator[Store]:
    """A fresh store, in every style, behind the same face."""
    opened = open_face(style, store_url)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh store; a test that asks for it runs once per database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_migrated_url"))


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes that end with the test."""
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    """Time in the test's hands."""
    return Clock()
