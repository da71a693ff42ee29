"""The stores: the only place with SQL or drivers.

operations.py   the table of operations; colours.py makes methods of them
api.py          `Store` and `AsyncStore`, which callers use
jobs/ gates/ workflows/ schedules/ look/ copy/      the operations, by subject
session.py      the seam: one open transaction, the same in both colours
sqlite/ postgres/       transactions on each database, and its statements in sql/
bell.py         how idle workers are woken
borrowing.py    the caller's own connection (`on=`)
proxy.py        stores in front of another store, to see what passes
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
