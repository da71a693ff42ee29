"""A model is trained on the one GPU of the fleet, is killed at any time, and goes on.

    TENURE_URL=sqlite:///training.db python -m examples.training start EPOCHS
    TENURE_URL=sqlite:///training.db python -m examples.training work        # as many as you like
    TENURE_URL=sqlite:///training.db python -m examples.training show

- *Each epoch is a step*: what is recorded is not trained again. A worker that dies costs the epoch
  that it was at, and the job goes on from the last checkpoint, on any machine.
- *Large things are files*: a step returns the name of its checkpoint. The token in the name keeps
  an attempt that woke up late from overwriting what its successor wrote.
- *What is random is a step of its own*: all attempts train with the same seed, so the model is the
  one that would have come out without any crash.
- *The GPU trains one at a time*: the gate sees to that in the whole fleet.
"""

import fcntl
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tenure import Gate, Running, Tenure, Worker

GPU = Gate("gpu", max_running=1)
ROWS, BATCH, RATE = 200, 20, 0.1
BATCH_SECONDS = 0.01

app = Tenure()  # on the database that TENURE_URL names


@dataclass(frozen=True)
class Checkpoint:
    """What is known after an epoch. The weights are in the file."""

    file: str
    loss: float


@dataclass(frozen=True)
class Model:
    """The result: the last checkpoint, and how it came to be."""

    checkpoint: Checkpoint
    seed: int
    epochs: int


Weights = tuple[float, float]


@app.task(queue="gpu", gate=GPU, isolation="process", max_attempts=1000)
def train(job: Running, epochs: int) -> Model:
    """A long job: hours, on a real GPU."""
    seed = job.step("seed", random.randrange, 2**32)
    last = job.step("begin", write, job, "begin", (0.0, 0.0), 0.0)
    for epoch in range(epochs):
        last = job.step(f"epoch {epoch}", train_epoch, job, epoch, seed, last)
        job.progress((epoch + 1) / epochs, f"epoch {epoch + 1} of {epochs}, loss {last.loss:.4f}")
    return Model(last, seed, epochs)


def train_epoch(job: Running, epoch: int, seed: int, last: Checkpoint) -> Checkpoint:
    """From one checkpoint to the next."""
    weights, loss = read(last), 0.0
    with gpu():
        for batch in range(ROWS // BATCH):
            job.check()  # raises when the job was cancelled, or is another's by now
            weights, loss = descend(weights, rows(seed, epoch, batch))
    return write(job, f"epoch-{epoch}", weights, loss)


def descend(weights: Weights, batch: list[tuple[float, float]]) -> tuple[Weights, float]:
    """One step of gradient descent: the GPU's work."""
    time.sleep(BATCH_SECONDS)
    slope, shift = weights
    errors = [(slope * x + shift - y, x) for x, y in batch]
    slope -= RATE * sum(error * x for error, x in errors) / len(batch)
    shift -= RATE * sum(error for error, _ in errors) / len(batch)
    return (slope, shift), sum(error * error for error, _ in errors) / len(batch)


def rows(seed: int, epoch: int, batch: int) -> list[tuple[float, float]]:
    """The data of a batch: points about the line 3 x + 1."""
    dice = random.Random(f"{seed} {epoch} {batch}")
    points = [dice.uniform(-1, 1) for _ in range(BATCH)]
    return [(x, 3 * x + 1 + dice.gauss(0, 0.05)) for x in points]


def write(job: Running, name: str, weights: Weights, loss: float) -> Checkpoint:
    """A file that is there as a whole or not at all."""
    path = folder() / f"{job.id}-{name}-{job.token}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(weights))
    unfinished.replace(path)
    return Checkpoint(path.name, loss)


def read(checkpoint: Checkpoint) -> Weights:
    """The weights of a checkpoint."""
    slope, shift = json.loads((folder() / checkpoint.file).read_text())
    return slope, shift


def folder() -> Path:
    """Where checkpoints are; an object store, if there are several machines."""
    found = Path(os.environ.get("TRAINING_FOLDER", "checkpoints"))
    found.mkdir(exist_ok=True)
    return found


@contextmanager
def gpu() -> Iterator[None]:
    """Stands for the device. It cannot serve two at once, and says so when it is asked to."""
    with (folder() / "gpu").open("a") as device:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when we die
        yield


def main(words: list[str]) -> None:
    """The command line."""
    app.migrate()
    match words:
        case ["start", epochs]:
            print(f"job {train.enqueue(int(epochs)).id}")
        case ["work"]:
            Worker(app, {"gpu": 1}, lease_seconds=3.0, heartbeat_seconds=0.5).run()
        case ["show"]:
            for job in app.list_jobs(queue="gpu").jobs:
                print(f"job {job.id}: {job.state}, {app.progress(job.id).message or job.result}")
        case _:
            print(__doc__)
    app.close()


if __name__ == "__main__":
    main(sys.argv[1:])
