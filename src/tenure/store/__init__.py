"""The stores: the only package with SQL or drivers.

api.py          `Store` and `AsyncStore`, and the operations that are their methods
url.py          the URL of a store, and its options
jobs/           enqueue, claim, settle, sweep and operate on jobs
gates/          let tickets pass, change limits
workflows/      add, grow, act on workflows, end them
schedules/      change schedules, fire their ticks
feed/           readers of finished jobs, and failure hooks
look/           reads of jobs and workers
statistics/     count what has ended, and live jobs
copy/           copy all jobs from one store to another
prune.py        finished jobs, and all that belongs to them, are removed
moves.py        the verbs that move rows: every operation that changes jobs ends here
keys.py         unique keys
conditions.py   the terms of a filter as SQL
notes.py        what running jobs tell of themselves
session.py      one open transaction, the same for both databases, sync and async
records.py      the rows that statements return: jobs, tickets and leases
gate_records.py  the rows of claims at gates
templates.py    jobs of schedules and failure hooks, as they are stored
rows.py         the rows that batch statements take
statements.py   the statements of the .sql files, by name
migrate.py      versions of the schema
sqlite/         transactions on SQLite
postgres/       transactions on PostgreSQL
bell.py         how idle workers are woken
borrowing.py    the caller's own connection (`on=`)
lending.py      a connection of the store for the caller (`transaction()`)
proxy.py        stores in front of another store, to see what passes
"""

from tenure.store.api import AsyncStore, Store, open_async_store, open_store
from tenure.store.bell import Bell
from tenure.store.jobs.bulk import Changes
from tenure.store.jobs.claim import Outlook
from tenure.store.jobs.settle import LANDED, STALE, Answer
from tenure.store.jobs.sweep import Swept
from tenure.store.lending import AsyncTransaction, Transaction
from tenure.store.look.find import Page
from tenure.store.look.jobs import About, Count, OldestReady, PausedQueue
from tenure.store.schedules.change import Declared
from tenure.store.schedules.fire import Fired
from tenure.store.schedules.records import NewSchedule, ScheduleInfo, ScheduleRun

__all__ = [
    "LANDED",
    "STALE",
    "About",
    "Answer",
    "AsyncStore",
    "AsyncTransaction",
    "Bell",
    "Changes",
    "Count",
    "Declared",
    "Fired",
    "NewSchedule",
    "OldestReady",
    "Outlook",
    "Page",
    "PausedQueue",
    "ScheduleInfo",
    "ScheduleRun",
    "Store",
    "Swept",
    "Transaction",
    "open_async_store",
    "open_store",
]
