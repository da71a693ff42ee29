"""The signature of a task: how a call becomes JSON, and JSON a call again.

Arguments are stored by name. A value must arrive unchanged: before anything is written, a call is
encoded, decoded against the annotations and compared. A first parameter annotated `Running` is left
out, because the worker fills it in.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property, partial, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.inspect import Type
from msgspec.structs import astuple

from tenure.control import Control
from tenure.errors import InvalidInput, PayloadInvalid
from tenure.rules.arriving import SAME, first_change, loose_type
from tenure.rules.codec import check_type, decoder, encode, why_unfit
from tenure.rules.job import Job, Json
from tenure.running import Running

_OF_THE_JOB = ("self", "job", "ctx", "context", "task", "running")
"""What the first parameter of a handler is called where it is the running job."""
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """The parameters and the result of a task. Raises `InvalidInput` if a type has no JSON form."""

    def __init__(
        self, task: str, fn: Callable[..., Any], call_options: Collection[str] = ()
    ) -> None:
        """`call_options`: the names of the options of a call, for error messages."""
        self._task = task
        self._call_options = call_options
        signature = inspect.signature(fn)
        hints = _hints(task, fn)
        params = list(signature.parameters.values())
        self.wants_running = (
            bool(params) and hints.get(params[0].name) is Running and params[0].kind in _BY_POSITION
        )
        if self.wants_running:
            params = params[1:]
        self._signature = signature.replace(parameters=params)
        self._names = [p.name for p in params]
        self._known = set(self._names)
        self._what = f"the arguments of {task}"
        self._star = next((p.name for p in params if p.kind is p.VAR_POSITIONAL), None)
        self._stars = next((p.name for p in params if p.kind is p.VAR_KEYWORD), None)
        self._by_position = [p.name for p in params if p.kind in _BY_POSITION]
        self._is_simple = all(p.kind in _BY_NAME for p in params)
        self._wanted = {p.name for p in params if p.default is p.empty}
        self.result_type = _result_type(hints.get("return", object))
        self._bare = {name for name in self._names if hints.get(name, object) in (object, Any)}
        """Parameters that say nothing of their type; `*args` is a tuple by its nature."""
        self._bare -= {self._star}
        self._check(hints)
        self.accepts_none = _accepts_none(self.result_type)
        """May the handler return None?"""
        fields = [_field(p, hints.get(p.name, object)) for p in params]
        self._types = {name: kind for name, kind, *_ in fields}
        self._fields = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        self._read = decoder(self._fields).decode

    def _check(self, hints: Mapping[str, object]) -> None:
        """Check now that every annotation can be decoded, not when the first job runs."""
        for name in self._names:
            hint = hints.get(name, object)
            if hint is Job and name == self._names[0] and not self.wants_running:
                raise InvalidInput(
                    f"parameter {name!r} of {self._task} is annotated Job, which is the record of "
                    f"a stored job; to receive the running job, write {name}: Running"
                )
            if _names_running(hint):
                raise InvalidInput(
                    f"parameter {name!r} of {self._task} cannot receive the running job: make it "
                    "the first one, and annotate it Running"
                )
            check_type(f"the annotation of parameter {name!r} of {self._task}", hint)
        _check_result_type(self._task, self.result_type)

    @cached_property
    def _loose_types(self) -> Mapping[str, Type | None]:
        """The types of parameters whose annotations leave a part open. Most tasks need none."""
        return {name: loose_type(kind) for name, kind in self._types.items()}

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Json:
        """A call as JSON. Refuses arguments that do not fit, or that would arrive changed."""
        sent = self._bind(args, kwargs)
        data = encode(sent, what=self._what)
        try:
            arrived = self._read(data)
        except Exception as error:  # noqa: BLE001 - a model of the user may raise anything
            raise self._unfit(why_unfit(error)) from None
        if SAME.issuperset(map(type, sent.values())):  # as most calls are
            return data
        for name, value in sent.items():
            if type(value) in SAME:
                continue
            if change := first_change(value, getattr(arrived, name), self._loose_types[name]):
                path, what, becomes = change
                raise self._unfit(
                    f"{name}{path} is of type {what} and would arrive as {becomes}; annotate the "
                    f"parameter with its type, or pass {becomes}"
                )
        return data

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, including defaults."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def lone_parameter(self) -> str | None:
        """The name of the only parameter that a call must give; None if there is not just one."""
        wanted = self._wanted - {self._star, self._stars}
        return next(iter(wanted)) if self._is_simple and len(wanted) == 1 else None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments by name. (`inspect` takes 6 microseconds, this takes 1.)"""
        if self._is_simple and len(args) <= len(self._by_position):
            sent = dict(zip(self._by_position, args, strict=False)) | kwargs if args else kwargs
            names = sent.keys()
            if len(sent) == len(args) + len(kwargs) and self._wanted <= names <= self._known:
                if list(sent) == self._names:
                    return sent
                return {name: sent[name] for name in self._names if name in sent}
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._unfit(self._unknown(kwargs) or f"{error}{self._no_value()}") from None

    def _unknown(self, kwargs: Mapping[str, Any]) -> str | None:
        """What is wrong with the first name that is no parameter."""
        for name, value in kwargs.items():
            if self._stars or name in self._known:
                continue
            if name in self._call_options:
                given = f"{name}={value!r:.40}"
                return f"{name} is an option; write .options({given}).enqueue(...) or .call(...)"
            near = get_close_matches(name, self._names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"it has no parameter {name!r}{hint}"
        return None

    def _no_value(self) -> str:
        """Why the first parameter may have no value."""
        first = self._names[0] if self._names else ""
        is_bare = first in self._bare and first in self._wanted
        if is_bare and first in _OF_THE_JOB:
            return f"; if {first} is the running job, annotate it Running"
        return ""

    def _unfit(self, why: str) -> InvalidInput:
        return InvalidInput(f"this call does not fit {self._task}{self._signature}: {why}")

    def unpack(self, data: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """JSON as a call. Every value has its annotated type."""
        try:
            values = astuple(self._read(data))  # in the order of the parameters
        except Exception as error:  # a model of the user may raise anything
            raise PayloadInvalid(
                f"the arguments do not fit {self._task}: {why_unfit(error)}"
            ) from error
        named = len(self._by_position)
        args = list(values[:named])
        if named == len(values):  # the usual case
            return args, {}
        if self._star:
            args += values[named]
            named += 1
        kwargs = dict(zip(self._names[named:], values[named:], strict=True))
        if self._stars:
            kwargs |= kwargs.pop(self._stars)
        return args, kwargs


def result_type_of(what: str, fn: Callable[..., Any]) -> object:
    """The annotated result of any function; `object` without an annotation.

    Raises `InvalidInput` if that type has no JSON form.
    """
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, type):
        kind: object = fn
    else:
        has_hints = inspect.isroutine(fn) or not callable(fn)
        kind = _result_type(
            _hints(what, fn if has_hints else type(fn).__call__).get("return", object)
        )
    _check_result_type(what, kind)
    return kind


def _accepts_none(kind: object) -> bool:
    try:
        decoder(kind).decode(b"null")
    except Exception:  # noqa: BLE001 - a model of the user may raise anything
        return False
    return True


def check_result(task: str, data: Json, kind: object) -> None:
    """Refuse an encoded result that callers could not read as its annotation says."""
    try:
        decoder(kind).decode(data)
    except Exception as error:  # a model of the user may raise anything
        name = kind.__qualname__ if isinstance(kind, type) else str(kind)
        raise PayloadInvalid(
            f"the result of {task} does not fit its annotation {name}: {why_unfit(error)}"
        ) from error


def refuse_containers(task: str, result: object) -> None:
    """Refuse a result without an annotation that has a tuple or a set: callers would get a list."""
    if found := _container_in(result):
        path, what = found
        part = f"its part {path}" if path else "it"
        raise PayloadInvalid(
            f"the result of {task} has no annotation, and {part} is a {what}, which would "
            "be read as a list; annotate the result, or return a list"
        )


def _container_in(value: object) -> tuple[str, str] | None:
    if isinstance(value, tuple | set | frozenset):
        return "", type(value).__name__
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for step, item in pairs:
        if type(item) not in SAME and (found := _container_in(item)):
            return f"[{step!r:.60}]{found[0]}", found[1]
    return None


def _check_result_type(what: str, kind: object) -> None:
    check_type(f"the annotation of the result of {what}", kind)


def _hints(what: str, fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception as error:  # an annotation is an expression, and may raise anything
        raise InvalidInput(
            f"an annotation of {what} cannot be read: {error}; import every name in it at the top "
            "of the module, not only under TYPE_CHECKING"
        ) from error


def _field(param: inspect.Parameter, hint: Any) -> Any:
    if param.kind is param.VAR_POSITIONAL:
        return param.name, list[hint], msgspec.field(default_factory=list)
    if param.kind is param.VAR_KEYWORD:
        return param.name, dict[str, hint], msgspec.field(default_factory=dict)
    if param.default is param.empty:
        return param.name, hint
    default = param.default
    return param.name, hint, msgspec.field(default_factory=lambda: default)


def _result_type(hint: Any) -> object:
    """The annotated result without `Retry`, `Snooze`, `Skip` and `Cancel`."""
    is_union = get_origin(hint) in (Union, UnionType)
    kept = [part for part in (get_args(hint) if is_union else [hint]) if not _is_control(part)]
    return reduce(or_, kept) if kept else NoneType


def _is_control(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, Control)


def _names_running(hint: object) -> bool:
    return any(
        isinstance(part, type) and issubclass(part, Running) for part in (hint, *get_args(hint))
    )
