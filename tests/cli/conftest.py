"""A world for every test that asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.world import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Jobs in every state, in a SQLite file."""
    return make_world(f"sqlite:///{tmp_path}/jobs.db", tmp_path)


@pytest.fixture
def pg_world(pg_migrated_url: str, tmp_path: Path) -> World:
    """Jobs in every state, on PostgreSQL."""
    return make_world(pg_migrated_url, tmp_path)
