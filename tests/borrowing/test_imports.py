"""Tenure takes these libraries' connections, and needs none of them."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import sys
import tenure
import tenure.store
import tenure.store.postgres.borrow
import tenure.store.sqlite.borrow
import tenure.store.postgres.session
from tenure.errors import InvalidInput
from tenure.rules.job import NewJob
from tenure.store import open_store

options = "?driver=sqlite3&allow_affected_sqlite=1"
with open_store(f"sqlite:///{sys.argv[1]}{options}") as store:
    try:
        store.enqueue([NewJob(task="app.work")], on=object())
    except InvalidInput:
        print("refused")
names = {"aiosqlite", "asyncpg", "django", "greenlet", "psycopg2", "sqlalchemy"}
print(sorted(names & {name.partition(".")[0] for name in sys.modules}))
"""


def test_no_library_is_imported_that_the_caller_does_not_bring(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, f"{tmp_path}/jobs.db"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("refused\n[]\n", "")
