"""Steps as handlers take them: once, typed, in both colours, and refused with the fix named."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tenure import Fixed, Job, Retry, Running, Skip, Snooze, State, Tenure
from tenure.errors import (
    InvalidInput,
    JobFailed,
    PayloadInvalid,
    PayloadTooLarge,
    StepConflict,
    TooManySteps,
)
from tenure.store.api import Operation
from tenure.store.jobs import steps
from tenure.store.look import jobs as inspect
from tenure.store.proxy import AsyncStoreProxy, StoreProxy
from tests.worker.support import PATIENCE_SECONDS, ended, working

AT_ONCE = Fixed(0)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    at: datetime
    colour: Colour
    lines: dict[str, tuple[int, ...]]


class Receipt(msgspec.Struct, frozen=True):
    number: int
    raw: bytes


def make_order() -> Order:
    return Order(uuid4(), Decimal("1.10"), datetime.now(UTC), Colour.RED, {"a": (1, 2)})


async def pay(order: Order) -> Receipt:
    await asyncio.sleep(0)
    return Receipt(order.id.int % 1000, order.id.bytes)


def run(app: Tenure, *ids: int) -> list[Job]:
    with working(app):
        return [ended(app, id) for id in ids]


def both(app: Tenure, body: Callable[[Running], Any], **options: Any) -> list[Job]:
    """Run a body as a function in a thread, and on the event loop."""

    @app.task(name="thread", retry=AT_ONCE, **options)
    def thread(job: Running) -> Any:
        return body(job)

    @app.task(name="loop", retry=AT_ONCE, **options)
    async def loop(job: Running) -> Any:
        return body(job)

    return run(app, thread.enqueue().id, loop.enqueue().id)


def error_of(job: Job) -> tuple[str, str]:
    assert job.state is State.FAILED
    told = json.loads(job.error_json or "{}")
    return told["type"].rpartition(".")[2], told["message"]


def test_every_attempt_gets_what_the_first_one_did(app: Tenure) -> None:
    seen: list[tuple[Order, Receipt]] = []
    ran: Counter[str] = Counter()

    def order() -> Order:
        ran["order"] += 1
        return make_order()

    async def paid(order: Order) -> Receipt:
        ran["pay"] += 1
        return await pay(order)

    @app.task(retry=AT_ONCE, max_attempts=3)
    async def shop(job: Running) -> int:
        bought = await job.step_async("order", order)
        receipt = await job.step_async("pay", paid, bought)
        seen.append((bought, receipt))
        if job.attempt < 3:
            raise Retry
        return receipt.number

    @app.task(retry=AT_ONCE, max_attempts=3)
    def shop_in_thread(job: Running) -> int:
        bought = job.step("order", order)
        seen.append((bought, Receipt(0, b"")))
        if job.attempt < 3:
            raise Retry
        return 1

    [first, second] = run(app, shop.enqueue().id, shop_in_thread.enqueue().id)
    assert (first.state, second.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert ran == {"order": 2, "pay": 1}
    assert len(seen) == 6
    assert len({order.id for order, _ in seen}) == 2
    for bought, _ in seen:
        assert type(bought) is Order
        assert (bought.total, bought.colour, bought.lines) == (
            Decimal("1.10"), Colour.RED, {"a": (1, 2)},
        )  # fmt: skip
    paid_ones = [(order, receipt) for order, receipt in seen if receipt.raw]
    assert [receipt.raw for _, receipt in paid_ones] == [order.id.bytes for order, _ in paid_ones]
    assert [step.token for step in app.steps(first.id)] == [1, 1]


def test_the_first_attempt_already_gets_what_was_recorded(app: Tenure) -> None:
    """Not what the function returned: else the first attempt would see what no other does."""

    def untyped(value):  # type: ignore[no-untyped-def]
        return value

    def typed() -> tuple[int, ...]:
        return (1, 2)

    def body(job: Running) -> list[str]:
        values = [job.step("untyped", untyped, (1, 2)), job.step("typed", typed)]
        if job.attempt < 2:
            job.save([repr(value) for value in values])
            raise Retry
        return [repr(value) for value in values] + (job.load(list[str]) or [])

    for job in both(app, body):
        assert json.loads(job.result_json or "") == ["[1, 2]", "(1, 2)"] * 2


class Adder:
    """Something that can be called."""

    def __call__(self, number: int) -> Decimal:
        return Decimal(number)

    def add(self, number: int) -> Decimal:
        return Decimal(number) + 1


def test_anything_that_can_be_called_is_a_step(app: Tenure) -> None:
    def body(job: Running) -> list[str]:
        values = [
            job.step("object", Adder(), 1), job.step("method", Adder().add, 1),
            job.step("partial", partial(Adder().add, number=2)), job.step("class", Decimal, "3.0"),
            job.step("builtin", len, "four"), job.step("lambda", lambda: {"five": 5}),
            job.step("by name", make_name, name="six", fn=6), job.step("nothing", lambda: None),
        ]  # fmt: skip
        if job.attempt < 2:
            raise Retry
        return [repr(value) for value in values]

    def make_name(name: str, fn: int) -> str:
        return f"{name} {fn}"

    for job in both(app, body):
        assert json.loads(job.result_json or "") == [
            "Decimal('1')", "Decimal('2')", "Decimal('3')", "Decimal('3.0')", "4", "{'five': 5}",
            "'six 6'", "None",
        ]  # fmt: skip
        assert [step.function for step in app.steps(job.id)][:5] == [
            "Adder", "Adder.add", "Adder.add", "Decimal", "len",
        ]  # fmt: skip


def test_steps_run_side_by_side(app: Tenure) -> None:
    """Names tell them apart, not their order. The second attempt reads once, for all of them."""
    ran: Counter[int] = Counter()

    async def fetch(n: int) -> int:
        ran[n] += 1
        await asyncio.sleep(0.001 * (5 - n))
        return n * n

    @app.task(retry=AT_ONCE)
    async def crawl(job: Running) -> list[int]:
        pages = reversed(range(5)) if job.attempt == 1 else range(5)
        found = await asyncio.gather(*[job.step_async(f"page {n}", fetch, n) for n in pages])
        if job.attempt == 1:
            raise Retry
        return found

    [job] = run(app, crawl.enqueue().id)
    assert job.result_json == "[0,1,4,9,16]"
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("error", [ValueError("no"), Retry("later"), KeyboardInterrupt()])
def test_a_step_that_raises_records_nothing_and_runs_again(
    app: Tenure, error: BaseException
) -> None:
    ran: Counter[int] = Counter()

    def body(job: Running) -> int:
        def fail_once() -> int:
            ran[job.id] += 1
            if job.attempt == 1:
                raise error
            return job.attempt

        return job.step("step", fail_once)

    jobs = both(app, body, retry_on=(Exception, KeyboardInterrupt))
    assert [job.result_json for job in jobs] == ["2", "2"]
    assert set(ran.values()) == {2}
    assert [step.token for job in jobs for step in app.steps(job.id)] == [2, 2]


def test_a_step_that_raised_may_be_tried_again_in_the_same_attempt(app: Tenure) -> None:
    def body(job: Running) -> int:
        tries = []

        def flaky() -> int:
            tries.append(1)
            if len(tries) < 3:
                raise OSError
            return len(tries)

        while True:
            try:
                return job.step("flaky", flaky)
            except OSError:
                continue

    assert [job.result_json for job in both(app, body)] == ["3", "3"]


def test_a_step_may_return_what_a_handler_may(app: Tenure) -> None:
    def nothing_to_do() -> int | Skip | Snooze:
        return Skip("nothing to do")

    def body(job: Running) -> object:
        return job.step("look", nothing_to_do)

    for job in both(app, body):
        assert (job.state, job.reason) == (State.SKIPPED, "nothing to do")
        assert app.steps(job.id) == []


def twice(job: Running) -> None:
    for n in range(2):
        job.step("page", int, n)


def other_function(job: Running) -> None:
    job.step("page", int if job.attempt == 1 else float)
    raise ValueError("again")


def wrong_colour(job: Running) -> None:
    _ = job.step("pay", pay, make_order())


def large(job: Running) -> None:
    job.step("page", lambda: "x" * 2**20)


def nan(job: Running) -> None:
    job.step("page", lambda: float("nan"))


def has_no_json_form() -> Order | Receipt:
    raise AssertionError("it was run")


def untypable(job: Running) -> None:
    job.step("page", has_no_json_form)


def lies() -> int:
    return "text"  # type: ignore[return-value]


def unfit(job: Running) -> None:
    job.step("page", lies)


def nameless(job: Running) -> None:
    job.step("", lies)


@pytest.mark.parametrize(
    ("body", "kind", "says", "recorded"),
    [
        (twice, "StepConflict", 'a name of its own, in a loop such as f"page {n}"', 1),
        (other_function, "StepConflict",
         "recorded by int, and this is float; give the new one another name, or replay", 1),
        (wrong_colour, "InvalidInput", "use `await job.step_async('pay', ...)`", 0),
        (large, "PayloadTooLarge", "the result of step 'page' is 1,048,578 bytes", 0),
        (nan, "PayloadInvalid", "the result of step 'page' cannot be stored: $ is NaN", 0),
        (untypable, "InvalidInput", "the annotation of the result of step 'page' has no JSON", 0),
        (unfit, "PayloadInvalid", "does not fit int", 0),
        (nameless, "InvalidName", "the name of a step is empty; name each step", 0),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)  # fmt: skip
def test_what_cannot_be_a_step_is_refused_with_the_fix(
    app: Tenure, body: Callable[[Running], Any], kind: str, says: str, recorded: int
) -> None:
    for job in both(app, body, max_attempts=2):
        told = error_of(job)
        assert told[0] == kind
        assert says in told[1]
        assert len(app.steps(job.id)) == recorded


def test_errors_have_their_families() -> None:
    assert issubclass(PayloadTooLarge, InvalidInput)
    assert issubclass(PayloadInvalid, InvalidInput)
    assert not issubclass(StepConflict, InvalidInput)
    assert not issubclass(TooManySteps, InvalidInput)


def test_the_last_step_that_fits_is_the_last_that_runs(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is refused before it has an effect, also in a later attempt."""
    monkeypatch.setattr("tenure.worker.running.steps.MAX_STEPS", 3)
    ran: Counter[str] = Counter()

    def body(job: Running) -> None:
        for n in range(4):
            job.step(f"page {n}", lambda: ran.update([job.task]))

    for job in both(app, body, max_attempts=2):
        kind, says = error_of(job)
        assert (kind, "'page 3' was not run: a job has at most 3 steps" in says) == (
            "TooManySteps",
            True,
        )
        assert len(app.steps(job.id)) == 3
    assert ran == {"thread": 3, "loop": 3}


class Counted(StoreProxy):
    """Counts the operations on steps."""

    def run(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        COUNTS[operation.__name__] += operation in (inspect.steps, steps.record_step)
        return self._store.run(operation, *args, **kwargs)


class CountedAsync(AsyncStoreProxy):
    """The same for the other colour."""

    async def run(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        COUNTS[operation.__name__] += operation in (inspect.steps, steps.record_step)
        return await self._store.run(operation, *args, **kwargs)


class Counting:
    """Puts itself in front of all stores."""

    def wrap(self, store: Any) -> Any:
        return store if isinstance(store, Counted) else Counted(store, self)

    def wrap_async(self, store: Any) -> Any:
        return store if isinstance(store, CountedAsync) else CountedAsync(store, self)


COUNTS: Counter[str] = Counter()


@contextmanager
def counted(app: Tenure) -> Iterator[Callable[[], dict[str, int]]]:
    COUNTS.clear()
    app.wrapper = Counting()
    yield lambda: {name: count for name, count in COUNTS.items() if count}
    COUNTS.clear()


def test_steps_are_read_once_per_attempt_and_only_where_there_are_any(app: Tenure) -> None:
    @app.task(retry=AT_ONCE)
    def work(job: Running) -> None:
        for n in range(3):
            job.step(f"step {n}", int)
        if job.attempt < 3:
            raise Retry

    @app.task(retry=AT_ONCE)
    def plain(job: Running) -> None:
        if job.attempt < 3:
            raise Retry

    with counted(app) as operations:
        run(app, work.enqueue().id)
        assert operations() == {"record_step": 3, "steps": 2}
        run(app, plain.enqueue().id)
        assert operations() == {"record_step": 3, "steps": 2}


def test_a_replay_goes_on_and_a_replay_afresh_does_not(app: Tenure) -> None:
    ran: list[str] = []

    @app.task(max_attempts=1)
    def work(job: Running, fails: bool) -> int:
        job.step("first", ran.append, "first")
        if fails:
            raise ValueError("stop")
        return len(ran)

    with working(app):
        failing, fine = work.enqueue(True), work.enqueue(False)
        assert ended(app, failing.id).state is State.FAILED
        assert ended(app, fine.id).state is State.SUCCEEDED
        ran.clear()
        app.replay(failing.id)
        assert ended(app, failing.id).state is State.FAILED
        assert ran == [], "the step was not run again"
        app.replay(failing.id, afresh=True)
        assert ended(app, failing.id).state is State.FAILED
        assert ran == ["first"]
        app.replay(fine.id)
        assert ended(app, fine.id).result_json == "2", "it began anew"


def test_a_checkpoint_of_another_type_fails_the_attempt(app: Tenure) -> None:
    """A checkpoint that cannot be understood is no reason to begin anew."""

    @app.task(max_attempts=1)
    def confused(job: Running) -> None:
        job.save("a word")
        job.load(list[int])

    with working(app), pytest.raises(JobFailed, match="PayloadInvalid"):
        confused.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
