"""Databases that are audited at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.audit import audit


@pytest.fixture
def url(url: str) -> Iterator[str]:
    """A fresh database of each kind, audited after the test."""
    yield url
    audit(url)
