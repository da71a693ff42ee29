"""The training of `examples/training.py`, killed at random: its model is that of a quiet hour."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples import training
from examples.training import Model
from tenure.codec import decode
from tenure.job import State
from tenure.store import Store, open_store
from tests.crash.cast import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EPOCHS, KILLS = 30, 3
KILL_WITHIN_SECONDS = 0.15
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_migrated_url"))


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Starts the example with these words. Whatever still runs ends with the test."""
    monkeypatch.setenv("TRAINING_FOLDER", str(tmp_path / "checkpoints"))
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.training", *words], cwd=ROOT, text=True,
            env={**os.environ, "TENURE_URL": url}, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def undisturbed(seed: int) -> training.Weights:
    """What a training without a crash would have brought."""
    weights = (0.0, 0.0)
    for epoch in range(EPOCHS):
        for batch in range(training.ROWS // training.BATCH):
            weights, _ = training.descend(weights, training.rows(seed, epoch, batch))
    return weights


def kill_once_it_has_come_further(store: Store, id: int, worker: subprocess.Popen[str]) -> None:
    """At a random moment of an epoch."""
    before = len(store.steps(id))
    until(lambda: len(store.steps(id)) > before, "one more epoch")
    time.sleep(random.uniform(0, KILL_WITHIN_SECONDS))
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def test_a_training_that_is_killed_at_random_goes_on_from_its_checkpoint(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _ = run("start", str(EPOCHS)).communicate(timeout=60)
    id = int(told.split()[1])
    with open_store(url) as store:
        for _ in range(KILLS):
            kill_once_it_has_come_further(store, id, run("work"))
        last = run("work")
        until(lambda: store.get(id).state.final, "the end of the training")
        job, steps = store.get(id), store.steps(id)
        story = [event.kind for event in store.timeline(id)]
    last.send_signal(signal.SIGTERM)
    assert last.wait(60) == 0

    assert (job.state, job.attempts) == (State.SUCCEEDED, job.crashes + 1)
    assert job.crashes >= KILLS
    assert story.count("retried") == 0, "the GPU was asked twice at once, or a file was missing"
    names = ["seed", "begin", *(f"epoch {n}" for n in range(EPOCHS))]
    assert [step.name for step in steps] == names
    assert len({step.token for step in steps}) >= KILLS, "every attempt has brought it further"
    model = decode(job.result or "", Model)
    monkeypatch.setattr(training, "BATCH_SECONDS", 0.0)
    assert training.read(model.checkpoint) == undisturbed(model.seed)
    assert model.checkpoint.loss < 0.1
