"""Addresses: each opens what it names, or is refused by an error of ours."""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure import passwords
from tenure.errors import TenureError
from tenure.store import open_store
from tenure.store.url import sqlite_path
from tests.fuzz.conftest import examples

PIECES = st.one_of(
    st.sampled_from([
        "sqlite:", "postgresql:", "postgres:", "//", "///", "/", "?", "&", "=", "#", "@", ":", "%",
        "%00", "%2", "[", "]", "[::1]", "driver", "sqlite3", "apsw", "synchronous", "FULL",
        "schema", "pooler", "transaction", "jobs.db", ":memory:", "..", "host", "5432", "\0", "é",
    ]),
    st.text(max_size=4),
)  # fmt: skip
URLS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "sqlite://", "sqlite:///", "postgresql://", "postgres://"]),
        st.lists(PIECES, max_size=6).map("".join),
    ),
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where files are made that have no folder in their names."""
    made, before = tmp_path_factory.mktemp("urls"), Path.cwd()
    os.chdir(made)
    yield made
    os.chdir(before)


@pytest.mark.slow
@examples(250)
@given(URLS)
@example("sqlite:///" + "a" * 300)
@example("sqlite:///\ud800")
@example("sqlite:///%ff")
@example("sqlite:///jobs.db?\ud800=1")
@example("postgresql://host:99999999999/db")
@example("postgresql://%zz")
@example("postgresql:///db?\ud800=1")
@example("postgresql:///\0")
def test_any_address_opens_something_or_is_refused(url: str) -> None:
    """A server is not looked for before the first operation."""
    with suppress(TenureError):
        open_store(url, give_up_seconds=0.0).close()


FILE_NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda name: name not in (".", ".."))


@examples(60)
@given(FILE_NAMES)
def test_any_file_can_be_named(folder: Path, name: str) -> None:
    path = folder / name
    url = f"sqlite:///{quote(str(path))}"
    assert sqlite_path(url) == str(path)
    open_store(f"{url}?synchronous=NORMAL").close()
    assert path.is_file()
    path.unlink()


SECRETS = st.text(string.ascii_letters + string.digits + "$%!/?#&=:@ é", min_size=6, max_size=12)


@examples(150)
@given(SECRETS, st.booleans(), st.booleans())
def test_a_password_is_not_shown(secret: str, quoted: bool, in_query: bool) -> None:
    """As far as it can be told where it ends: who writes @ or ? into one must quote it."""
    if secret in "postgresql://bobhostjobs":
        return
    text = quote(secret, safe="") if quoted else "".join(c for c in secret if c not in "?#&@/")
    if not text:
        return
    address = f"postgresql://bob:{text}@host/jobs"
    url = f"postgresql://bob@host/jobs?password={text}" if in_query else address
    assert text not in passwords.shown_url(url).replace("bob", "").replace("host", "")
    passwords.remember(url)
    try:
        assert text not in passwords.without_passwords(f"it said {text}, twice: {text}")
    finally:
        passwords._passwords.clear()
