"""Values to strict JSON and back: only values that every store can keep.

    encode, decode            arguments, results, checkpoints; annotations give the types back
    fingerprint               equal for the same task and arguments
    clean_text, encode_error  an error report that can always be stored

Python accepts more than JSON, and databases accept less: PostgreSQL refuses NUL and lone
surrogates, SQLite cuts text at NUL, msgspec writes NaN as null. Such values are refused at enqueue,
and the error names the path to them. `encode` has two ways: a check of the types (about a
microsecond) that accepts ordinary values, and for all others a walk that converts and checks each
part. Dicts keep their order; sets, and dicts inside dataclasses, are sorted. Pickle is never used.
"""

import hashlib
import re
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isfinite
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, cast, overload
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, PayloadInvalid, PayloadTooLarge
from tenure.rules.job import Json

T = TypeVar("T")

MAX_BYTES = 1_048_576
"""The maximum size of one encoded value, unless the caller gives another."""

MAX_DEPTH = 100
"""The maximum nesting of containers. SQLite's JSON functions and Python's stack end near 1,000."""

MAX_ERROR_CHARS = 20_000
"""How much of an error is stored, unless the caller gives another limit."""

_INFINITY = float("inf")
_BACKSLASH = ord("\\")
_MAX_TYPE_CHARS = 200
_MAX_STEPS = 20
_SAFE_BITS = 2_000  # 603 digits at most
_SAFE_BYTES = 640  # the interpreter's limit on the digits of an integer cannot be set lower

# Types that msgspec writes correctly for every value, except NUL and surrogates in text.
_HARMLESS = frozenset({str, int, bool, type(None), UUID, bytes, date})
_CONTAINERS = frozenset({dict, list, tuple})
_TEXT = frozenset({str})
# Types that `to_builtins` must not convert, so that the walk can check them.
_KEPT = (datetime, date, time, timedelta, UUID, Decimal, bytes)

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_LONG_NEGATIVE = re.compile(rb"-[0-9]{640}")
_NUMBER_NAMES = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}

_to_json = msgspec.json.Encoder().encode
_to_sorted_json = msgspec.json.Encoder(order="deterministic").encode

# What msgspec and objects of the user raise for a value that they refuse. RecursionError is a
# RuntimeError.
_REFUSALS = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    BufferError,
)


def encode(value: object, *, what: str = "value", max_bytes: int = MAX_BYTES) -> Json:
    """The value as strict JSON of at most `max_bytes`, or an error that names path and fix.

    Raises only PayloadInvalid or PayloadTooLarge, for any value. Every store can keep the result,
    and every JSON reader can read it; `decode` with the right type returns an equal value. Pydantic
    models encode themselves, including times without a zone.
    """
    data = b""
    flat = (  # as most arguments are: checked without a Python loop
        type(value) is dict
        and _TEXT.issuperset(map(type, value))
        and _HARMLESS.issuperset(map(type, value.values()))
    )
    try:
        if flat or _is_plain(value, max_bytes):
            data = _to_json(value)
    except _REFUSALS:
        data = b""  # a surrogate, or an integer with thousands of digits: the walk finds it
    size = len(data)
    # A text with a backslash before "u0000" looks like NUL here and only costs the walk. The search
    # for the backslash comes first: to search bytes for an integer takes 30 ns, for bytes 230 ns.
    # msgspec writes "-" and 4,300 digits, but reads 4,300 characters at most.
    if (
        not size
        or (_BACKSLASH in data and b"\\u0000" in data)
        or (size > _SAFE_BYTES and _LONG_NEGATIVE.search(data))
    ):
        data = _encode_checked(value, what, max_bytes)
        size = len(data)
    if size > max_bytes:
        raise _too_large(what, f"{size:,} bytes as JSON", max_bytes)
    return Json(data)


@overload
def decode(data: bytes | str) -> object: ...
@overload
def decode(data: bytes | str, type: type[T]) -> T: ...
@overload
def decode(data: bytes | str, type: object) -> object: ...
def decode(data: bytes | str, type: object = object) -> object:
    """The JSON as an instance of `type`: any annotation that msgspec understands, or a pydantic
    model, also inside other types. Integers are exact, floats are finite.

    Raises PayloadInvalid, with the path, when the JSON is broken or does not fit.
    """
    try:
        return decoder(type).decode(data)
    except _REFUSALS as error:
        raise misfit(type, error) from error


def check_type(what: str, type: object) -> None:
    """Refuse an annotation that JSON cannot be decoded into."""
    try:
        decoder(type)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} has no JSON form: {clean_text(str(error), 500)}") from error


def fingerprint(task: str, args: bytes) -> str:
    """32 hexadecimal digits that are equal for the same task and arguments, in any key order."""
    canonical = _to_sorted_json(decode(args))
    # Task names have no line break, so different pairs of task and arguments give different bytes.
    return hashlib.sha256(b"%b\n%b" % (task.encode(), canonical)).hexdigest()[:32]


def clean_text(text: str, max_chars: int) -> str:
    """At most `max_chars` of the text, with U+FFFD for characters that a database refuses.

    A longer text keeps its beginning and its end, because the first and last lines of an error say
    most.
    """
    if len(text) > max_chars:
        marker = f"\n[... {len(text):,} characters in all ...]\n"
        kept = max_chars - len(marker)
        if kept < 2:
            text = text[: max(0, max_chars)]
        else:
            text = text[: kept - kept // 2] + marker + text[-(kept // 2) :]
    return _UNSTORABLE.sub("\ufffd", text)


def encode_error(error: BaseException, *, max_chars: int = MAX_ERROR_CHARS) -> Json:
    """The error as `{"type", "module", "message", "traceback"}`: `max_chars`, plus the names.

    Never raises, so that every failure can be recorded. Local variables are not stored.
    """
    message_chars = max_chars // 5
    report = {
        "type": _told(lambda: _type_name(error), _MAX_TYPE_CHARS),
        "module": _told(lambda: type(error).__module__, _MAX_TYPE_CHARS),
        "message": _told(lambda: str(error), message_chars),
        "traceback": _told(
            lambda: "".join(traceback.format_exception(error)), max_chars - message_chars
        ),
    }
    return Json(_to_json(report))


def error_json(error: BaseException | str) -> Json:
    """An error that a caller gives: an exception, or a message."""
    if isinstance(error, str):
        error = Exception(error)
    if not isinstance(error, BaseException):
        raise InvalidInput(f"an error must be an exception or a message, not {error!r:.60}")
    return encode_error(error)


def add_output(error: Json, output: str) -> Json:
    """The encoded error with the end of the output of its process."""
    report = cast("dict[str, object]", decode(error))
    return Json(_to_json(report | {"output": clean_text(output, MAX_ERROR_CHARS)}))


def _told(tell: Callable[[], str], max_chars: int) -> str:
    """A text of an error, or the reason why it is not available."""
    try:
        return clean_text(str.__str__(tell()), max_chars)
    except BaseException as failure:  # noqa: BLE001 - even SystemExit from a __str__ must not escape
        return clean_text(f"<not available: {type(failure).__name__}>", max_chars)


def _is_plain(value: object, max_bytes: int) -> bool:
    """True when msgspec alone writes the value correctly; text is checked by the caller.

    The loop goes level by level, which limits the depth and stops at circular references. It has no
    function call per item, which would double the cost.
    """
    level: Iterable[Any] = (value,) if type(value) in _CONTAINERS else ((value,),)
    containers_left = max_bytes // 2
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                for key in container:
                    if type(key) is not str:
                        return False
                items = container.values()
            for item in items:
                kind = type(item)
                if kind in _HARMLESS:
                    continue
                if kind is float and -_INFINITY < item < _INFINITY:  # False for NaN
                    continue
                if kind in _CONTAINERS:
                    deeper.append(item)
                elif kind is not datetime or item.tzinfo is not UTC:
                    return False
            if len(deeper) > containers_left:
                return False
        if not deeper:
            return True
        containers_left -= len(deeper)
        level = deeper
    return False


def _encode_checked(
    value: object, what: str, max_bytes: int, to_json: Callable[[object], bytes] = _to_json
) -> bytes:
    try:
        return to_json(_Walk(max_bytes).checked(value))
    except _TooMany:
        raise _too_large(what, "larger than the limit", max_bytes) from None
    except _Refused as refused:
        raise PayloadInvalid(f"{what} cannot be stored: {refused}") from refused.__cause__
    except RecursionError:
        raise PayloadInvalid(f"{what} cannot be stored: it is nested too deeply") from None
    except Exception as error:  # a property of a user's class may raise anything
        raise PayloadInvalid(f"{what} cannot be stored: {_in_short(error)}") from error


def _too_large(what: str, size: str, max_bytes: int) -> PayloadTooLarge:
    verb = "are" if what.startswith("the arguments") else "is"
    return PayloadTooLarge(
        f"{what} {verb} {size}; the maximum is {max_bytes:,} bytes. Store the data elsewhere (in a "
        "file, an object store or your own table) and pass a reference to it"
    )


class _TooMany(Exception):
    """The value has more containers than the limit in bytes allows."""


class _Refused(Exception):
    """Why a value cannot be stored. The walk adds the path to it while it unwinds."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.steps: list[str | int] = []

    def __str__(self) -> str:
        path = "".join(map(_step, self.steps[: -_MAX_STEPS - 1 : -1]))
        return f"${path}{'...' if len(self.steps) > _MAX_STEPS else ''} {self.why}"


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _IDENTIFIER.match(step) else f"[{step[:60]!r}]"


class _Walk:
    """Converts an accepted value to a tree that msgspec writes correctly, or raises _Refused."""

    def __init__(self, max_bytes: int) -> None:
        self.containers_left = max_bytes // 2 + 1

    def checked(self, value: object, depth: int = 0) -> object:
        """The value with all parts converted and checked."""
        kind = type(value)
        if kind is str:
            return _checked_text(cast("str", value), "contains")
        if kind in _HARMLESS and kind is not int:
            return value
        if isinstance(value, dict):
            self._enter(depth)
            return self._checked_dict(value, depth + 1)
        if isinstance(value, (list, tuple)):
            self._enter(depth)
            return self._checked_list(value, depth + 1)
        leaf = _leaf(value)
        return self.checked(_to_builtins(value), depth) if leaf is msgspec.UNSET else leaf

    def _enter(self, depth: int) -> None:
        self.containers_left -= 1
        if self.containers_left < 0:
            raise _TooMany
        if depth >= MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")

    def _checked_dict(self, value: dict[object, object], depth: int) -> dict[str, object]:
        tree: dict[str, object] = {}
        for raw_key, item in value.items():
            key = raw_key.value if isinstance(raw_key, Enum) else raw_key
            if not isinstance(key, str):
                raise _Refused(
                    f"has a key of type {type(raw_key).__name__}, {_in_short(raw_key)}; "
                    "keys in JSON are strings: use str(key)"
                )
            key = _checked_text(key, "has a key that contains")
            if key in tree:  # an Enum member and its value are different keys in Python only
                raise _Refused(f"has the key {key[:60]!r} twice")
            try:
                tree[key] = self.checked(item, depth)
            except _Refused as refused:
                refused.steps.append(key)
                raise
        return tree

    def _checked_list(self, value: Iterable[object], depth: int) -> list[object]:
        tree: list[object] = []
        for index, item in enumerate(value):
            try:
                tree.append(self.checked(item, depth))
            except _Refused as refused:
                refused.steps.append(index)
                raise
        return tree


def _leaf(value: object) -> object:  # noqa: PLR0912 - one branch per type
    """The JSON form of a single value, subclasses included; UNSET when it is not a single value.

    msgspec knows only the exact types, but subclasses are common: Django's SafeString,
    numpy.float64, asyncpg's UUID, pendulum's and freezegun's datetimes.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):  # before its mixed-in type: decoding uses the member's value
        return msgspec.UNSET
    if isinstance(value, str):
        return _checked_text(value, "contains")
    if isinstance(value, int):
        return _checked_integer(int.__index__(value))
    if isinstance(value, float):
        if not isfinite(value):
            raise _Refused(f"is {_NUMBER_NAMES[float.__repr__(value)]}; JSON has no such number")
        return float.__float__(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise _Refused(f"is Decimal {Decimal.__str__(value)}; JSON has no such number")
        return Decimal.__str__(value)
    if isinstance(value, datetime):
        return _checked_time(value)
    if isinstance(value, date):
        return date.isoformat(value)
    if isinstance(value, time):
        return _with_z(time.isoformat(value))
    if isinstance(value, timedelta):
        return timedelta.__add__(value, timedelta())  # of the exact type
    if isinstance(value, UUID):
        return UUID.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if isinstance(value, PurePath):
        return _checked_text(str(value), "contains")
    return msgspec.UNSET


def _checked_integer(number: int) -> int:
    """The integer, unless it is longer than what the interpreter converts from and to text."""
    if number.bit_length() > _SAFE_BITS:
        digits = sys.get_int_max_str_digits()
        try:
            fits = not digits or len(str(number)) <= digits
        except ValueError:
            fits = False
        if not fits:
            raise _Refused(f"is an integer of more than {digits:,} digits; send it as a string")
    return number


def _checked_text(text: str, where: str) -> str:
    if "\0" in text:
        raise _Refused(f"{where} a NUL character, which databases cannot store; remove it")
    if not text.isascii() and _UNSTORABLE.search(text):
        raise _Refused(f"{where} a lone surrogate, which is not a character; remove it")
    return str.__str__(text)


def _checked_time(value: datetime) -> datetime | str:
    if type(value) is datetime and value.tzinfo is UTC:  # the usual case
        return value
    offset = value.utcoffset()
    if offset is None:
        raise _Refused(
            "is a datetime without a time zone; use datetime.now(timezone.utc) or set its tzinfo"
        )
    if offset % timedelta(minutes=1):  # RFC 3339 has no seconds here, and msgspec drops them
        raise _Refused("is a datetime whose offset has seconds; use .astimezone(timezone.utc)")
    return _with_z(datetime.isoformat(value))


def _with_z(text: str) -> str:
    """The time as msgspec writes it, so that both ways of encoding produce the same bytes."""
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _to_builtins(value: object) -> object:
    """One Struct, dataclass, model, Enum or set as containers and single values.

    Sorted, because the order of a set of strings differs between processes, and equal arguments
    must have equal fingerprints.
    """
    try:
        return msgspec.to_builtins(
            value, builtin_types=_KEPT, enc_hook=_to_builtins_hook, order="deterministic"
        )
    except RecursionError:
        raise _Refused("is nested too deeply, or contains itself") from None
    except _REFUSALS as error:
        why = _in_short(error)
        if "not supported between" in why:  # sorting failed
            why = "has a dict key that is not a string, or a set whose items cannot be sorted"
        raise _Refused(f"({_type_name(value)}) {why}") from error


def _to_builtins_hook(value: object) -> object:
    """Convert what msgspec does not know: subclasses of single values, and pydantic models."""
    leaf = _leaf(value)
    if leaf is not msgspec.UNSET:
        return leaf
    if hasattr(type(value), "model_dump"):
        try:
            return cast("_Model", value).model_dump(mode="json")
        except Exception as error:  # code of the user's model may raise anything
            raise _Refused(f"cannot be dumped: {_in_short(error)}") from error
    raise TypeError(
        f"cannot be written as JSON: no rule for {_type_name(value)}. Pass plain values, "
        "a dataclass, a msgspec Struct or a pydantic model"
    )


class _Model(Protocol):
    """The two methods of a pydantic model that are used here; pydantic is never imported."""

    def model_dump(self, *, mode: str) -> object: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


def _from_builtins_hook(kind: type[object], value: object) -> object:
    """Build what msgspec cannot: paths, pydantic models, and `object`, which accepts all values."""
    if kind is object:
        return value
    if PurePath in getattr(kind, "__mro__", ()) and isinstance(value, str):
        return cast("type[PurePath]", kind)(value)
    if hasattr(kind, "model_validate_json"):
        # Through JSON, because a strict model accepts a string for a date only from JSON.
        return cast("type[_Model]", kind).model_validate_json(_to_json(value))
    raise TypeError(f"no rule to build {kind.__name__} from JSON")


def _new_decoder(kind: object) -> msgspec.json.Decoder[object]:
    target = Any if kind is object else kind  # Any saves the call of the hook
    return msgspec.json.Decoder(cast("type[object]", target), dec_hook=_from_builtins_hook)


_cached_decoder = lru_cache(maxsize=1024)(_new_decoder)


def decoder(kind: object) -> msgspec.json.Decoder[Any]:
    """The decoder that `decode` uses, for callers that decode often."""
    try:
        return _cached_decoder(kind)
    except TypeError:  # an unhashable annotation, or one that msgspec refuses with a reason
        return _new_decoder(kind)


def misfit(kind: object, error: Exception) -> PayloadInvalid:
    """The error for stored JSON that cannot be decoded as this type."""
    name = kind.__qualname__ if isinstance(kind, type) else str(kind)
    return PayloadInvalid(f"stored JSON does not fit {name}: {why_unfit(error)}")


def which_unfit(error: PayloadInvalid) -> str:
    """Which part of stored JSON does not fit, to end a sentence; never with a value of it.

    Empty if only the code of a user could say it: its message may name values.
    """
    cause = error.__cause__
    if not isinstance(cause, msgspec.ValidationError) or cause.__cause__ is not None:
        return ""
    told = re.sub(r"(?s)^(Invalid enum value).*?( - at `[^`]*`)?$", r"\1\2", str(cause))
    return f": {clean_text(told, 300)}"


def why_unfit(error: Exception) -> str:
    """The message of a decoder's error; for an integer that is too long it names the fix."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply to be read"
    digits = sys.get_int_max_str_digits()
    too_long = f"an integer has more than {digits:,} digits (send it as a string)"
    return clean_text(str(error).replace("Integer value out of range", too_long), 2_000)


def _type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )


def _in_short(value: object) -> str:
    """The beginning of a value's text, for a message; never raises."""
    try:
        text = str(value) if isinstance(value, BaseException) else repr(value)
    except Exception as failure:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(failure).__name__} while showing it>"
    return clean_text(text, 300)
