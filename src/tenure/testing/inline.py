"""Runs each job when it is enqueued, before `enqueue` returns."""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.client import Client
from tenure.running import current
from tenure.testing.clock import Clock, Trial
from tenure.testing.run import drain, drain_async


@contextmanager
def inline(
    app: Client,
    *,
    url: str | None = None,
    clock: Clock | None = None,
    raise_errors: bool = True,
) -> Iterator[Clock]:
    """Like `frozen`, and each `enqueue` runs all ready jobs by `drain` before it returns.

    Jobs that a job enqueues run after it. Jobs that are due later, and jobs enqueued in a
    transaction of the caller with `on=`, wait for the next `enqueue` or `drain`.
    """
    clock = clock or Clock()
    with app.on_trial(_Inline(app, clock, raise_errors), url):
        yield clock


class _Inline(Trial):
    def __init__(self, app: Client, clock: Clock, raise_errors: bool) -> None:
        super().__init__(clock)
        self._app = app
        self._raise_errors = raise_errors

    def after_enqueue(self) -> None:
        if current() is None:  # otherwise the drain that runs this job runs the new one, too
            drain(self._app, raise_errors=self._raise_errors)

    async def after_enqueue_async(self) -> None:
        if current() is None:
            await drain_async(self._app, raise_errors=self._raise_errors)
