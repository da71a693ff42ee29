"""What a handler may return instead of a result, or raise.

raise Retry(after_seconds=60)      charged like an error, tried again after a minute
return Snooze(seconds=300)         not now; comes back uncharged
return Skip("nothing to do")       finished as `skipped`
raise Cancel("superseded")         finished as `cancelled`
"""

from datetime import timedelta
from typing import TypeAlias

from tenure.errors import InvalidInput
from tenure.rules.limits import check_seconds, seconds_of


class Control(Exception):
    """The base of everything that a handler may return or raise instead of a result."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise InvalidInput(
                f"the reason of a {type(self).__name__} must be a string, not {reason!r:.60}; to "
                "give seconds, write Retry(after_seconds=5) or Snooze(5)"
            )
        super().__init__(reason)
        self.reason = reason


class Retry(Control):
    """This attempt failed. Try again after `after_seconds`, or as the task's policy says."""

    def __init__(
        self, reason: str = "retry", *, after_seconds: float | timedelta | None = None
    ) -> None:
        if after_seconds is not None:
            after_seconds = seconds_of(after_seconds)
            check_seconds("after_seconds", after_seconds)
        super().__init__(reason)
        self.after_seconds = after_seconds


class Snooze(Control):
    """Not now: come back in `seconds`, without charging an attempt."""

    def __init__(self, seconds: float | timedelta, reason: str = "snoozed") -> None:
        seconds = seconds_of(seconds)
        check_seconds("seconds", seconds)
        super().__init__(reason)
        self.seconds = seconds


class Skip(Control):
    """There is nothing to do; the job is finished as `skipped`."""

    def __init__(self, reason: str = "skipped") -> None:
        super().__init__(reason)


class Cancel(Control):
    """The job cancels itself."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)


Instead: TypeAlias = Retry | Snooze | Skip | Cancel
"""A union of four names: type checkers remove each of them from a handler's result type."""
