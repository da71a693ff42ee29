"""The benchmark of searches finds what it says, at tiny sizes."""

from __future__ import annotations

import pytest

from bench import lookups
from bench.workloads.place import KINDS, Kind, fresh_place
from tests.support.postgres import Server
from tests.unit.test_bench_workloads import SharedLab


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_search_has_a_figure(
    pg_server: Server, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.look.find.SCAN_SECONDS", 1e9)  # the machine may be busy
    with SharedLab(pg_server, f"lookups.{kind}") as lab:
        lab.sizes = (200, 2000)
        results = {result.name: result for result in lookups.run(lab)}
    assert set(results) == {f"lookups.{kind}.{name}" for name in lookups.FIGURES}
    assert all(result.ratio > 0 for result in results.values())
    found = {name: result.detail or {} for name, result in results.items()}
    assert all(detail["finished"] == 2000 for detail in found.values())
    assert {name for name, detail in found.items() if not detail["jobs"]} <= {
        f"lookups.{kind}.worker_rare"
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_are_jobs(pg_server: Server, kind: Kind) -> None:
    with SharedLab(pg_server) as lab, fresh_place(lab, kind) as place:
        lookups.fill(place, 500)
        jobs = place.store.list_jobs(limit=1000)
        assert len(jobs.jobs) == 550
        assert {str(job.state) for job in jobs} == {
            "succeeded", "failed", "queued", "scheduled", "running",
        }  # fmt: skip
