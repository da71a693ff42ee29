"""Function calls per job, counted by the interpreter: the speed of the machine does not matter.

A function that runs for every job is called a whole number of times per job. What runs per batch,
or by the clock, is called a fraction of a time. So the part of each function's rate before the
decimal point is what a job costs, and the same on every machine; the rest is kept apart.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tenure
from tests.guard.counts import Counts, Work

OURS = str(Path(tenure.__file__).parent)
TESTS = str(Path(__file__).parents[1])
PYTHON, C, LIBRARY, BATCH = "python calls", "C calls", "library calls", "batch calls"
"""Calls of our functions; of C functions by ours; of other Python functions; ours per batch."""
BY_THE_CLOCK = ("tenure-bell", "tenure-heartbeat")
"""Threads that work every so many milliseconds, however many jobs there are."""
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Functions on Python 3.11, and no calls on later ones."""
SOMETIMES = ("Polling.slot_came_free", "Event.set", "InThreads._hear")
"""The end of a job wakes the loop, and the claimer, if they rest just then: from no job to all."""
NEARLY = 0.05

Key = tuple[CodeType, str | None]
"""A call of a Python function; or, with a name, one that it makes of a C function."""


class CallMeter:
    """Counts the calls in every thread that is started during the work.

    The counts are parts, without values: see `whole`.
    """

    def count(self, work: Work) -> Counts:
        """The calls of the work."""
        threads: list[tuple[str, Counter[Key]]] = []

        def enter_thread(frame: FrameType, event: str, arg: Any) -> None:
            calls: Counter[Key] = Counter()
            threads.append((threading.current_thread().name, calls))
            note = _noting(calls)
            sys.setprofile(note)
            note(frame, event, arg)

        before = threading.getprofile()
        threading.setprofile(enter_thread)
        try:
            work()
        finally:
            threading.setprofile(before)
        parts: Counter[str] = Counter()
        for thread, calls in threads:
            if thread not in BY_THE_CLOCK:
                for key, times in calls.copy().items():
                    if label := _label(*key):
                        parts[label] += times
        return Counts({}, parts)


def count_here(work: Work) -> Counts:
    """The calls that `work` makes in a thread of its own."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    def in_thread() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    counts = CallMeter().count(in_thread)
    for error in errors:
        raise error
    return counts


def whole(per_job: Counts) -> Counts:
    """The calls that every job makes, by kind, and beside them those that a batch makes."""
    values = dict.fromkeys((PYTHON, C, LIBRARY, BATCH), 0.0)
    for label, rate in per_job.parts.items():
        kind, _, function = label.partition(": ")
        if function.endswith(SOMETIMES):
            continue
        times = max(0, math.floor(rate + NEARLY))
        values[kind] += times
        if kind == PYTHON:
            values[BATCH] += rate - times
    return Counts(values, per_job.parts)


def _noting(calls: Counter[Key]) -> Callable[[FrameType, str, Any], None]:
    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            calls[frame.f_code, None] += 1
        elif event == "c_call":
            calls[frame.f_code, arg.__name__] += 1

    return note


def _label(code: CodeType, c_function: str | None) -> str | None:
    """What to count it as; None: not at all."""
    file, name = code.co_filename, code.co_qualname
    short = "/".join(Path(file).parts[-2:])
    if file.startswith(OURS) and c_function is not None:
        return f"{C}: {short} {name} -> {c_function}"
    if c_function is not None or file.startswith(TESTS) or code.co_name in INLINED:
        return None
    return f"{PYTHON if file.startswith(OURS) else LIBRARY}: {short} {name}"
