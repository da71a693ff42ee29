"""The connections that one process has to a SQLite file, and the locks of its threads on them.

A fork gets fresh ones and never touches those of its parent.
"""

import os
import threading
from collections import deque
from contextlib import suppress

from tenure.store.sqlite.bell import NO_SIGNS, Signs
from tenure.store.sqlite.driver import Connection, DriverError, Files
from tenure.store.sqlite.group_commit import Call, Turn

NAMES = ("reader", "counter", "watcher", "writer", "borrowed")


class Connections:
    """Those of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = Turn()
        self.read_lock = Turn()
        self.count_lock = Turn()
        self.watch_lock = threading.Lock()  # a bell's thread is never interrupted
        self.waiting: deque[Call] = deque()
        self.writer: Connection | None = None
        self.reader: Connection | None = None
        self.counter: Connection | None = None
        self.watcher: Connection | None = None
        self.borrowed: Connection | None = None
        self.watched: tuple[int, Signs] = (-1, NO_SIGNS)  # data_version, and the signs seen then
        self.files: Files | None = None  # those that are open, as long as there is a connection
        self.in_place_at = -1.0  # by the monotonic clock
        self.still = False

    def lock_all(self, give_up_seconds: float) -> bool:
        """Take all locks, or none. Returns whether they were free in time."""
        if not self.lock.acquire(give_up_seconds):
            return False
        if self.read_lock.acquire(give_up_seconds):
            if self.count_lock.acquire(give_up_seconds):
                self.watch_lock.acquire()  # a look is over soon
                return True
            self.read_lock.release()
        self.lock.release()
        return False

    def unlock_all(self) -> None:
        """Release the locks of `lock_all`."""
        self.watch_lock.release()
        self.count_lock.release()
        self.read_lock.release()
        self.lock.release()

    def close(self) -> None:
        """Close all connections."""
        for name in NAMES:
            connection = getattr(self, name)
            if connection is not None:
                connection.close()
        for name in NAMES:
            setattr(self, name, None)
        self.files = None

    def forget(self, connection: Connection) -> None:
        """Give up a connection in an unknown state. Closing it rolls back its transaction."""
        for name in NAMES:
            if getattr(self, name) is connection:
                setattr(self, name, None)
        if all(getattr(self, name) is None for name in NAMES):
            self.files = None
        with suppress(*DriverError):
            connection.close()
