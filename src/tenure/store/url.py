"""The URL of a store: which database, and its options."""

import re
from collections.abc import Container
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tenure.errors import ConfigError
from tenure.rules.limits import check_int, check_seconds
from tenure.store.session import Session
from tenure.store.sqlite.driver import Driver

MAX_CONNECTIONS = 1000

_SCHEMES = ("sqlite://", "postgresql://", "postgres://")
_SQLITE_OPTIONS = {"driver", "synchronous", "allow_affected_sqlite", "allow_network"}
_POSTGRES_OPTIONS = {"schema", "pooler", "notify"}
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")


def open_session(
    url: str, colour: Literal["sync", "async"], connections: int, give_up_seconds: float
) -> Session:
    """A session on the database that the URL names."""
    check_int("connections", connections, 1, MAX_CONNECTIONS)
    check_seconds("give_up_seconds", give_up_seconds)
    parts = _split(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "sqlite":
        return _sqlite(sqlite_path(url), sqlite_driver(url), options, give_up_seconds)
    ours = {name: value for name, value in options.items() if name in _POSTGRES_OPTIONS}
    return _postgres(without(url, ours), ours, colour, connections, give_up_seconds)


def check_scheme(url: object) -> None:
    """Refuse a URL of another kind of database."""
    if not isinstance(url, str):
        raise ConfigError(f"a store URL must be a string, not {type(url).__name__}")
    if not url.startswith(_SCHEMES):
        wrong = _wrong_scheme(url)
        raise ConfigError(f"a store URL must start with sqlite:/// or postgresql://; {wrong}")


def _wrong_scheme(url: str) -> str:
    """What is wrong with it, and the fix. Shows nothing that may be a password."""
    if url[:1] in ("'", '"'):
        return "this one is in quotes; remove them"
    if re.match(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=", url):
        return "this one is a list of keywords; write postgresql://USER:PASSWORD@HOST/DATABASE"
    if url.startswith("sqlite:"):
        file = url.removeprefix("sqlite:").lstrip("/")
        absolute = f", or sqlite:////{file} for an absolute path" if url[7:8] == "/" else ""
        return f"write sqlite:///{file}{absolute}"
    scheme, mark, _ = url.partition("://")
    if not mark:
        is_file = re.fullmatch(r"[\w./ -]+", url)  # so it has no password
        return f"this one has no scheme; write sqlite:///{url if is_file else 'jobs.db'}"
    engine, plus, driver = scheme.partition("+")
    if plus and f"{engine}://" in _SCHEMES:
        slashes = ":///" if engine == "sqlite" else "://"
        return f"remove +{driver:.30} and write {engine}{slashes}..."
    return f"{scheme:.30}:// is not supported"


def _split(url: str) -> SplitResult:
    check_scheme(url)
    try:
        url.encode()  # no driver accepts a URL that is not UTF-8
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the URL cannot be read: {error}") from error
    user, mark, _ = parts.netloc.rpartition("@")
    if parts.scheme != "sqlite" and "@" in (user if mark else parts.path + parts.fragment):
        raise ConfigError(
            "the URL has an @ that does not end the password; in a user or a password write %40 "
            "for @, %3A for :, %2F for /, %3F for ? and %23 for #"
        )
    return parts


def sqlite_path(url: str) -> str:
    """The file that the URL of a SQLite store names."""
    parts = _split(url)
    host, path = parts.netloc, unquote(parts.path)
    if parts.fragment:
        raise ConfigError("the URL has a #; write %23 where the file's name has one")
    if host:
        raise ConfigError(
            f"sqlite://{host}{path} names a host; write sqlite:///{host}{path} for a file in the "
            "working directory"
        )
    return path.removeprefix("/")


def sqlite_driver(url: str) -> Driver:
    """The library that the URL of a SQLite store names."""
    options = dict(parse_qsl(_split(url).query, keep_blank_values=True))
    driver = _one_of("driver", options.get("driver", "apsw"), ("apsw", "sqlite3"))
    return "sqlite3" if driver == "sqlite3" else "apsw"


def without(url: str, names: Container[str]) -> str:
    """The URL without these options; every other character stays as the user wrote it."""
    address, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if unquote(pair.split("=")[0]) not in names]
    return f"{address}?{'&'.join(kept)}"


def _sqlite(path: str, driver: Driver, options: dict[str, str], give_up_seconds: float) -> Session:
    from tenure.store.sqlite.session import SQLite

    _refuse_unknown(options, _SQLITE_OPTIONS)
    synchronous = _one_of("synchronous", options.get("synchronous", "FULL"), ("FULL", "NORMAL"))
    allowed = {
        name: _one_of(name, options.get(name, "0"), ("0", "1")) == "1"
        for name in ("allow_affected_sqlite", "allow_network")
    }
    return SQLite(
        path,
        driver_name=driver,
        synchronous=synchronous,
        give_up_seconds=give_up_seconds,
        allow_affected=allowed["allow_affected_sqlite"],
        allow_network=allowed["allow_network"],
    )


def _postgres(
    conninfo: str,
    options: dict[str, str],
    colour: Literal["sync", "async"],
    connections: int,
    give_up_seconds: float,
) -> Session:
    try:
        from tenure.store.postgres import connection as wire
        from tenure.store.postgres.session import Postgres
    except ImportError as error:
        raise ConfigError(
            "PostgreSQL needs a driver: pip install 'tenure[postgres]' (in a checkout: make setup)"
        ) from error

    schema = options.get("schema", "tenure")
    if not _SCHEMA_NAME.match(schema) or schema.startswith("pg_"):
        raise ConfigError(
            f"schema {schema[:60]!r} must be lower-case letters, digits and _, without pg_ in front"
        )
    pooler = _one_of("pooler", options.get("pooler", "none"), ("none", "transaction"))
    # Behind a pooler no worker listens, unless the user knows of workers that connect directly.
    usual = "on" if pooler == "none" else "off"
    notify = _one_of("notify", options.get("notify", usual), ("on", "off"))
    new_colour = wire.BlockingColour if colour == "sync" else wire.SuspendingColour
    return Postgres(
        conninfo,
        lambda: new_colour(connections),
        schema=schema,
        give_up_seconds=give_up_seconds,
        transaction_pooler=pooler == "transaction",
        notify=notify == "on",
    )


def _refuse_unknown(options: dict[str, str], known: set[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"unknown option {unknown[0]!r} in the URL; known options: {', '.join(sorted(known))}"
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(
            f"unknown value {name}={value[:30]} in the URL; use one of {', '.join(allowed)}"
        )
    return value
