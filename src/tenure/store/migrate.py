"""Migrations: numbered, transactional, one process at a time.

The schema stores its `version` and `min_code`, the oldest code that may use it, so that workers of
this version and the one before run side by side, and older code refuses with the fix named.
"""

from tenure.errors import SchemaMissing, SchemaTooNew, SchemaTooOld
from tenure.store.sqlite.driver import Connection
from tenure.store.statements import migration_script, split_script

VERSION = 5
"""The schema this code writes."""

MIN_CODE = {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
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


def migrate_sqlite(connection: Connection) -> int:
    """Bring one SQLite file up to date, inside the caller's exclusive transaction."""
    table = "tenure_schema_version"
    found = list(connection.execute(f"select 1 from sqlite_master where name = '{table}'"))
    if not found:
        connection.execute(f"create table {table} {VERSION_TABLE} strict")
        connection.execute(f"insert into {table} values (1, 0, 0)")
    [(version, min_code)] = list(connection.execute(f"select version, min_code from {table}"))
    if version > VERSION:
        check_version(version, min_code)
        return int(version)
    for step in range(version + 1, VERSION + 1):
        for statement in split_script(migration_script("sqlite", step, "tenure")):
            connection.execute(statement)
        connection.execute(f"update {table} set version = {step}, min_code = {MIN_CODE[step]}")
    return VERSION
