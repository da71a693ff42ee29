"""Everything that a handler may raise, by name."""

from __future__ import annotations

import asyncio


class Strange(BaseException):
    """Not an `Exception`."""


RAISED: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "StopIteration": StopIteration,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "Strange": Strange,
}


def raise_it(name: str) -> None:
    """Raise the exception of this name."""
    raise RAISED[name]("raised by a handler")
