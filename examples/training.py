"""A workflow that trains a model, may be killed at any time, and publishes the model once.

    TENURE_URL=sqlite:///training.db python -m examples.training start NAME EPOCHS
    TENURE_URL=sqlite:///training.db python -m examples.training work        # as many as you like
    TENURE_URL=sqlite:///training.db python -m examples.training show

    prepare -> train -> evaluate -> publish

- *Four jobs, one run*: each job reads the typed results of its parents and starts after them. To
  start a name again while its workflow is running starts nothing.
- *Each epoch is a step*: a recorded epoch is not trained again. If a worker dies, only its current
  epoch is lost, and the job continues from the last checkpoint, on any machine.
- *Large data is in files*: jobs and steps return file names. Each name contains the token, so an
  old attempt cannot overwrite the file of its successor.
- *Randomness is a step*: all attempts see the same seed, so the model is identical to that of a
  training without a crash.
- *The GPU trains one model at a time*: the gate enforces this across all workers.
- *Published once*: all attempts use the same key, and the registry accepts a key once.
"""

import fcntl
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure import Gate, Running, Skip, Tenure, Worker, WorkflowRun

GPU = Gate("gpu", max_running=1)
ROWS, BATCH, RATE = 200, 20, 0.1
HELD_BACK = 40
GOOD_ENOUGH = 0.1
BATCH_SECONDS = 0.01
FOR_EVER = 1000

app = Tenure()  # on the database that TENURE_URL names

Point = tuple[float, float]
Weights = tuple[float, float]


@dataclass(frozen=True)
class Data:
    """The files with the points for training and for testing."""

    training: str
    testing: str


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch. The weights are in the file."""

    file: str
    loss: float


@dataclass(frozen=True)
class Model:
    """The last checkpoint, and the number of epochs."""

    checkpoint: Checkpoint
    epochs: int


@app.task(max_attempts=FOR_EVER)
def prepare(job: Running) -> Data:
    """Collect the points: here random points near the line 3 x + 1."""
    seed = job.step("seed", random.randrange, 2**32)
    dice = random.Random(seed)
    points: list[Point] = []
    while len(points) < ROWS + HELD_BACK:
        time.sleep(BATCH_SECONDS)
        job.check()  # raises when the job was cancelled or the lease was lost
        xs = [dice.uniform(-1, 1) for _ in range(BATCH)]
        points += [(x, 3 * x + 1 + dice.gauss(0, 0.05)) for x in xs]
    return Data(write(job, "training", points[:ROWS]), write(job, "testing", points[ROWS:]))


@app.task(queue="gpu", gate=GPU, isolation="process", max_attempts=FOR_EVER)
def train(job: Running, epochs: int) -> Model:
    """The long job: hours, on a real GPU."""
    [data] = job.results(prepare)
    last = job.step("begin", begin, job)
    for epoch in range(epochs):
        last = job.step(f"epoch {epoch}", train_epoch, job, epoch, data, last)
        job.progress((epoch + 1) / epochs, f"epoch {epoch + 1} of {epochs}, loss {last.loss:.4f}")
    return Model(last, epochs)


def begin(job: Running) -> Checkpoint:
    """A model without any training."""
    return Checkpoint(write(job, "begin", [(0.0, 0.0)]), 1.0)


def train_epoch(job: Running, epoch: int, data: Data, last: Checkpoint) -> Checkpoint:
    """Train one epoch: from one checkpoint to the next."""
    tell(job, f"epoch {epoch}")
    [weights], points, loss = read(last.file), read(data.training), 0.0
    random.Random(epoch).shuffle(points)
    with gpu():
        for start in range(0, ROWS, BATCH):
            time.sleep(BATCH_SECONDS)
            job.check()
            weights, loss = descend(weights, points[start : start + BATCH])
    return Checkpoint(write(job, f"epoch-{epoch}", [weights]), loss)


@app.task(max_attempts=FOR_EVER)
def evaluate(job: Running) -> float:
    """The loss on points that the training has not seen."""
    [data], [model] = job.results(prepare), job.results(train)
    [weights], points = read(model.checkpoint.file), read(data.testing)
    losses = []
    for start in range(0, HELD_BACK, BATCH):
        time.sleep(BATCH_SECONDS)
        job.check()
        losses.append(descend(weights, points[start : start + BATCH])[1])
    return sum(losses) / len(losses)


@app.task(max_attempts=FOR_EVER)
def publish(job: Running, name: str) -> str:
    """Publish the model if it is good enough."""
    [model], [loss] = job.results(train), job.results(evaluate)
    if loss > GOOD_ENOUGH:
        raise Skip(f"the loss of {loss:.4f} is too high")
    return job.step("release", release, job, f"{name}-{job.id}", model, loss)


def release(job: Running, key: str, model: Model, loss: float) -> str:
    """Stands for a registry that accepts each key once: the first model stays.

    A step alone is not enough: the worker may die after the model is published and before the step
    is recorded.
    """
    tell(job, "release")
    place = folder("registry") / f"{key}.json"
    draft = folder("registry") / f".{key}-{job.token}"
    draft.write_text(json.dumps({**asdict(model), "test_loss": loss, "token": job.token}))
    with suppress(FileExistsError):
        os.link(draft, place)
    draft.unlink()
    time.sleep(10 * BATCH_SECONDS)  # a slow reply
    return place.name


def descend(weights: Weights, batch: Sequence[Point]) -> tuple[Weights, float]:
    """One step of gradient descent: the GPU's work. Also returns the loss before the step."""
    slope, shift = weights
    errors = [(slope * x + shift - y, x) for x, y in batch]
    slope -= RATE * sum(error * x for error, x in errors) / len(batch)
    shift -= RATE * sum(error for error, _ in errors) / len(batch)
    return (slope, shift), sum(error * error for error, _ in errors) / len(batch)


def write(job: Running, name: str, pairs: Sequence[Point]) -> str:
    """Write a file atomically and return its name."""
    path = folder() / f"{job.id}-{name}-{job.token}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(pairs))
    unfinished.replace(path)
    return path.name


def read(file: str) -> list[Point]:
    """Read a file that `write` has written."""
    return [(a, b) for a, b in json.loads((folder() / file).read_text())]


def tell(job: Running, what: str) -> None:
    """Append a line to the diary, which shows how often each part was started."""
    with (folder() / "diary").open("a") as diary:
        diary.write(f"{job.token} {what}\n")


def folder(name: str = "") -> Path:
    """The folder for the files; with several machines, use an object store."""
    found = Path(os.environ.get("TRAINING_FOLDER", "training")) / name
    found.mkdir(exist_ok=True, parents=True)
    return found


@contextmanager
def gpu() -> Iterator[None]:
    """Stands for the device. It fails if two jobs use it at the same time."""
    with (folder() / "gpu").open("a") as device:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel unlocks it when we die
        yield


def start(name: str, epochs: int) -> WorkflowRun:
    """Enqueue the whole pipeline in one transaction."""
    flow = app.workflow("training", key=name, on_failure="stop")
    data = flow.add(prepare.call())
    model = flow.add(train.call(epochs), after=[data])
    loss = flow.add(evaluate.call(), after=[data, model])
    flow.add(publish.call(name), after=[model, loss])
    return flow.enqueue()


def main(words: list[str]) -> None:
    """The command line."""
    app.migrate()
    match words:
        case ["start", name, epochs]:
            run = start(name, int(epochs))
            print(f"workflow {run.id}{'' if run.created else ' is already running'}")
        case ["work"]:
            queues = {"gpu": 1, "default": 4}
            Worker(app, queues, lease_seconds=2.0, heartbeat_seconds=0.4).run()
        case ["show"]:
            for seen in app.workflows():
                print(app.workflow_run(seen.id).draw())
            for job in app.list_jobs(queue="gpu").jobs:
                if message := app.progress(job.id).message:
                    print(f"job {job.id}: {message}")
        case _:
            print(__doc__)
    app.close()


if __name__ == "__main__":
    main(sys.argv[1:])
