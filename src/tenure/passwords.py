"""Keeps the passwords of URLs out of all messages and logs."""

import re
from pathlib import Path
from urllib.parse import unquote

SECRET_OPTIONS = frozenset({"password", "sslpassword"})
HIDDEN = "***"

_passwords: set[str] = set()


def remember(url: str) -> None:
    """Remember the passwords of a URL, so that no message shows them.

    A password that is also the name of the user or of the database is not a secret. To hide it
    would make messages with that name unreadable.
    """
    names = set(re.split(r"[:/@?]+", shown_url(url)))
    for password in _passwords_of(url):
        _passwords.update({password, unquote(password)} - names)


def _passwords_of(url: str) -> list[str]:
    address, _, query = url.partition("?")
    login = address.partition("://")[2].rpartition("@")[0]
    pairs = [pair.partition("=") for pair in query.split("&")]
    found = [value for name, _, value in pairs if unquote(name) in SECRET_OPTIONS]
    return [password for password in [login.partition(":")[2], *found] if password]


def without_passwords(text: str) -> str:
    """The text with every remembered password replaced by ***."""
    for password in sorted(_passwords, key=len, reverse=True):
        text = text.replace(password, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """The URL without its password."""
    address, mark, query = url.partition("?")
    scheme, colon, rest = address.partition("://")
    login, at, host = rest.rpartition("@")
    pairs = query.split("&")
    kept = "&".join(p for p in pairs if unquote(p.partition("=")[0]) not in SECRET_OPTIONS)
    return f"{scheme}{colon}{login.partition(':')[0]}{at}{host}{mark if kept else ''}{kept}"


def absolute_url(url: str) -> str:
    """The URL without its password, and for a SQLite file with the absolute path, for people."""
    address, mark, query = shown_url(url).partition("?")
    scheme, colon, path = address.partition(":///")
    if scheme == "sqlite" and colon and path and not path.startswith(":memory:"):
        address = f"{scheme}{colon}{Path(unquote(path)).absolute()}"
    return f"{address}{mark}{query}"
