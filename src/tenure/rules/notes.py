"""Notes: small values that a running job adds to itself with `annotate`.

A note has a name and a text, a number or a bool. A new value replaces the old one; None removes it.
The notes of all attempts of a job are one object. It is bounded, because each attempt keeps a copy
of it in its entry of the timeline.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import TypeAlias

import msgspec

from tenure.errors import InvalidInput, InvalidName, OutOfRange, PayloadTooLarge
from tenure.rules.job import Json
from tenure.rules.limits import not_this

NoteValue: TypeAlias = str | int | float | bool | None

MAX_NOTES = 64
"""Of one job."""
MAX_NOTES_BYTES = 8192
"""All notes of one job together, as JSON."""
MAX_NOTE_CHARS = 1000
"""Of one text."""
_MAX_INT = 2**63

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def checked(values: Mapping[str, NoteValue]) -> dict[str, NoteValue]:
    """The notes as plain values. Raises an error that names the note that cannot be kept."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"notes must be a dict of values by name, {not_this(values)}")
    notes = {_name(name): _plain(name, value) for name, value in values.items()}
    check_size(notes)
    return notes


def check_size(notes: Mapping[str, NoteValue]) -> None:
    """Accept as many notes as one job may have."""
    if len(notes) > MAX_NOTES:
        raise PayloadTooLarge(
            f"a job has at most {MAX_NOTES} notes, and this would make {len(notes)}; keep large "
            "or many values elsewhere, and annotate a reference to them"
        )
    if (size := len(dump(notes))) > MAX_NOTES_BYTES:
        raise PayloadTooLarge(
            f"the notes are {size} bytes long; the maximum is {MAX_NOTES_BYTES}; keep large values "
            "elsewhere, and annotate a reference to them"
        )


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidName(
            f"a note needs a name of up to 64 letters, digits and _ that starts with a letter or "
            f"_, {not_this(name)}"
        )
    return str(name)


def _plain(name: str, value: object) -> NoteValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -_MAX_INT <= value < _MAX_INT:
            raise OutOfRange(f"note {name} must fit into 64 bits, {not_this(value)}")
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise OutOfRange(f"note {name} must be a finite number, {not_this(value)}")
        return float(value)
    if not isinstance(value, str):
        raise InvalidInput(
            f"note {name} must be a str, int, float, bool or None, not {type(value).__name__}; "
            "convert it"
        )
    if len(value) > MAX_NOTE_CHARS:
        raise PayloadTooLarge(
            f"note {name} is {len(value)} characters long; the maximum is {MAX_NOTE_CHARS}"
        )
    if _UNSTORABLE.search(value):
        raise InvalidInput(f"note {name} contains NUL or a lone surrogate; remove it")
    return str(value)


def merged(old: str | None, new: Mapping[str, NoteValue]) -> Json | None:
    """The stored notes with new values. None: there is no note left.

    If the notes of earlier attempts and the new ones are too many together, the oldest go.
    """
    kept: dict[str, NoteValue] = msgspec.json.decode(old) if old else {}
    for name in new:
        kept.pop(name, None)
    notes = kept | {name: value for name, value in new.items() if value is not None}
    while len(notes) > MAX_NOTES or len(dump(notes)) > MAX_NOTES_BYTES:
        del notes[next(iter(notes))]
    return dump(notes) if notes else None


def dump(notes: Mapping[str, NoteValue]) -> Json:
    """Notes as they are stored."""
    return Json(msgspec.json.encode(notes))
