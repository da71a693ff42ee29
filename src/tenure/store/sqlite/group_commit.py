"""How the threads of a process take turns on a SQLite connection, whatever interrupts them.

A KeyboardInterrupt, or a signal handler that calls the store, can come between any two steps. So
nothing here relies on two steps in a row: `Turn` asks the lock itself whether it was taken, and one
assignment settles for all calls of a group what became of them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tenure.errors import InvalidInput, OutcomeUnknown, StoreBusy
from tenure.store.session import Operation, R


class Turn:
    """A lock with an end to waiting, and an error in place of a deadlock for its own holder.

    The lock is re-entrant, for the moment in which a thread has it and has not said so yet: a
    signal handler that calls the store just then has its turn before the call that it interrupted.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None

    def run(self, body: Callable[[], R], seconds: float, path: str) -> R:
        """Run `body` alone. Raises `StoreBusy` when it is not our turn within this time."""
        answer: list[R] = []
        if not self._run(lambda: answer.append(body()), seconds, path):
            raise StoreBusy(
                f"another thread of this process has been inside an operation on {path} for "
                f"{seconds:g} s; look for what keeps it there"
            )
        return answer[0]

    def run_if_free(self, body: Callable[[], None], path: str) -> bool:
        """Run `body` alone and at once, or not at all. Answers whether it ran."""
        return self._run(body, 0, path)

    def _run(self, body: Callable[[], None], seconds: float, path: str) -> bool:
        if self._holder == threading.get_ident():
            raise InvalidInput(
                f"this thread is inside an operation on {path} already; do not call the store from "
                "a signal handler or from inside an operation: set a flag there, and call it later"
            )
        try:
            if not self._lock.acquire(timeout=_within_limit(seconds)):
                return False
            try:
                self._holder = threading.get_ident()
                body()
                return True
            finally:
                self._holder = None
        finally:
            # No flag says whether it was taken: an interrupt may come before the flag is set.
            try:  # noqa: SIM105 - an interrupt in `suppress` would come before the release
                self._lock.release()
            except RuntimeError:
                pass  # it was not

    def is_free(self) -> bool:
        """Is nobody inside? By the time of the answer, somebody may be."""
        return self._holder is None

    def acquire(self, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Take it until `release`. False: not within this time, or this very thread has it."""
        if self._holder == threading.get_ident():
            return False
        taken = self._lock.acquire(timeout=_within_limit(seconds))
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self) -> None:
        """End what `acquire` began."""
        self._holder = None
        self._lock.release()


def _within_limit(seconds: float) -> float:
    return min(seconds, threading.TIMEOUT_MAX)


Run = list[tuple["Call", Operation[Any]]]
"""Operations that can be done in one go, each with the call that it belongs to."""


def in_runs(calls: Iterable["Call"]) -> Iterator[Run]:
    """The operations of these calls, in order."""
    run: Run = []
    goes_with = _alone
    for call in calls:
        for op in call.ops:
            if run and not goes_with(op):
                yield run
                run = []
            if not run:
                goes_with = getattr(op, "goes_with", _alone)
            run.append((call, op))
    if run:
        yield run


def _alone(_: object) -> bool:
    return False


class Group:
    """The calls of one transaction."""

    __slots__ = ("closing", "error", "kept", "over")

    def __init__(self) -> None:
        self.closing = False
        """COMMIT is under way."""
        self.kept = False
        """It was committed."""
        self.error: Exception | None = None
        """It failed as a whole."""
        self.over = False
        """The transaction has ended. Neither kept nor failed: its leader was interrupted, and its
        other calls wait for the next one."""


Outcome = tuple[Any, Exception | None]
"""What an operation answered, or the error that it ended with."""


class Call:
    """Operations in the waiting line, mostly one. They stand there until their caller leaves."""

    __slots__ = ("_bell", "_group", "gone", "ops", "outcomes")

    def __init__(self, ops: Sequence[Operation[Any]]) -> None:
        self.ops = ops
        self.outcomes: list[Outcome] = []
        """One for each operation, in order, as far as the leader has come."""
        self._bell = threading.Lock()  # free when it was rung
        self._bell.acquire()
        self._group: Group | None = None
        self.gone = False
        """Set by its caller: not to be run any more."""

    def join(self, group: Group) -> bool:
        """Become part of a transaction, if there still is something to do and somebody who waits.

        The caller sets `gone` and then looks whether it is in a group; here it is the other way
        round. So whichever comes first, a caller that has gone is never committed.
        """
        if self.answered():
            return False
        self.outcomes = []
        self._group = group
        if self.gone:
            self._group = None
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Until somebody rings, for an answer or for the turn to lead, or this time is over."""
        self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        """Wake its caller."""
        with suppress(RuntimeError):  # it was rung already
            self._bell.release()

    def running(self) -> bool:
        """Is it in an open transaction?"""
        group = self._group
        return group is not None and not group.over

    def answered(self) -> bool:
        """Was it committed, or has it failed?"""
        group = self._group
        return group is not None and (group.kept or group.error is not None)

    def results(self) -> list[Outcome]:
        """What became of each operation. Not before it is `answered`."""
        group = self._group
        if group is None or not (group.kept or group.error is not None):
            raise OutcomeUnknown(
                "the thread that commits for this one has not ended its transaction; it may yet be "
                "kept. Look before you repeat it, or enqueue with a unique key"
            )
        return self.outcomes if group.kept else [(None, group.error)] * len(self.ops)
