"""What PostgreSQL refuses, and what its silence means, as errors of ours."""

import psycopg

from tenure.errors import (
    InvalidInput,
    SchemaMissing,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    ValueRefused,
)
from tenure.store import migrate
from tenure.store.session import RowsLocked

CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""Somebody else was in the way: worth another try."""

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
            return StoreReadOnly(f"this server is read-only, a standby perhaps ({text})")
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
            return StoreUnavailable(
                f"PostgreSQL cannot be reached ({text}); check the URL and that the server runs"
            )
        case state if is_outage(error):
            return StoreUnavailable(f"PostgreSQL went away and did not come back ({text})")
        case state:
            return StoreError(f"PostgreSQL says: {text} [{state}]")


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
    return " ".join(str(error).split())[:300] or type(error).__name__
