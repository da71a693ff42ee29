"""A long job says how far it has come, and goes on from there after a failure."""

import threading
from dataclasses import dataclass

from tenure import Fixed, Running, Tenure
from tests.support.patience import until
from tests.support.working import working


@dataclass
class Position:
    page: int
    words: int


def test_progress_can_be_seen_from_outside(app: Tenure) -> None:
    seen = threading.Event()

    @app.task()
    def copy(job: Running) -> None:
        job.progress(0.5, "half way")  # cheap: travels with the next heartbeat
        seen.wait(timeout=30)

    with working(app):
        handle = copy.enqueue()
        until(lambda: app.progress(handle.id).fraction == 0.5)
        assert app.progress(handle.id).message == "half way"
        seen.set()
        handle.wait(timeout_seconds=30)


def test_the_next_attempt_resumes_from_the_checkpoint(app: Tenure) -> None:
    pages_read = []

    @app.task(retry=Fixed(0))
    def count_words(job: Running, pages: int) -> int:
        at = job.load(Position) or Position(page=0, words=0)
        for page in range(at.page, pages):
            pages_read.append(page)
            at = Position(page + 1, at.words + 100)
            job.save(at)
            if page == 2 and job.attempt == 1:
                raise MemoryError
        return at.words

    with working(app):
        assert count_words.enqueue(5).wait(timeout_seconds=30) == 500
    assert pages_read == [0, 1, 2, 3, 4]  # nothing twice


def test_async_handlers_await_the_same(app: Tenure) -> None:
    @app.task(retry=Fixed(0))
    async def climb(job: Running) -> int:
        height = await job.load_async(int) or 0
        await job.save_async(height + 1000)
        if height < 2000:
            raise TimeoutError
        return height

    with working(app):
        assert climb.enqueue().wait(timeout_seconds=30) == 2000
