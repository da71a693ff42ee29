"""A look at a SQLite file before a store opens it: is it one of ours? The look writes nothing.

A store sets the journal mode of its file and creates its tables. A command that only reads must not
do this to the file of another program.
"""

import os
from contextlib import suppress
from urllib.parse import quote

from tenure.errors import ConfigError, SchemaMissing, StoreError
from tenure.store.migrate import check_version
from tenure.store.sqlite.driver import Driver, check_not_open_elsewhere, check_path, look, names_of


def require_schema(path: str, driver: Driver) -> None:
    """Raise an error that names the fix, unless the file has a schema that this code can use."""
    check_path(path)
    check_not_open_elsewhere(path, driver)
    version, tables = _look_inside(path, driver)
    if version is not None:
        check_version(*version)
        return
    if tables:
        raise _of_another_program(path, tables)
    raise SchemaMissing(f"{path} has no Tenure schema; `tenure db init` creates it")


def refuse_other_program(path: str, driver: Driver) -> None:
    """Raise an error if the file has tables of another program and none of Tenure.

    A file that cannot be read now is not refused: the store that opens it says what is wrong.
    """
    version, tables = None, 0
    if _has_content(path):
        with suppress(StoreError, ConfigError):
            check_not_open_elsewhere(path, driver)
            version, tables = _look_inside(path, driver)
    if tables and version is None:
        raise _of_another_program(path, tables)


def _of_another_program(path: str, tables: int) -> SchemaMissing:
    return SchemaMissing(
        f"{path} belongs to another program: it has {tables} table{'s' * (tables > 1)} and no "
        "Tenure schema. Check the URL; to add Tenure's tables to this file, run `tenure db init` "
        "or call app.migrate()"
    )


def _look_inside(path: str, driver: Driver) -> tuple[tuple[int, int] | None, int]:
    _, wal, _ = names_of(path)
    read = None
    if not _has_content(wal):  # then everything is in the file, and no other file is needed
        read = _read(path, driver, "mode=ro&immutable=1")
    if read is None or _has_content(wal):
        read = _read(path, driver, "mode=ro")
    return read


def _has_content(file: str) -> bool:
    try:
        return os.stat(file).st_size > 0
    except OSError:
        return False


def _read(path: str, driver: Driver, mode: str) -> tuple[tuple[int, int] | None, int]:
    """The version of the schema and its oldest code, if there is one; how many tables there are."""
    with look(f"file:{quote(os.path.abspath(path))}?{mode}", path, driver) as rows:
        tables = {name for (name,) in rows("select name from sqlite_master where type = 'table'")}
        if "tenure_schema_version" not in tables:
            return None, len(tables)
        [(version, min_code)] = rows("select version, min_code from tenure_schema_version")
        return (version, min_code), len(tables)
