"""How the threads of a process share a SQLite connection and its commits.

A KeyboardInterrupt, or a signal handler that calls the store, can come between any two steps. So
no code here relies on two steps in a row. `Turn` asks the lock itself whether it was taken. One
assignment decides the outcome of all calls of a group.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tenure.errors import InvalidInput, OutcomeUnknown, StoreBusy
from tenure.store.session import Operation, R


class Turn:
    """A lock with a timeout. A thread that has it and asks again gets an error, not a deadlock.

    The lock is re-entrant for one moment: a thread has it and has not noted that yet. If a signal
    handler calls the store then, its call runs before the interrupted one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self.is_lent = False
        """The thread that has it is inside of `transaction()`."""

    def run(self, body: Callable[[], R], seconds: float, path: str) -> R:
        """Run `body` alone. Raises `StoreBusy` if the lock does not come free within this time."""
        answer: list[R] = []
        if not self._run(lambda: answer.append(body()), seconds, path):
            raise StoreBusy(
                f"another thread of this process has been inside an operation on {path} for "
                f"{seconds:g} s; look for what keeps it there"
            )
        return answer[0]

    def run_if_free(self, body: Callable[[], None], path: str) -> bool:
        """If the lock is free, run `body` alone. Returns whether it ran."""
        return self._run(body, 0, path)

    def _run(self, body: Callable[[], None], seconds: float, path: str) -> bool:
        if self._holder == threading.get_ident():
            if self.is_lent:
                raise InvalidInput(
                    "this thread has a transaction of the store open; pass it as on=, or do this "
                    "after its `with` block"
                )
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
        """Is no thread inside? A thread may enter just after this call."""
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
        """Release it after `acquire`."""
        self._holder = None
        self._lock.release()

    def lend(self, asks: Callable[[], None], seconds: float, path: str) -> None:
        """Take it until `take_back`. `asks` is called just before."""
        if self._holder == threading.get_ident():
            raise InvalidInput(
                f"this thread is inside an operation on {path} already; do not open a transaction "
                "in a signal handler"
            )
        asks()
        if not self._lock.acquire(timeout=_within_limit(seconds)):
            raise StoreBusy(
                f"another thread of this process has been inside a transaction on {path} for "
                f"{seconds:g} s; look for what keeps it there"
            )
        self._holder = threading.get_ident()
        self.is_lent = True

    def is_lent_here(self) -> bool:
        """Does this thread have it for a `transaction()`?"""
        return self.is_lent and self._holder == threading.get_ident()

    def take_back(self) -> None:
        """At the end of a `transaction()`: release it, if this thread has it after all."""
        if self._holder == threading.get_ident():
            self.is_lent, self._holder = False, None
        try:  # noqa: SIM105 - an interrupt in `suppress` would come before the release
            self._lock.release()
        except RuntimeError:
            pass  # it was not taken


def _within_limit(seconds: float) -> float:
    return min(seconds, threading.TIMEOUT_MAX)


Run = list[tuple["Call", Operation[Any]]]
"""Operations that can run together, each with the call that it belongs to."""


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
        """The transaction has ended. If it was neither committed nor failed, its leader was
        interrupted, and its other calls wait for the next leader."""


Outcome = tuple[Any, Exception | None]
"""The result of an operation, or the error that it ended with."""


class Call:
    """The operations of a waiting caller, mostly one. They wait until their caller leaves."""

    __slots__ = ("_bell", "_group", "gone", "ops", "outcomes")

    def __init__(self, ops: Sequence[Operation[Any]]) -> None:
        self.ops = ops
        self.outcomes: list[Outcome] = []
        """One for each operation, in order, as far as the leader has run them."""
        self._bell = threading.Lock()  # free when it was rung
        self._bell.acquire()
        self._group: Group | None = None
        self.gone = False
        """Set by its caller: do not run it any more."""

    def join(self, group: Group) -> bool:
        """Become part of a transaction, unless the call has its result or its caller has gone.

        The caller sets `gone` and then looks whether the call is in a group. The leader puts the
        call in a group and then looks at `gone`. So the call of a caller that has gone is never
        committed.
        """
        if self.has_result():
            return False
        self.outcomes = []
        self._group = group
        if self.gone:
            self._group = None
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Sleep until a thread rings: there is a result, or the caller may lead. Or until this
        time is over."""
        self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        """Wake its caller."""
        with suppress(RuntimeError):  # it was rung already
            self._bell.release()

    def running(self) -> bool:
        """Is it in an open transaction?"""
        group = self._group
        return group is not None and not group.over

    def has_result(self) -> bool:
        """Was it committed, or has it failed?"""
        group = self._group
        return group is not None and (group.kept or group.error is not None)

    def results(self) -> list[Outcome]:
        """The outcome of each operation, once the call was committed or has failed."""
        group = self._group
        if group is None or not (group.kept or group.error is not None):
            raise OutcomeUnknown(
                "the thread that commits for this one has not ended its transaction; it may yet be "
                "kept. Look before you repeat it, or enqueue with a unique key"
            )
        return self.outcomes if group.kept else [(None, group.error)] * len(self.ops)
