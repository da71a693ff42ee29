"""Batch handlers: one call of a function for many jobs.

    @app.task(batch=Batch(max_size=64, wait_seconds=0.05))
    def embed(items: list[Item[str]]) -> list[list[float]]: ...

    embed.enqueue("a text")        # one job; a worker runs many of them in one call

The handler returns one result per item, in order. A result that is an exception, or a `Retry`,
`Skip` and so on, ends its own item alone.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.limits import check_int, check_seconds, take_lengths
from tenure.running import Running

A = TypeVar("A")
MAX_SIZE = 1000


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs one call of the handler gets, and how long the first one waits for others."""

    max_size: int = 64
    wait_seconds: float = 0.05

    def __post_init__(self) -> None:
        take_lengths(self, "wait_seconds")
        check_int("max_size", self.max_size, 1, MAX_SIZE)
        check_seconds("wait_seconds", self.wait_seconds)


class Item(Generic[A]):
    """One job of a batch: its argument, and the running job."""

    __slots__ = ("job", "value")

    def __init__(self, value: A, job: Running) -> None:
        self.value = value
        self.job = job

    def __repr__(self) -> str:
        return f"<Item of job {self.job.id}>"


def single(task: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the parameter and the result of one job of a batch handler."""

    def call(item: Any) -> Any:
        return item

    try:
        hints = get_type_hints(fn)
    except Exception as error:
        raise InvalidInput(f"the annotations of {task} cannot be read: {error}") from error
    names = list(inspect.signature(fn).parameters)
    kind = hints.get(names[0]) if len(names) == 1 else None
    [item] = get_args(kind) if get_origin(kind) is list else (None,)
    if get_origin(item) is not Item:
        raise InvalidInput(
            f"the batch handler {task} must have one parameter, annotated list[Item[...]] with the "
            "type of the argument of one job"
        )
    call.__annotations__ = {"item": get_args(item)[0], "return": _result_of(hints.get("return"))}
    return call


def _result_of(hint: object) -> object:
    """The type of one result; without the exceptions that stand in its place."""
    if hint is None or get_origin(hint) not in (list, Sequence):
        return object
    [one] = get_args(hint)
    if get_origin(one) not in (Union, UnionType):
        return one
    kinds = [kind for kind in get_args(one) if not (inspect.isclass(kind) and _is_error(kind))]
    return reduce(or_, kinds) if kinds else object


def _is_error(kind: type) -> bool:
    return issubclass(kind, BaseException) and kind.__module__ != "tenure.control"


def checked_results(results: object, count: int) -> list[object]:
    """What a batch handler returned. Raises TypeError unless it is one result per item."""
    if not isinstance(results, list | tuple):
        raise TypeError(f"a batch handler returns a list of results, not {type(results).__name__}")
    if len(results) != count:
        raise TypeError(f"a batch handler got {count} items and returned {len(results)} results")
    return list(results)


def alone(
    fn: Callable[[list[Item[Any]]], Any], job: Running, *, awaits: bool
) -> Callable[[Any], Any]:
    """The handler for a batch of one job."""

    async def awaiting(value: Any) -> object:
        return _only(await fn([Item(value, job)]))

    def blocking(value: Any) -> object:
        return _only(fn([Item(value, job)]))

    chosen: Callable[[Any], Awaitable[object] | object] = awaiting if awaits else blocking
    return chosen


def _only(results: object) -> object:
    [result] = checked_results(results, 1)
    if isinstance(result, BaseException):
        raise result
    return result
