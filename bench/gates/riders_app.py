"""One side's worker process: `python -m bench.gates.riders_app SIDE URL KIND QUEUES NOTES`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import cast

from bench.gates.sides import MILLISECONDS, SIDES, task_name
from bench.workloads.handlers import Kind, declare
from tenure import Tenure


def declare_sleepers(app: Tenure) -> None:
    """One task for each duration."""
    for milliseconds in MILLISECONDS:
        app.task(name=task_name(milliseconds))(_sleeper(milliseconds / 1000))


def _sleeper(seconds: float) -> Callable[..., object]:
    async def sleep(user_id: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
        if seconds:
            await asyncio.sleep(seconds)

    return sleep


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.ERROR)
    side, url, kind, queues, notes = sys.argv[1:]
    SIDES[side]()
    app = Tenure(url)
    declare(app, cast(Kind, kind), notes)
    declare_sleepers(app)
    app.run_worker(dict.fromkeys(queues.split(","), 0))
