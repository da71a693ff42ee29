"""The SQL of both stores, by name.

A `.sql` file is a list of named entries. `-- name: X` opens one; the comments under it say which
transition it implements and why. Both dialects have the same names, so one body of Python serves
both. Parameters are written `:name`. `tenure.` stands for the schema on PostgreSQL and for the
prefix of the tables on SQLite. `{GATE}` stands for that bit of `tenure.rules.job.Feature`, and
`{GATE | KEY}` for both bits.
"""

import re
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from tenure.rules.job import FEATURES

Dialect = Literal["postgres", "sqlite"]

TOPICS = (
    "enqueue", "claim", "gate", "settle", "step", "workflow", "sweep", "schedule", "operate",
    "bulk", "expire", "inspect", "find", "presence", "statistic", "bell", "transfer", "feed",
)  # fmt: skip

_NAME_LINE = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_RELATION = re.compile(
    r"^create (?:table|view|sequence|index|unique index) (?:tenure\.)?(\w+)", re.MULTILINE
)
_SCHEMA = re.compile(r"\btenure\.")
_FEATURES = re.compile(r"\{([A-Z_]+(?: \| [A-Z_]+)*)\}")


@lru_cache
def statements(dialect: Dialect, schema: str) -> dict[str, tuple[str, ...]]:
    """All entries of one dialect: name -> the statements to run in order."""
    found: dict[str, tuple[str, ...]] = {}
    for topic in TOPICS:
        parts = _NAME_LINE.split(_read(dialect, f"{topic}.sql"))[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two statements are called {name}"
            found[name] = _prepare(text, dialect, schema)
    return found


def completed(sql: str, condition: str, *, oldest: bool) -> str:
    """A statement of find.sql with a condition in it; `oldest`: with its order turned round."""
    if oldest:
        for before, now in (
            ("< /*past*/", ">"), ("desc /*way*/", "asc"),
        ):  # fmt: skip
            sql = sql.replace(before, now)
    return sql.replace("true /*filter*/", condition)


def migration_script(dialect: Dialect, version: int, schema: str) -> str:
    """The script that brings the schema from `version - 1` to `version`."""
    return qualify(_read(dialect, f"migrations/{version:04}.sql"), dialect, schema)


@lru_cache
def relations(dialect: Dialect, last: int) -> tuple[str, ...]:
    """The tables, views, indexes and sequences that the migrations up to the last one create."""
    found: list[str] = []
    for version in range(1, last + 1):
        found += _RELATION.findall(_read(dialect, f"migrations/{version:04}.sql"))
    return tuple(sorted(set(found)))  # a later version may make a view again


def qualify(sql: str, dialect: Dialect, schema: str) -> str:
    """Put the schema (PostgreSQL) or the table prefix (SQLite) where the text says `tenure.`."""
    return _SCHEMA.sub(f"{quoted(schema)}." if dialect == "postgres" else f"{schema}_", sql)


def quoted(schema: str) -> str:
    """The schema's name in SQL: `order` is a fine name and a reserved word."""
    return schema if schema == "tenure" else f'"{schema}"'


def split_script(sql: str) -> list[str]:
    """The statements of a script without function bodies, in order."""
    return [part for part in re.split(r";\s*\n", _COMMENT_LINE.sub("", sql) + "\n") if part.strip()]


def _prepare(text: str, dialect: Dialect, schema: str) -> tuple[str, ...]:
    sql = _FEATURES.sub(_bits, qualify(text, dialect, schema))
    if dialect == "postgres":
        sql = _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
    return tuple(split_script(sql))


def _bits(names: re.Match[str]) -> str:
    return str(sum(FEATURES[name] for name in names[1].split(" | ")))


def _read(dialect: Dialect, path: str) -> str:
    return files("tenure.store").joinpath(dialect, "sql", path).read_text("utf-8")
