"""Where a play is given: a SQLite file, one that handlers share, or a PostgreSQL of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tenure.store import open_store
from tests.crash import ledger
from tests.crash.cast import Stage
from tests.processes.crew import Crew
from tests.support.postgres import Server, database_name

STORES = ("sqlite", "shared", "postgres")


@contextmanager
def staged(store: str, folder: Path) -> Iterator[tuple[Stage, Server | None]]:
    """A stage, and its server if it has one."""
    for name in ("crew", "stage"):
        (folder / name).mkdir()
    with (
        Server() if store == "postgres" else nullcontext() as server,
        Crew(folder / "crew") as crew,
    ):
        if server is not None:
            # By TCP: there a session has a port, which tells whose it is.
            url = server.url(database_name(server.create_database()), tcp=True)
            with open_store(url) as store_to_be:
                store_to_be.migrate()
        else:
            options = "?driver=sqlite3&allow_affected_sqlite=1" if store == "shared" else ""
            url = f"sqlite:///{folder / 'jobs.db'}{options}"
        stage = Stage(url, folder / "stage", crew)
        try:
            if store != "sqlite":
                ledger.create(url)
            yield stage, server
        finally:
            stage.close()
