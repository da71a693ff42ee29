"""How long a test waits for something that must happen.

A wait ends as soon as the thing has happened, so a long limit costs nothing. It is far above the
need of any machine: a test must also pass beside eight endless loops on two processors. No test
asserts that something is fast; benchmarks measure that.

TENURE_PATIENCE says it in seconds. A search for bugs is less patient: it waits for many things that
never happen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = float(os.environ.get("TENURE_PATIENCE") or 180.0)
FIRST_LOOK_SECONDS = 0.001
LAST_LOOK_SECONDS = 0.03


def until(
    condition: Callable[[], T], what: str = "a condition", seconds: float = PATIENCE_SECONDS
) -> T:
    """Wait until the condition returns something true, and return it.

    The looks become rarer: a test that waits must not take the processor from the worker that it
    waits for.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_LOOK_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(1.25 * pause, LAST_LOOK_SECONDS)
    return value
