"""The signals that end a worker: the first one drains it, a second one ends it at once."""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ECHO_SECONDS = 0.1
"""A second signal within this time is a copy of the first one: `timeout`, for example, sends it to
the process and to its group."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if os.name == "posix" else ()

log = logging.getLogger("tenure.worker")


@contextmanager
def catch_signals(
    stop: Callable[[], None], leave: Callable[[int], None]
) -> Iterator[Callable[[], None]]:
    """Catch the signals that end a worker. Yields a check that restores replaced ones."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    first_at: float | None = None
    hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup does
    numbers = [n for n in STOP_SIGNALS if n is not signal.SIGHUP or not hangup_ignored]

    def caught(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal first_at
        now = time.monotonic()
        first_at = now if first_at is None else first_at
        if now - first_at > ECHO_SECONDS:
            leave(128 + number)
        stop()

    def guard() -> None:
        for number in numbers:
            if signal.getsignal(number) is not caught:
                log.error("the signal handler of %s was replaced; restored", number.name)
                signal.signal(number, caught)

    before = {number: signal.signal(number, caught) for number in numbers}
    dumps = _dump_stacks_on_request()
    try:
        yield guard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if dumps:
            faulthandler.unregister(signal.SIGUSR1)


def _dump_stacks_on_request() -> bool:
    try:
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    except (ValueError, OSError, AttributeError):  # a stderr without a file descriptor
        return False
    return True
