"""Parts of a job run once: later attempts get what was recorded."""

import asyncio
from uuid import UUID, uuid4

import pytest

from tenure import Fixed, Running, Tenure
from tenure.errors import JobFailed
from tests.support.working import working


def test_a_recorded_step_is_not_run_again(app: Tenure) -> None:
    charged: list[int] = []

    def charge(cents: int) -> UUID:  # the annotation says what later attempts get
        charged.append(cents)
        return uuid4()

    @app.task(retry=Fixed(0))
    def buy(job: Running, cents: int) -> UUID:
        receipt = job.step("charge", charge, cents)
        if job.attempt < 3:
            raise ConnectionError("the parcel service is away")
        return receipt

    with working(app):
        handle = buy.enqueue(4900)
        receipt = handle.wait(timeout_seconds=30)
    assert charged == [4900]
    [step] = app.steps(handle.id)
    assert (step.name, step.token, step.result) == ("charge", 1, str(receipt))


def test_async_handlers_take_steps_side_by_side(app: Tenure) -> None:
    fetched: list[int] = []

    async def fetch(page: int) -> int:
        fetched.append(page)
        return page * page

    @app.task(retry=Fixed(0))
    async def crawl(job: Running, pages: int) -> int:
        found = await asyncio.gather(
            *(job.step_async(f"page {n}", fetch, n) for n in range(pages))
        )  # each has a name of its own
        if job.attempt == 1:
            raise TimeoutError
        return sum(found)

    with working(app):
        assert crawl.enqueue(4).wait(timeout_seconds=30) == 14
    assert sorted(fetched) == [0, 1, 2, 3]


def test_a_replay_goes_on_or_begins_afresh(app: Tenure) -> None:
    ran: list[str] = []

    @app.task(max_attempts=1)
    def work(job: Running) -> None:
        job.step("first", ran.append, "first")
        raise ValueError("the rest does not work yet")

    with working(app):
        handle = work.enqueue()
        for afresh in (False, True):
            with pytest.raises(JobFailed):
                handle.wait(timeout_seconds=30)
            app.replay(handle.id, afresh=afresh)
        with pytest.raises(JobFailed):
            handle.wait(timeout_seconds=30)
    assert ran == ["first", "first"]  # not by the plain replay
