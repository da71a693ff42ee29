"""One body, two colours: how what the client does reaches a store, and waits.

A body is an `async def` over a `Side`. For callers in threads nothing in it suspends, so `drive`
runs it to its end in one step.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenure.store import AsyncStore, Store
from tenure.store.session import Scope

P = ParamSpec("P")
R = TypeVar("R")

Operation = Callable[Concatenate[Scope, P], Coroutine[Any, Any, R]]


class Side(ABC):
    """How a body reaches the store and waits, in one colour."""

    @abstractmethod
    async def do(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one operation of the store."""

    @abstractmethod
    async def rest(self, seconds: float) -> None:
        """Wait."""


class BlockingSide(Side):
    """For callers in threads: nothing here suspends, so `drive` runs a whole body."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def do(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._store.run(operation, *args, **kwargs)

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this colour blocks


class AwaitingSide(Side):
    """For callers on an event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def do(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._store.run(operation, *args, **kwargs)

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Body = Callable[Concatenate[Side, P], Coroutine[Any, Any, R]]
