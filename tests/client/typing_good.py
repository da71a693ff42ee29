"""What type checkers accept, with the types they see. Never run: `test_typing` has it checked.

The first half is how the product is shown to newcomers.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_type

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tenure import (
    Batch,
    Call,
    Cancel,
    Exponential,
    Handle,
    Item,
    Job,
    JobEvent,
    Replace,
    Retry,
    Running,
    ScheduleInfo,
    Skip,
    Snooze,
    Task,
    TaskSet,
    Tenure,
    Unique,
    Worker,
    current,
)
from tenure.store import AsyncStore, Store

app = Tenure("sqlite:///jobs.db")
engine = create_engine("sqlite:///jobs.db")


class Base(DeclarativeBase): ...


class ServedModel(Base):
    __tablename__ = "served_model"
    id: Mapped[int] = mapped_column(primary_key=True)
    accuracy: Mapped[float]


@dataclass
class TrainSpec:
    epochs: int


@dataclass
class State:
    epoch: int = 0
    weights: list[float] = field(default_factory=list[float])


@dataclass
class Report:
    accuracy: float


@app.task(queue="mail", max_attempts=8, timeout_seconds=30)
async def send(to: str, subject: str, *, urgent: bool = False) -> str:
    return f"{to} {subject} {urgent}"


@app.task(queue="gpu", isolation="process", timeout_seconds=36_000)
def train(job: Running, spec: TrainSpec) -> Report:
    state = job.load(State) or State()
    for epoch in range(state.epoch, spec.epochs):
        job.progress(epoch / spec.epochs, f"epoch {epoch}")
        job.save(state)
    report = Report(accuracy=0.9)
    with Session(engine) as session, session.begin():
        session.add(ServedModel(accuracy=report.accuracy))
        job.complete(report, on=session)
    return report


def from_sync_code(session: Session) -> None:
    handle = send.enqueue("user@example.org", subject="hi")
    assert_type(handle, Handle[str])
    assert_type(handle.result(None), str | None)
    assert_type(handle.progress().fraction, float | None)
    assert_type(handle.wait(timeout_seconds=30), str)
    tuned = send.options(
        delay_seconds=600, priority=-5, key="welcome:42", tenant="acme", on=session
    )
    assert_type(tuned.enqueue("user@example.org", "hi", urgent=True), Handle[str])
    assert_type(train.enqueue(TrainSpec(epochs=3)).wait(), Report)


async def from_async_code() -> None:
    handle = await send.enqueue_async("user@example.org", subject="hi")
    assert_type(handle, Handle[str])
    assert_type(await handle.wait_async(), str)
    assert_type(await train.options(queue="big").enqueue_async(TrainSpec(3)), Handle[Report])
    async with app, Worker(app, {"gpu": 1, "default": 32}, lease_seconds=60):
        assert_type(await app.get_async(handle.id), Job)


# --- all the shapes of a handler -----------------------------------------------------------------


@app.task()
def plain(a: int, b: int = 2, *rest: float, **more: str) -> int:
    return a + b + len(rest) + len(more)


@app.task()
def nothing() -> None: ...


@app.task()
def only_the_job(job: Running) -> int:
    return job.attempt


def plain_step(order: int, *, gift: bool = False) -> str:
    return f"{order} {gift}"


async def awaited_step(order: int) -> list[str]:
    return [str(order)]


@app.task()
async def in_steps(job: Running) -> int:
    assert_type(job.step("plain", plain_step, 3, gift=True), str)
    assert_type(await job.step_async("plain", plain_step, 3), str)
    assert_type(await job.step_async("awaited", awaited_step, 3), list[str])
    return job.step("of a class", int, "3")


@app.task()
async def async_with_the_job(job: Running, n: int, /, *, flag: bool = False) -> list[int]:
    return [job.token, n, flag]


@app.task(retry=Exponential(base_seconds=5), fail_on=(KeyError,))
def answers(url: str) -> str | Snooze | Retry:
    return Snooze(5) if url else Retry(after_seconds=60)


@app.task(retry=lambda attempts: 2.0 * attempts)
async def answers_too(url: str) -> dict[str, int] | Skip | None:
    return Skip("nothing to do") if url else None


@app.task()
def never_has_a_result() -> Cancel:
    return Cancel("superseded")


@app.task()
def takes_anything(payload: Any, *, flag: bool = False) -> int:
    return len(repr(payload)) + flag


@app.task()
def takes_an_object(payload: object) -> int:
    return len(repr(payload))


assert_type(plain.enqueue(1, 2, 0.5, x="y"), Handle[int])
assert_type(nothing.enqueue().wait(), None)
assert_type(only_the_job.enqueue(), Handle[int])
assert_type(async_with_the_job.enqueue(3, flag=True), Handle[list[int]])
assert_type(answers.enqueue("u").wait(), str)
assert_type(answers_too.enqueue("u").wait(), dict[str, int] | None)
never_has_a_result.enqueue()
takes_anything.enqueue({"a": 1}, flag=True)  # its parameters are looked at when it runs
takes_an_object.enqueue(payload=3)
assert_type(takes_an_object.enqueue(3), Handle[int])


# --- many at once --------------------------------------------------------------------------------

assert_type(plain.call(1), Call[int])
assert_type(send.options(queue="slow").call("a", "b"), Call[str])
assert_type(app.enqueue_many([plain.call(1), plain.call(2)]), list[Handle[int]])
assert_type(app.enqueue_many(plain.call(n) for n in range(3)), list[Handle[int]])
handles: list[Handle[object]] = app.enqueue_many([plain.call(1), send.call("a", "b")])
wider: Handle[int | str] = plain.enqueue(1)
assert_type(app.handle(send, 7), Handle[str])

# --- the rest ------------------------------------------------------------------------------------

tasks = TaskSet()


@tasks.task(name="tidy", queue="low")
def tidy(days: int) -> int:
    return days


app.include(tasks)
task: Task[[int], int] = tidy
child = tidy.options(
    parents=[plain.enqueue(1), 7],
    due_at=datetime.now(UTC),
    unique=Unique(key="tidy"),
    metadata={"trace": "t"},
)


@app.around
@contextmanager
def timing(job: Running) -> Generator[None, None, None]:
    print(job.task)
    yield


@app.listen
def listener(event: JobEvent) -> None:
    print(event.kind)


@app.on_start
async def connect() -> None: ...


@app.on_stop
def disconnect() -> None: ...


@app.schedule("0 3 * * *", tz="Europe/Berlin", catch_up="all", catch_up_limit=10)
@app.task()
async def nightly(region: str = "eu") -> int:
    return len(region)


assert_type(nightly.enqueue("us"), Handle[int])
assert_type(app.schedule(every_seconds=60, name="us")(nightly.call("us")), Call[int])
assert_type(app.schedules.add("eu", nightly, cron="@daily", overlap="skip"), ScheduleInfo)
assert_type(app.schedules.edit("eu", nightly.call("eu"), jitter_seconds=30), ScheduleInfo)


def inside() -> None:
    assert_type(current(), Running | None)
    assert_type(app.why(1), str)
    assert_type(app.list_jobs(queue="mail").jobs, tuple[Job, ...])
    assert_type(plain.fn(1), Any)
    timing(current_job())
    listener(JobEvent.__new__(JobEvent))


async def both_colours(store: Store, async_store: AsyncStore) -> None:
    assert_type(store.get(1), Job)
    assert_type(await async_store.get(1), Job)
    assert_type(Store.why(store, 1), str)
    assert_type(await AsyncStore.why(async_store, 1, now=datetime.now(UTC)), str)
    assert_type(await app.schedules.get_async("eu"), ScheduleInfo)
    assert_type(await app.workflow_run(1).job_id_async("a"), int)


def current_job() -> Running:
    job = current()
    assert job is not None
    return job


# Batches, replacement, deadlines


@app.task(batch=Batch(max_size=64, wait_seconds=0.05), queue="gpu")
async def embed(items: list[Item[str]]) -> list[list[float]]:
    return [[float(len(item.value)), float(item.job.id)] for item in items]


@app.task(batch=Batch())
def shorten(items: list[Item[TrainSpec]]) -> list[str | Exception | Skip]:
    return [ValueError("no") if item.job.attempt > 1 else Skip() for item in items]


assert_type(embed.enqueue("text"), Handle[list[float]])
assert_type(shorten.call(TrainSpec(epochs=3)), Call[str])
embed.options(key="a", replace=True, start_within_seconds=5).enqueue("text")
embed.options(key="a", replace=Replace(postpone=True), finish_by=datetime.now(UTC)).enqueue("t")
