"""What `tenure bench` says about its figures, where it works, and what it counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure.benchmark.figures import LABELS, UNITS, Figure, percentile, summarise, verdict
from tenure.benchmark.measure import Plan, _Bench
from tenure.benchmark.scratch import PostgresScratch, Scratch, SQLiteScratch, scratch_on
from tenure.errors import ConfigError, MeasurementFailed, StoreUnavailable
from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.support.plain import Plain


def figures(**values: float) -> list[Figure]:
    """Figures by their names, written with _ for the dot."""
    named = {name.replace("_", ".", 1): value for name, value in values.items()}
    return [Figure(name, value, UNITS[name], value, value) for name, value in named.items()]


def test_a_figure_is_the_median_with_the_extremes() -> None:
    assert summarise({"drain.async": [3000.0, 1000.0, 2000.4], "wal": []}) == [
        Figure("drain.async", 2000.0, "jobs/s", 1000.0, 3000.0)
    ]


def test_every_figure_has_its_label() -> None:
    assert list(LABELS) == list(UNITS)


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (50, 51.0), (99, 100.0), (100, 100.0)]
)  # fmt: skip
def test_a_percentile(percent: int, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == value


def test_one_value_is_every_percentile() -> None:
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (figures(enqueue_one=1.0, limit_commits=1e5, worker_cpu=60.0), None),
        (figures(enqueue_one=1.0, limit_commits=1e5, limit_round_trip=0.1), None),
        (
            figures(enqueue_one=1.0, limit_commits=1e5, worker_cpu=97.0),
            "Limits: draining is limited by the worker's CPU (97 % of a core per process).",
        ),
        (
            figures(enqueue_one=2.0, limit_commits=500.0, limit_round_trip=0.1),
            "Limits: one-by-one enqueue is limited by the commit (about 1.9 of 2 ms).",
        ),
        (
            figures(enqueue_one=4.0, limit_commits=800.0, limit_round_trip=1.1),
            "Limits: one-by-one enqueue is limited by round trips (3.3 of 4 ms).",
        ),
        (
            figures(enqueue_one=1.0, limit_commits=1000.0, worker_cpu=90.0),
            (
                "Limits: draining is limited by the worker's CPU (90 % of a core per process); "
                "one-by-one enqueue is limited by the commit (about 1 of 1 ms)."
            ),
        ),
    ],
)
def test_it_says_what_limits_only_when_it_shows(measured: list[Figure], said: str | None) -> None:
    assert verdict(measured) == said


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://a@h/d", "postgresql://a@h/d?schema={}"),
        ("postgresql://a@h/d?schema=mine", "postgresql://a@h/d?schema={}"),
        (
            "postgres://a@h/d?sslmode=require&schema=mine&pooler=transaction",
            "postgres://a@h/d?sslmode=require&pooler=transaction&schema={}",
        ),
    ],
)
def test_a_schema_of_its_own(url: str, expected: str) -> None:
    scratch = scratch_on(url, give_up_seconds=1.0)
    assert isinstance(scratch, PostgresScratch)
    assert scratch.schema.startswith("tenure_bench_")
    assert scratch.url == expected.format(scratch.schema)
    scratch.remove()  # nothing was made, and nobody is asked


def test_a_folder_of_its_own_on_the_disk_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk 1").mkdir()
    (tmp_path / "jobs.db").symlink_to(tmp_path / "disk 1" / "real.db")
    monkeypatch.chdir(tmp_path)
    scratch = scratch_on("sqlite:///jobs.db?synchronous=NORMAL", give_up_seconds=1.0)
    assert isinstance(scratch, SQLiteScratch)
    assert scratch.folder.parent == (tmp_path / "disk 1").resolve()
    scratch.create()
    with open_store(scratch.url) as store:
        assert store.about().engine == "SQLite"
        assert (scratch.folder / "jobs.db").exists()
    scratch.remove()
    scratch.remove()
    assert list((tmp_path / "disk 1").iterdir()) == []


def test_addresses_that_are_none() -> None:
    with pytest.raises(ConfigError, match="start with sqlite"):
        scratch_on("mysql://h/d", give_up_seconds=1.0)
    with pytest.raises(ConfigError, match="names a host"):
        scratch_on("sqlite://jobs.db", give_up_seconds=1.0)
    with pytest.raises(StoreUnavailable, match="there is no folder"):
        scratch_on("sqlite:///no/such/folder/jobs.db", give_up_seconds=1.0).create()


@pytest.fixture(params=["sqlite", "postgres"])
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scratch]:
    """A place on each database, removed with it."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("pg_url")
    made = scratch_on(url, give_up_seconds=5.0)
    made.create()
    yield made
    made.remove()


def test_a_job_that_ran_twice_is_noticed(scratch: Scratch) -> None:
    bench = _Bench(scratch, Plan(), lambda: None, ExitStack())
    with open_store(scratch.url) as store:
        store.migrate()
        store.enqueue([NewJob(task="a.b"), NewJob(task="a.b")])
        with pytest.raises(MeasurementFailed, match=r"has 4 live and 0 finished"):
            bench._audit(0)  # a job and its ticket
        [first, second] = store.claim("w-1", {"default": 2})[0].jobs
        store.settle("w-1", [lifecycle.succeed(first)])
        store.settle("w-1", [lifecycle.retry(second, encode("bad"), 0.0)])
        store.promote()
        [again] = store.claim("w-1", {"default": 2})[0].jobs
        store.settle("w-1", [lifecycle.succeed(again)])
        found = scratch.count()
    assert (found.live, found.finished, found.ran_once, found.events) == (0, 2, 1, 1)
    with pytest.raises(MeasurementFailed, match=r"2 finished ones, 1 at the first attempt"):
        bench._audit(2)


def test_the_bare_speed_can_be_asked_for(scratch: Scratch) -> None:
    scratch.ask()
    scratch.commit()
    assert (scratch.log_bytes() is None) is not scratch.has_round_trips


def test_what_is_left_behind_is_named(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = PostgresScratch(pg_url, 0.0)
    scratch.create()
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "_conninfo", "postgresql://postgres@127.0.0.1:1/nowhere")
        with pytest.raises(StoreUnavailable, match=f"drop schema {scratch.schema} cascade"):
            scratch.remove()
    scratch.remove()
    with Plain(pg_url) as plain:
        assert plain.one("select count(*) from pg_namespace where nspname ~ 'bench'") == 0


def test_a_role_that_may_not_see_the_log(pg_url: str) -> None:
    with Plain(pg_url) as plain:
        plain.rows("revoke execute on function pg_current_wal_lsn from public")
        plain.rows("create role measurer login")
        try:
            database = plain.one("select current_database()")
            plain.rows(f"grant create on database {database} to measurer")
            url = pg_url.replace("//postgres@", "//measurer@")
            scratch = scratch_on(url, give_up_seconds=5.0)
            scratch.create()
            assert scratch.log_bytes() is None
            scratch.commit()
            scratch.remove()
            assert plain.one("select count(*) from pg_namespace where nspname ~ 'bench'") == 0
        finally:
            plain.rows("drop owned by measurer cascade")
            plain.rows("drop role measurer")
