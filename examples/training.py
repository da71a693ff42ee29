"""A model is made by a workflow that may be killed at any time: it goes on, and is published once.

    TENURE_URL=sqlite:///training.db python -m examples.training start NAME EPOCHS
    TENURE_URL=sqlite:///training.db python -m examples.training work        # as many as you like
    TENURE_URL=sqlite:///training.db python -m examples.training show

    prepare -> train -> evaluate -> publish

- *Four jobs, one run*: each reads the typed results of those before it, and none starts too early.
  To start a name again while its run is open starts nothing.
- *Each epoch is a step*: what is recorded is not trained again. A worker that dies costs the epoch
  that it was at, and the job goes on from the last checkpoint, on any machine.
- *Large things are files*: jobs and steps return their names. The token in the name keeps an
  attempt that woke up late from overwriting what its successor wrote.
- *What is random is a step of its own*: all attempts see the same seed, so the model is the one
  that would have come out without any crash.
- *The GPU trains one at a time*: the gate sees to that in the whole fleet.
- *Published once*: all attempts ask the registry under one key, and it takes a key once.
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
    """What is trained with, and what is kept back to judge the model by."""

    training: str
    testing: str


@dataclass(frozen=True)
class Checkpoint:
    """What is known after an epoch. The weights are in the file."""

    file: str
    loss: float


@dataclass(frozen=True)
class Model:
    """The last checkpoint, and how it came to be."""

    checkpoint: Checkpoint
    epochs: int


@app.task(max_attempts=FOR_EVER)
def prepare(job: Running) -> Data:
    """Collect the points: here about the line 3 x + 1."""
    seed = job.step("seed", random.randrange, 2**32)
    dice = random.Random(seed)
    points: list[Point] = []
    while len(points) < ROWS + HELD_BACK:
        time.sleep(BATCH_SECONDS)
        job.check()  # raises when the job was cancelled, or is another's by now
        xs = [dice.uniform(-1, 1) for _ in range(BATCH)]
        points += [(x, 3 * x + 1 + dice.gauss(0, 0.05)) for x in xs]
    return Data(write(job, "training", points[:ROWS]), write(job, "testing", points[ROWS:]))


@app.task(queue="gpu", gate=GPU, isolation="process", max_attempts=FOR_EVER)
def train(job: Running, epochs: int) -> Model:
    """The long one: hours, on a real GPU."""
    [data] = job.results(prepare)
    last = job.step("begin", begin, job)
    for epoch in range(epochs):
        last = job.step(f"epoch {epoch}", train_epoch, job, epoch, data, last)
        job.progress((epoch + 1) / epochs, f"epoch {epoch + 1} of {epochs}, loss {last.loss:.4f}")
    return Model(last, epochs)


def begin(job: Running) -> Checkpoint:
    """A model that knows nothing."""
    return Checkpoint(write(job, "begin", [(0.0, 0.0)]), 1.0)


def train_epoch(job: Running, epoch: int, data: Data, last: Checkpoint) -> Checkpoint:
    """From one checkpoint to the next."""
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
    """Give a good model to the world."""
    [model], [loss] = job.results(train), job.results(evaluate)
    if loss > GOOD_ENOUGH:
        raise Skip(f"a loss of {loss:.4f} is too much")
    return job.step("release", release, job, f"{name}-{job.id}", model, loss)


def release(job: Running, key: str, model: Model, loss: float) -> str:
    """Stands for a registry that takes a key once, as good ones do: the first one stays.

    A step alone is not enough: its worker may die when the model is out and nobody has noted it.
    """
    tell(job, "release")
    place = folder("registry") / f"{key}.json"
    draft = folder("registry") / f".{key}-{job.token}"
    draft.write_text(json.dumps({**asdict(model), "test_loss": loss, "token": job.token}))
    with suppress(FileExistsError):
        os.link(draft, place)
    draft.unlink()
    time.sleep(10 * BATCH_SECONDS)  # its answer takes a while
    return place.name


def descend(weights: Weights, batch: Sequence[Point]) -> tuple[Weights, float]:
    """One step of gradient descent: the GPU's work. Answers the loss before it, too."""
    slope, shift = weights
    errors = [(slope * x + shift - y, x) for x, y in batch]
    slope -= RATE * sum(error * x for error, x in errors) / len(batch)
    shift -= RATE * sum(error for error, _ in errors) / len(batch)
    return (slope, shift), sum(error * error for error, _ in errors) / len(batch)


def write(job: Running, name: str, pairs: Sequence[Point]) -> str:
    """A file that is there as a whole or not at all. Answers its name."""
    path = folder() / f"{job.id}-{name}-{job.token}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(pairs))
    unfinished.replace(path)
    return path.name


def read(file: str) -> list[Point]:
    """What was written."""
    return [(a, b) for a, b in json.loads((folder() / file).read_text())]


def tell(job: Running, what: str) -> None:
    """A line for people who wonder how often something was begun."""
    with (folder() / "diary").open("a") as diary:
        diary.write(f"{job.token} {what}\n")


def folder(name: str = "") -> Path:
    """Where files are; an object store, if there are several machines."""
    found = Path(os.environ.get("TRAINING_FOLDER", "training")) / name
    found.mkdir(exist_ok=True, parents=True)
    return found


@contextmanager
def gpu() -> Iterator[None]:
    """Stands for the device. It cannot serve two at once, and says so when it is asked to."""
    with (folder() / "gpu").open("a") as device:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when we die
        yield


def start(name: str, epochs: int) -> WorkflowRun:
    """The whole pipeline, in one transaction."""
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
            print(f"workflow {run.id}{'' if run.created else ' is at it already'}")
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
