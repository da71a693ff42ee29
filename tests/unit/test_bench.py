"""The benchmarks answer in the form that scripts read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"name", "value", "unit", "ratio", "against", "spread"}
WORKER_FIGURES = ("async", "thread", "pickup", "pickup_p99")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_every_benchmark_is_listed() -> None:
    done = bench("list")
    assert done.returncode == 0
    listed = set(re.split(r"[,\s]+", done.stdout))
    assert listed >= {"engine.postgres.claim_settle", "engine.sqlite.enqueue", "worker.idle_cpu"}
    for store in ("postgres", "sqlite"):
        assert listed >= {f"worker.{store}.{what}" for what in WORKER_FIGURES}


def test_an_unknown_benchmark_is_refused() -> None:
    done = bench("no.such")
    assert done.returncode == 2
    assert "bench list" in done.stderr


@pytest.mark.slow
def test_a_result_is_one_line_of_json() -> None:
    done = bench("engine.sqlite.enqueue", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    result = msgspec.json.decode(line)
    lowest, highest = result["spread"]
    assert set(result) == KEYS
    assert result["name"] == "engine.sqlite.enqueue"
    assert 0 < lowest <= result["ratio"] <= highest
    assert "fsyncs/s" in done.stderr


@pytest.mark.slow
def test_a_worker_is_compared_with_the_engine() -> None:
    done = bench("worker.sqlite.async", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    results = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [result["name"] for result in results] == [
        "worker.sqlite.async", "worker.sqlite.thread", "worker.sqlite.unused_kinds",
        "worker.sqlite.by_name_unused_kinds",
    ]  # fmt: skip
    for result in results:
        lowest, highest = result["spread"]
        assert 0 < lowest <= result["ratio"] <= highest
        against = "the same" if "unused" in result["name"] else "engine's claim and settle"
        assert result["against"].startswith(against)
