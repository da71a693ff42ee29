"""The corpus of `examples/corpus.py`, with three workers and one GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.rules.job import State
from tenure.store import open_store
from tests.support.patience import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[2]
TEXTS, WORKERS = 60, 3

pytestmark = pytest.mark.slow


def test_a_corpus_is_taken_in_once_and_in_order(url: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "urgent").mkdir(parents=True)
    for n in range(TEXTS):
        (texts / f"{n}.txt").write_text(f"text {n}")
    (texts / "twin.txt").write_text("text 7")
    (texts / "urgent" / "now.txt").write_text("help")
    env = {**os.environ, "TENURE_URL": url, "GPU_BUSY": str(tmp_path / "gpu-busy")}

    def run(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "examples.corpus", *words]
        return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE)

    added = [run("add", str(texts)).communicate(timeout=PATIENCE_SECONDS)[0] for _ in range(2)]
    assert added == [
        f"{TEXTS + 1} of {TEXTS + 2} texts are new\n", f"0 of {TEXTS + 2} texts are new\n",
    ]  # fmt: skip

    workers = [run("work") for _ in range(WORKERS)]
    try:
        with open_store(url) as store:
            until(lambda: not store.count_live(), "all texts were taken in")
            until(lambda: len(store.workers()) == WORKERS, "each worker has begun")
            jobs = store.list_jobs(limit=1000).jobs
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(PATIENCE_SECONDS) for worker in workers]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.close()
    assert codes == [0] * WORKERS
    assert [job.state for job in jobs] == [State.SUCCEEDED] * (TEXTS + 1)
    first = min(jobs, key=lambda job: (job.claimed_at, job.id))
    assert first.args == {"text": "help"}
