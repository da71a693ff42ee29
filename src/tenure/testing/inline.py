"""Every job runs as soon as it is enqueued, before `enqueue` returns."""

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
    """`frozen`, and whoever enqueues also runs what is ready, by `drain`, before `enqueue` returns.

    What a job enqueues runs after it. What is due later, and what is enqueued in a transaction of
    the caller's own with `on=`, waits for the next `enqueue` or `drain`.
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
        if current() is None:  # else whoever runs this job goes on with the new one
            drain(self._app, raise_errors=self._raise_errors)

    async def after_enqueue_async(self) -> None:
        if current() is None:
            await drain_async(self._app, raise_errors=self._raise_errors)
