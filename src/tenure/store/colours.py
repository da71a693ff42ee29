"""One body, two colours: how an operation becomes a blocking method and a coroutine method.

An operation is an `async def` over a `Scope`. A `Store` runs it to its end, an `AsyncStore` awaits
it. Methods are made from it in one place:

    class Operations:                       # the base of `Store` and `AsyncStore`
        get = operation(look.get)           # blocks on a `Store`, a coroutine on an `AsyncStore`

    class Client:
        get, get_async = both(look.get)     # both under one roof

A procedure is an `async def` that runs several operations, such as waiting for a job. It takes a
runner, which is a store of either colour. If the runner blocks, nothing in the procedure suspends,
and `drive` runs it to its end.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, TypeAlias, overload

from tenure.store.session import P, R, Scope

Operation = Callable[Concatenate[Scope, P], Coroutine[Any, Any, R]]


class BlockingRunner(ABC):
    """Runs operations for callers in threads."""

    @abstractmethod
    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation to its end."""


class AsyncRunner(ABC):
    """Runs operations for callers on an event loop."""

    @abstractmethod
    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation."""


Runner: TypeAlias = BlockingRunner | AsyncRunner


async def run_on(
    runner: Runner, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """For procedures: run one operation on a store of either colour."""
    if isinstance(runner, AsyncRunner):
        return await runner.run(operation, *args, **kwargs)
    return runner.run(operation, *args, **kwargs)


async def rest_on(runner: Runner, seconds: float) -> None:
    """For procedures: sleep as the callers of this store may."""
    if isinstance(runner, AsyncRunner):
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


Body = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
BlockingMethod = Callable[Concatenate[Any, P], R]
AsyncMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


def _methods(
    body: Body[P, R], run: str, run_async: str
) -> tuple[BlockingMethod[P, R], AsyncMethod[P, R]]:
    """Methods with the parameters and the docstring of `body`, which they hand to `self`'s method
    of this name."""

    @wraps(body)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = getattr(self, run)(body, *args, **kwargs)
        return returned

    @wraps(body)
    async def awaiting(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = await getattr(self, run_async)(body, *args, **kwargs)
        return returned

    return blocking, awaiting


def both(body: Body[P, R]) -> tuple[BlockingMethod[P, R], AsyncMethod[P, R]]:
    """The methods `x` and `x_async` of a class that has `_run` and `_run_async`."""
    return _methods(body, "_run", "_run_async")


class operation(Generic[P, R]):  # noqa: N801 - in a class it reads like `property`
    """A method of both kinds of store: it blocks on a `Store`; on an `AsyncStore` it is awaited.

    `reads`: the operation writes nothing.
    """

    def __init__(self, body: Operation[P, R], *, reads: bool = False) -> None:
        self.__doc__ = body.__doc__
        self.body = body
        self.reads = reads
        self._blocking, self._awaiting = _methods(body, "run", "run")

    @overload
    def __get__(self, runner: BlockingRunner, owner: type[Any]) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, runner: AsyncRunner, owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, runner: None, owner: type[BlockingRunner]) -> BlockingMethod[P, R]: ...
    @overload
    def __get__(self, runner: None, owner: type[AsyncRunner]) -> AsyncMethod[P, R]: ...
    def __get__(self, runner: Runner | None, owner: type[Any]) -> Any:
        method: Any = self._awaiting if issubclass(owner, AsyncRunner) else self._blocking
        return method.__get__(runner, owner)
