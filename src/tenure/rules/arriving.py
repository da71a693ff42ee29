"""Does a value arrive as it was sent? JSON has no tuples, sets, dates or members of an Enum.

With an annotation such a value is decoded to its own type. Where the annotation says nothing (no
annotation, `Any`, the items of a bare `dict` or `list`) the handler would get another value than
the caller gave: the first such part is named.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import count
from operator import getitem
from types import NoneType
from typing import Any

from msgspec import inspect as types

SAME = frozenset({str, int, float, bool, NoneType})
"""Types that JSON has: such a value arrives unchanged, or as the annotation says."""

Change = tuple[str, str, str]
"""The path to a part, the type that was sent, and what arrives."""
_LISTS = (types.ListType, types.VarTupleType, types.TupleType)
_DICTS = (types.DictType, types.TypedDictType)
_RECORDS = (types.StructType, types.DataclassType)


def loose_type(annotation: Any) -> types.Type | None:
    """The annotated type, if it leaves a part open; None if it says what every part is."""
    kind = types.type_info(annotation)
    return kind if _has_open_part(kind, set()) else None


def first_change(sent: Any, arrived: Any, loose: types.Type | None) -> Change | None:
    """The first part of a value that would arrive as another one."""
    change = None if loose is None else _list_change(sent, arrived, loose)
    return change or _other_change(sent, arrived)


def _is_open(kind: types.Type) -> bool:
    if isinstance(kind, types.UnionType):
        return any(map(_is_open, kind.types))
    return isinstance(kind, types.AnyType) or (
        isinstance(kind, types.CustomType) and kind.cls is object
    )


def _has_open_part(kind: types.Type, seen: set[int]) -> bool:
    if id(kind) in seen:  # a type may contain itself
        return False
    seen.add(id(kind))
    return _is_open(kind) or any(_has_open_part(part, seen) for part in _parts(kind).values())


def _parts(kind: types.Type) -> Mapping[object, types.Type]:
    """The types of its parts by key, index or field; under None that of all others."""
    if isinstance(kind, types.DictType):
        return {None: kind.value_type}
    if isinstance(kind, types.ListType | types.VarTupleType):
        return {None: kind.item_type}
    if isinstance(kind, types.TupleType):
        return dict(enumerate(kind.item_types))
    if isinstance(kind, types.UnionType):
        return dict(enumerate(kind.types))
    if isinstance(kind, (types.TypedDictType, *_RECORDS)):
        return {field.name: field.type for field in kind.fields}
    return {}


def _list_change(sent: Any, arrived: Any, kind: types.Type) -> Change | None:
    """The first tuple or set in an open part, which would arrive as a list."""
    if _is_open(kind):
        if type(arrived) is list and not isinstance(sent, list):
            return "", type(sent).__name__, "a list"
        parts: Mapping[object, types.Type] = {None: kind}
    elif isinstance(kind, types.UnionType):
        found = (_list_change(sent, arrived, each) for each in kind.types)
        return next(filter(None, found), None)
    else:
        parts = _parts(kind)
    steps, get = _steps(sent, arrived, kind)
    for step in steps:
        item = get(sent, step)
        part = parts.get(step, parts.get(None))
        if part is None or type(item) in SAME:
            continue
        if change := _list_change(item, get(arrived, step), part):
            return _deeper(step, change)
    return None


def _steps(
    sent: Any, arrived: Any, kind: types.Type
) -> tuple[Iterable[Any], Callable[[Any, Any], Any]]:
    """The keys, indexes or fields that both have, if they are what the annotation says."""
    is_open = _is_open(kind)
    if isinstance(kind, _RECORDS):
        same = isinstance(sent, kind.cls) and isinstance(arrived, kind.cls)
        return (field.name for field in kind.fields if same), getattr
    is_dict = isinstance(sent, Mapping) and type(arrived) is dict
    if is_dict and (is_open or isinstance(kind, _DICTS)):
        return (key for key in sent if key in arrived), getitem
    is_list = isinstance(sent, list | tuple) and isinstance(arrived, list | tuple)
    if is_list and (is_open or isinstance(kind, _LISTS)):
        return range(min(len(sent), len(arrived))), getitem
    return (), getitem


def _other_change(sent: Any, arrived: Any) -> Change | None:
    """The first value that would arrive as text, as a dict, or as the value of a member.

    JSON has no other form for a date, a UUID or a record.
    """
    kind = type(arrived)
    if kind is str:
        return None if isinstance(sent, str) else ("", type(sent).__name__, "text")
    if isinstance(sent, Enum) and kind in SAME and sent != arrived:
        return "", type(sent).__name__, f"{arrived!r:.60}"
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    if kind is dict:
        if not isinstance(sent, Mapping):
            return "", type(sent).__name__, "a dict"
        if not SAME.issuperset(map(type, sent.values())):
            pairs = ((key, item, arrived[key]) for key, item in sent.items() if key in arrived)
    elif kind is list and isinstance(sent, list | tuple) and not SAME.issuperset(map(type, sent)):
        pairs = zip(count(), sent, arrived, strict=False)
    for step, item, came in pairs:
        if change := _other_change(item, came):
            return _deeper(step, change)
    return None


def _deeper(step: object, change: Change) -> Change:
    path, what, becomes = change
    return f"[{step!r:.60}]{path}", what, becomes
