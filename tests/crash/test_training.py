"""The pipeline of `examples/training.py`, killed at random: its model is that of a quiet hour."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from examples import training
from examples.training import Data, Model
from tenure.rules.codec import decode
from tenure.rules.graph import Outcome
from tenure.rules.job import State
from tenure.store import Store, open_store
from tests.support.audit import audit
from tests.support.patience import PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EPOCHS = 30
NODES = ["prepare", "train", "evaluate", "publish"]
KILLS_OF_THE_TRAINING = 2
"""After the first one, which comes as it begins."""
KILL_WITHIN_SECONDS = 0.15
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(url: str) -> Iterator[str]:
    """A fresh database, audited after the test."""
    yield url
    audit(url)


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Starts the example with these words. Whatever still runs ends with the test."""
    monkeypatch.setenv("TRAINING_FOLDER", str(tmp_path / "training"))
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


def kill_at_random(store: Store, nodes: dict[str, int], run: Run, chance: random.Random) -> int:
    """Somewhere in each job, and some more times in the long one. Answers how often."""
    kills = 0

    def kill_once(begun: Callable[[], object], what: str) -> None:
        nonlocal kills
        worker = run("work")
        until(begun, what)
        time.sleep(chance.uniform(0, KILL_WITHIN_SECONDS))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        kills += 1

    for name, id in nodes.items():
        token = _token(store, id)
        kill_once(lambda: _has_begun(store, id, token), f"{name} has begun")  # noqa: B023
        if name == "train":
            for _ in range(KILLS_OF_THE_TRAINING):
                before = len(store.steps(id))
                kill_once(lambda: len(store.steps(id)) > before, "one more epoch")  # noqa: B023
    return kills


def _token(store: Store, id: int) -> int:
    return store.get(id).token


def _has_begun(store: Store, id: int, token: int) -> bool:
    """It is at an attempt that nobody has seen, or has ended."""
    job = store.get(id)
    return job.state.final or (job.state is State.RUNNING and job.token >= token)


def undisturbed(points: list[training.Point]) -> training.Weights:
    """What a training without a crash would have brought."""
    weights = (0.0, 0.0)
    for epoch in range(EPOCHS):
        shuffled = list(points)
        random.Random(epoch).shuffle(shuffled)
        for start in range(0, training.ROWS, training.BATCH):
            weights, _ = training.descend(weights, shuffled[start : start + training.BATCH])
    return weights


def diary(of: str) -> list[tuple[int, str]]:
    """(token, what) of each time that something of this kind was begun, in order."""
    lines = (training.folder() / "diary").read_text().splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return [(int(token), what) for token, what in pairs if what.startswith(of)]


@pytest.mark.parametrize("seed", [1])
def test_a_pipeline_that_is_killed_at_random_goes_on_and_publishes_once(
    url: str, run: Run, seed: int
) -> None:
    told = [
        run("start", "line", str(EPOCHS)).communicate(timeout=PATIENCE_SECONDS)[0] for _ in range(2)
    ]
    flow = int(told[0].split()[1])
    assert told == [f"workflow {flow}\n", f"workflow {flow} is already running\n"]
    with open_store(url) as store:
        nodes = {name: store.node_named(flow, name) for name in NODES}
        kills = kill_at_random(store, nodes, run, random.Random(seed))
        early = [file.read_text() for file in training.folder("registry").glob("*.json")]
        last = run("work")
        until(lambda: store.get_workflow(flow).outcome, "the end of the pipeline")
        until(lambda: last.pid in {each.pid for each in store.workers()}, "the last one is there")
        seen = store.get_workflow(flow)
        ends = store.list_nodes(flow).nodes
        jobs = {name: store.get(id) for name, id in nodes.items()}
        steps = store.steps(nodes["train"])
        stories = [event.kind for id in nodes.values() for event in store.timeline(id)]
    last.send_signal(signal.SIGTERM)
    assert last.wait(PATIENCE_SECONDS) == 0

    # each job once, after those before it
    assert seen.outcome is Outcome.SUCCEEDED
    assert {node.name: node.state for node in ends} == dict.fromkeys(NODES, State.SUCCEEDED)
    for node in ends:
        begun = jobs[node.name].claimed_at
        assert all(
            (end := job.finished_at) is not None and begun is not None and end <= begun
            for job in jobs.values() if job.id in node.after
        )  # fmt: skip
    assert stories.count("succeeded") == len(NODES)
    assert stories.count("retried") == 0, "the GPU was asked twice at once, or a file was missing"
    crashes = sum(job.crashes for job in jobs.values())
    assert crashes >= kills - len(NODES), "a kill that came after the end of its job"
    assert jobs["train"].crashes >= KILLS_OF_THE_TRAINING

    # no epoch that was recorded is trained again
    names = ["begin", *(f"epoch {n}" for n in range(EPOCHS))]
    assert [step.name for step in steps] == names
    assert len({step.token for step in steps}) >= KILLS_OF_THE_TRAINING
    for token, lines in groupby(diary("epoch"), key=lambda line: line[0]):
        epochs = [what for _, what in lines]
        known = sum(step.token < token for step in steps) - 1  # all but "begin"
        first = max(known, 0)
        assert epochs == [f"epoch {n}" for n in range(first, first + len(epochs))]

    # the model is the one that would have come out without any crash
    data = decode(jobs["prepare"].result_json or "", Data)
    model = decode(jobs["train"].result_json or "", Model)
    assert training.read(model.checkpoint.file) == [undisturbed(training.read(data.training))]
    loss = decode(jobs["evaluate"].result_json or "", float)
    assert loss < training.GOOD_ENOUGH

    # and the world has it once, from whoever came first
    [released] = training.folder("registry").glob("*.json")
    assert released.name == decode(jobs["publish"].result_json or "", str)
    assert early in ([], [released.read_text()])
    release = json.loads(released.read_text())
    assert (release["checkpoint"]["file"], release["test_loss"]) == (model.checkpoint.file, loss)
    assert release["token"] in {token for token, _ in diary("release")}
