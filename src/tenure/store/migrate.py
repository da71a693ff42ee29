"""Migrations: numbered, transactional, one process at a time.

The schema stores its `version` and `min_code`, the oldest code that may use it. So workers of two
neighbouring versions can run at the same time, and older code is refused with the fix named.
"""

from tenure.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

VERSION = 2
"""The schema that this code writes."""

MIN_CODE = {1: 1, 2: 2}
"""Per schema version: the oldest code version that may use it."""

FIX = "run `tenure db migrate` or call app.migrate()"

VERSION_TABLE = (
    "(one integer primary key check (one = 1), version integer not null, min_code integer not null)"
)


def check_version(version: int | None, min_code: int | None) -> None:
    """Refuse a schema that this code cannot use."""
    if version is None or min_code is None:
        raise SchemaMissing(f"this database has no Tenure schema yet; {FIX}")
    if min_code > VERSION:
        raise SchemaTooNew(
            f"the schema is at version {version} and needs Tenure with schema {min_code} or newer; "
            f"this is {VERSION}. Upgrade the tenure package"
        )
    if version < VERSION:
        raise SchemaTooOld(f"the schema is at version {version}, not {VERSION}; {FIX}")
