"""The stores: the only package with SQL or drivers.

api.py          `Store` and `AsyncStore`: what callers use
session.py      the interface between operations and databases: one open transaction
statements.py   the named SQL statements of both databases
rows.py         the rows that batch statements take
moves.py        put jobs into their queue, finish them, free their children
keys.py         unique keys: take, find the owner, take again
jobs/           operations on jobs: enqueue, claim, settle, sweep, operate
gates/          gates: let tickets pass, change limits
workflows/      workflows: add, grow, act on them, end
schedules/      schedules: change them, fire their ticks
look/           reads of jobs and workers
prune.py        delete finished jobs past their retention
copy/           copy all jobs from one store to another
sqlite/         transactions on SQLite
postgres/       transactions on PostgreSQL
migrate.py      migrations: numbered, one process at a time
bell.py         bells: threads that ring when there may be new work
borrowing.py    finds the driver's connection behind the caller's `on=`
proxy.py        stores in front of another store
"""

from tenure.store.api import AsyncStore, Store, open_async_store, open_store
from tenure.store.bell import Bell
from tenure.store.jobs.settle import LANDED, STALE, Answer
from tenure.store.jobs.sweep import Outlook, Swept
from tenure.store.look.jobs import About, Count, OldestReady, Page, PausedQueue
from tenure.store.schedules.change import Declared
from tenure.store.schedules.fire import Fired
from tenure.store.schedules.records import NewSchedule, ScheduleInfo, ScheduleRun

__all__ = [
    "LANDED",
    "STALE",
    "About",
    "Answer",
    "AsyncStore",
    "Bell",
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
    "open_async_store",
    "open_store",
]
