"""Migrations of one SQLite file."""

from tenure.store.migrate import MIN_CODE, VERSION, VERSION_TABLE, check_version
from tenure.store.sqlite.driver import Connection, DriverError
from tenure.store.statements import migration_script, split_script


def is_current(connection: Connection) -> bool:
    """Is there nothing to migrate?

    Looks without a lock: the first operation of a process may be in a transaction of the caller,
    which has the write lock and would wait for itself.
    """
    try:
        [(version,)] = connection.execute("select version from tenure_schema_version")
    except DriverError:
        return False
    return bool(version == VERSION)


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
