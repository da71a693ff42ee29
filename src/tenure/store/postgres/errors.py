"""What PostgreSQL refuses, and what its silence means, as errors of ours."""

import re

import psycopg

from tenure.errors import (
    InvalidInput,
    RowsLocked,
    SchemaMissing,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    ValueRefused,
)
from tenure.store import migrate

CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""Another transaction was in the way: worth another try."""

# At connect the driver gives no code, only text: these will not get better by trying again.
_WRONG = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "rejects connection",
    "permission denied for database",
    "not permitted",
)


def translate(error: psycopg.Error) -> StoreError | InvalidInput:
    """A driver's exception as one of ours, with the fix in its message."""
    text = text_of(error)
    match error.sqlstate or "":
        case "55P03" | "57014" | "40P01" | "40001":
            return RowsLocked(f"another transaction is in the way ({text}); try again")
        case "25006":
            return StoreReadOnly(
                f"this server is read-only, a standby perhaps ({text}); write the "
                "host of the primary into the URL, or add target_session_attrs=read-write to it"
            )
        case "42501":
            return StoreReadOnly(
                f"this role lacks a privilege ({text}); see the docs on least privilege"
            )
        case "53100":
            return StoreFull(f"the database server's disk is full ({text}); nothing was written")
        case "42P01" | "3F000" | "42883":
            return SchemaMissing(f"the Tenure schema is not complete ({text}); {migrate.FIX}")
        case state if state[:2] in ("22", "23"):
            return ValueRefused(f"the database refused a value: {text}")
        case "":
            refused = any(words in text for words in _WRONG)
            what = "refused the connection" if refused else "cannot be reached"
            return StoreUnavailable(f"PostgreSQL {what} ({text}); {_hint(text)}")
        case state if is_outage(error):
            return StoreUnavailable(f"PostgreSQL went away and did not come back ({text})")
        case state:
            return StoreError(f"PostgreSQL says: {text} [{state}]")


_HINTS = (
    ("password authentication failed", "check the user and the password in the URL"),
    ("no password supplied", "write the password into the URL, or set PGPASSWORD or ~/.pgpass"),
    ("authentication failed", "check the user in the URL, and how pg_hba.conf lets it in"),
    ("role", "create the role, or check the user in the URL"),
    ("database", "create the database with createdb, or check its name in the URL"),
    ("pg_hba.conf", "allow this host, user and database in pg_hba.conf, or check the URL"),
    ("translate host name", "check the host in the URL; its name cannot be resolved"),
    ("resolve host", "check the host in the URL; its name cannot be resolved"),
    ("Name or service not known", "check the host in the URL; its name cannot be resolved"),
    ("Connection refused", "start the server, or check the host and the port in the URL"),
    ("No such file", "start the server, or check the folder of its socket in the URL"),
    ("timeout", "check the host and the port in the URL, and firewalls on the way"),
    ("timed out", "check the host and the port in the URL, and firewalls on the way"),
    ("No route", "check the host in the URL and the network"),
    ("unreachable", "check the host in the URL and the network"),
    ("too many", "end other connections, or raise max_connections of the server"),
    ("connection slots", "end other connections, or raise max_connections of the server"),
    ("SSL", "check sslmode in the URL and the certificates"),
    ("starting up", "wait until the server has started"),
    ("shutting down", "start the server again"),
)
"""The words of libpq, and the fix. The first that fits counts."""


def _hint(text: str) -> str:
    for words, fix in _HINTS:
        if words in ("role", "database"):
            if f'{words} "' in text and "does not exist" in text:
                return fix
        elif words in text:
            return fix
    return "check the URL and that the server runs"


def is_outage(error: psycopg.Error) -> bool:
    """Is the connection gone, or the server not one that can be written to now?"""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and not any(
            text in str(error) for text in _WRONG
        )
    return is_unanswered(error) or state in ("25006", "53300", "25P03")


def is_unanswered(error: psycopg.Error) -> bool:
    """Did the server not say what became of the statement?"""
    state = error.sqlstate
    return state is None or state[:2] == "08" or state[:4] == "57P0"


def text_of(error: psycopg.Error) -> str:
    """The words of the server or of libpq on one line, without the statement to which the server
    points, and without libpq's question for the reader."""
    text = " ".join(str(error).split())
    text = re.sub(r" Is the server running [^?]*\?| LINE \d+: .*? \^", "", text)
    return text[:300] or type(error).__name__
