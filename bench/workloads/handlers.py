"""The tasks of the worker processes that are measured here. None of them does any work."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import Literal

from tenure import Tenure, current

Kind = Literal["async", "thread", "process"]

KINDS: tuple[Kind, ...] = ("async", "thread", "process")
NOOP = "mail.send"
FLAKY = "mail.flaky"
"""Fails at its first attempt."""
LATE = "mail.late"
"""Notes how many seconds after its due time it started."""
WAIT = "mail.wait"
"""Waits as long as a call over the network may take."""
WAIT_SECONDS = 0.2
NOTE = struct.Struct("d")


class FirstTry(Exception):
    """What a flaky handler raises."""


def declare(app: Tenure, kind: Kind, notes: str) -> None:
    """Give the application its tasks. `notes` is a file to which seconds are appended."""
    if kind == "async":

        @app.task(name=NOOP)
        async def send(user_id: int, template: str, locale: str, to: str) -> None:
            pass

    else:

        @app.task(name=NOOP, isolation="process" if kind == "process" else "none")
        def send_blocking(user_id: int, template: str, locale: str, to: str) -> None:
            pass

    @app.task(name=FLAKY)
    async def flaky(user_id: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
        job = current()
        if job is not None and job.attempt == 1:
            raise FirstTry

    @app.task(name=WAIT)
    async def wait(user_id: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
        await asyncio.sleep(WAIT_SECONDS)

    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.task(name=LATE)
    async def late(due: float) -> None:
        os.write(file, NOTE.pack(time.time() - due))
