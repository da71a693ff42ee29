"""The limits of everything that a caller passes, and the checks that hold them.

Each check returns nothing, or raises an error that says what is wrong and names the fix. Records
call these checks when they are made, so a store never receives an invalid value.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import msgspec

from tenure.errors import InvalidInput, InvalidName, OutOfRange, PayloadInvalid

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_ATTEMPTS_LIMIT = 10_000
MAX_SECONDS = 100 * 366 * 86_400
MAX_NAME_LENGTH = 200
MAX_REASON_LENGTH = 1000
MAX_KEY_BYTES = 512
MAX_PARENTS = 10_000
MAX_STEPS = 1000
MAX_STEP_BYTES = 16 * 2**20
"""The results of all steps of one job together."""
MAX_ID = 2**53 - 1
MAX_HOST_BYTES = 255
MAX_PID = 2**31 - 1
MAX_SLOTS = 1_000_000
FAR_FUTURE = datetime(9000, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

_json_reader = msgspec.json.Decoder(msgspec.Raw)
_BACKSLASH = ord("\\")
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:<>-]*\Z")

known_names: set[str] = {"default"}
"""Names that were found valid. A full set is emptied: the names in use come back at once."""
KNOWN_NAMES_LIMIT = 4096


def check_name(what: str, name: str) -> None:
    """Accept 1 to 200 ASCII letters, digits and `_ . : < > -`; refuse everything else."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} must be a string, not {type(name).__name__}")
    if name in known_names:
        return
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(
            f"{what} is {len(name)} characters long; the maximum is {MAX_NAME_LENGTH}"
        )
    if not _NAME.match(name):
        raise InvalidName(
            f"{what} {name[:60]!r} is not a valid name: use letters, digits and _ . : < > -, "
            "and start with a letter, a digit or _"
        )
    if len(known_names) >= KNOWN_NAMES_LIMIT:
        known_names.clear()
    known_names.add(name)


def check_text(what: str, text: str, max_bytes: int) -> None:
    """Accept printable text up to a size in UTF-8, so that it fits in an index of the database."""
    if not isinstance(text, str):
        raise InvalidName(f"{what} must be a string, not {type(text).__name__}")
    if not text.isprintable():
        raise InvalidName(
            f"{what} {text[:60]!r} contains control or unprintable characters; remove them"
        )
    if len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
        raise InvalidName(f"{what} is {len(text.encode())} bytes long; the maximum is {max_bytes}")


def not_encoded(what: str, maker: str = "tenure.rules.codec.encode(value)") -> InvalidInput:
    """The error for a plain value where stored JSON is expected."""
    return InvalidInput(f"{what} must be encoded first: use {maker}")


def check_json(what: str, data: bytes, maker: str = "tenure.rules.codec.encode(value)") -> None:
    """Accept strict JSON in UTF-8 without NUL in its text, which every store keeps unchanged.

    `encode` always produces such JSON. Other bytes might be refused by one store and kept by the
    other, or be read as a part of the statement's own JSON. (0.2 microseconds for 120 bytes.)
    """
    if type(data) is not bytes:
        raise not_encoded(what, maker)
    try:
        _json_reader.decode(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadInvalid(f"{what} is not strict JSON ({error}); use {maker}") from error
    if _BACKSLASH in data and _ESCAPED_NUL.search(data):
        raise PayloadInvalid(f"{what} contains NUL, which databases cannot store; remove it")


def check_step_name(name: str) -> None:
    """Accept printable text: a step's name identifies it within its job."""
    check_text("the name of a step", name, MAX_NAME_LENGTH)
    if not name:
        raise InvalidName("the name of a step is empty; name each step of a job")


def check_reason(reason: str) -> None:
    """Accept an operator's reason: printable text on one line."""
    check_text("reason", reason, MAX_REASON_LENGTH)


def check_progress(fraction: float | None, message: str | None) -> None:
    """Accept a fraction from 0 to 1, and a message."""
    if fraction is not None:
        _check_fraction(fraction)
    if message is not None:
        _check_message(message)


def _check_message(message: object) -> None:
    if not isinstance(message, str):
        raise InvalidInput(f"a progress message must be a string, {not_this(message)}")


def _check_fraction(fraction: object) -> None:
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise OutOfRange(f"progress must be a fraction from 0 to 1, {not_this(fraction)}")


def check_parents(parents: tuple[int, ...]) -> None:
    """Accept a tuple of job ids."""
    if type(parents) is not tuple:
        raise InvalidInput(f"parents must be a tuple of job ids, {not_this(parents)}")
    if len(parents) > MAX_PARENTS:
        raise OutOfRange(f"a job may have at most {MAX_PARENTS} parents, not {len(parents)}")
    for parent in parents:
        check_int("a parent's id", parent, 1, MAX_ID)


def check_int(what: str, value: int, least: int, most: int) -> None:
    """Accept an integer within the bounds; a bool is refused."""
    if type(value) is not int or not least <= value <= most:
        raise OutOfRange(f"{what} must be a whole number from {least} to {most}, {not_this(value)}")


class JobReference:
    """The base of all records that stand for one job and have its id: `Job`, `Handle`."""

    __slots__ = ()
    id: int


JobId: TypeAlias = int | JobReference
"""How callers name a job: by its id, or by a record that stands for it."""


def id_of(job: JobId) -> int:
    """The id of the job that a caller names. Refuses every other type, also digits in a string."""
    id = job.id if isinstance(job, JobReference) else job
    check_id("the id of a job", id)
    return id


def check_id(what: str, id: int) -> None:
    """Accept an integer; a bool is refused. Whether there is such a row is for the database."""
    if type(id) is not int:
        fix = "; convert it with int(...)" if isinstance(id, str | float) else ""
        raise InvalidInput(f"{what} must be a whole number, {not_this(id)}{fix}")


def is_id(value: int) -> bool:
    """Can a row have this id? Other values are never sent to a database."""
    return 1 <= value <= MAX_ID


def check_seconds(what: str, value: float, least: float = 0.0) -> None:
    """Accept a finite number of seconds up to a hundred years."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OutOfRange(f"{what} must be a number of seconds, {not_this(value)}")
    if not least <= value <= MAX_SECONDS:  # also refuses NaN
        raise OutOfRange(
            f"{what} must be from {least:g} to {MAX_SECONDS:,} seconds, {not_this(value)}"
        )


def take_lengths(record: msgspec.Struct, *names: str) -> None:
    """For a new record: a `timedelta` in these fields becomes its number of seconds."""
    for name in names:
        value = getattr(record, name)
        if isinstance(value, timedelta):
            msgspec.structs.force_setattr(record, name, value.total_seconds())


def seconds_of(value: "float | timedelta") -> float:
    """A length of time as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


Timeout: TypeAlias = float | timedelta | None
"""How long a caller waits; None: for ever."""


def not_this(value: object) -> str:
    """The end of an error message: `not 'x'`. A value that cannot be shown is named by its type."""
    try:
        return f"not {value!r:.60}"
    except Exception:  # noqa: BLE001 - repr(10**5000) raises, and a user's __repr__ may
        return f"not this {type(value).__name__}"


def check_time(what: str, value: datetime) -> None:
    """Accept an aware datetime between 1970 and 9000; a naive one is refused."""
    if not isinstance(value, datetime):
        raise OutOfRange(f"{what} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise OutOfRange(
            f"{what} has no time zone; use datetime.now(timezone.utc) or set tzinfo on it"
        )
    if not LONG_AGO <= value <= FAR_FUTURE:
        raise OutOfRange(f"{what} must be between the years 1970 and 9000, not {value.isoformat()}")
