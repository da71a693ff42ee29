"""The stores: the only place with SQL or drivers.

session.py      the seam: one open transaction, the same in both colours
enqueue.py claim.py settle.py sweep.py operate.py inspect.py presence.py     what can be done, once
schedules.py entries.py fire.py      schedules, and the jobs that they enqueue
sql/            how each database does it, statement by statement
sqlite.py postgres.py        transactions on each database
bell*.py notify.py           how idle workers are woken
transfer.py cargo.py         all jobs of one store into another one
watched.py      stores in front of another one, to see what passes
api.py          `Store` and `AsyncStore`, what callers hold in their hands
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
