"""The benchmarks answer in the form that scripts read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"name", "value", "unit", "ratio", "against", "spread"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_every_benchmark_is_listed() -> None:
    done = bench("list")
    assert done.returncode == 0
    assert "engine.postgres.claim_settle" in done.stdout
    assert "engine.sqlite.enqueue" in done.stdout


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
