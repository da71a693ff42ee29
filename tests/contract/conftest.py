"""Every test of the contract ends with an audit of the rows that it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.store import Store
from tests.support.audit import audit
from tests.support.plain import Plain


@pytest.fixture(autouse=True)
def audited(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test, and after its store was closed, the invariants hold."""
    if "store_url" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("store_url")
    yield
    audit(url)


@pytest.fixture
def plain(store: Store, store_url: str) -> Iterator[Plain]:  # noqa: ARG001 - the store opens first
    """Plain SQL on the same database."""
    with Plain(store_url) as opened:
        yield opened
