"""Transactions on one SQLite file, shared by the threads of this process and by other processes.

Every writing transaction is BEGIN IMMEDIATE. Group commit: a caller adds its call to the waiting
calls and asks for the writer lock. The caller that gets the lock leads: it commits all waiting
calls, each in a SAVEPOINT of its own, and gives the others their results after COMMIT. A lone
caller pays neither for a savepoint nor for a change of threads. An interrupt ends the call of the
thread that it hits, and no other.

Between processes, each sleeps for a short constant time before its next try for the write lock.
With SQLite's growing pauses, new writers would overtake old ones.

Leases expire by the boot clock (see `boot_clock.py`), which a change of the wall clock does not
move.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, cast

from tenure.errors import InvalidInput, StoreBusy, StoreError, ValueRefused
from tenure.store import migrate
from tenure.store.bell import Bell, OnCancel, Ring
from tenure.store.lending import GivenConnection, is_inside
from tenure.store.session import (
    Gates,
    Joint,
    Mode,
    Operation,
    R,
    Session,
    Tx,
    drive,
)
from tenure.store.sqlite import driver, wal
from tenure.store.sqlite.bell import NO_SIGNS, Signs, SQLiteBell
from tenure.store.sqlite.boot_clock import Clock, boot_id
from tenure.store.sqlite.connections import Connections
from tenure.store.sqlite.driver import (
    RETRY_SECONDS,
    Connection,
    Driver,
    DriverError,
    FileKey,
    Files,
)
from tenure.store.sqlite.group_commit import Call, Group, Outcome, Run, Turn, in_runs
from tenure.store.sqlite.migrate import is_current, migrate_sqlite
from tenure.store.sqlite.tx import SCHEMA, SQLiteTx
from tenure.store.statements import statements

GROUP_LIMIT = 256
GLANCE_SECONDS = 0.1
"""How long a read trusts that the files are in place. A write checks each time."""
BELL_SECONDS = 0.05
"""How long a waiting caller sleeps at most: a leader that is interrupted rings for no caller."""


def _pause_seconds(waited_seconds: float) -> float:
    """How long to sleep before the next try to write.

    SQLite has no queue of writers: the first try after a commit succeeds. So a process that has
    come late tries less often, and one that has waited long tries more often.
    """
    if waited_seconds < 0.01:
        return RETRY_SECONDS
    if waited_seconds < 1.0:
        return 4 * RETRY_SECONDS
    return RETRY_SECONDS if waited_seconds < 3.0 else RETRY_SECONDS / 4


def _raise_if_strange(error: Exception | None, came_back: bool) -> None:
    """If a second run does not raise the error, a signal handler of this thread raised it."""
    if error is not None and not came_back and not isinstance(error, StoreError):
        raise error


_READ_VERSION = "select version, min_code from tenure_schema_version"


def _files_now(names: Sequence[str]) -> Files:
    """Which files these names stand for now.

    SQLite leaves all three in place as long as one connection has read.
    """
    try:
        file, wal, shm = map(os.stat, names)
    except OSError:
        return tuple(map(driver.key_of, names))
    return (file.st_dev, file.st_ino), (wal.st_dev, wal.st_ino), (shm.st_dev, shm.st_ino)


def _refuse_newer(connection: Connection) -> None:
    for version, min_code in connection.execute(_READ_VERSION):
        if min_code > migrate.VERSION:
            migrate.check_version(version, min_code)


class SQLite(Session):
    """One SQLite file."""

    def __init__(
        self,
        path: str,
        *,
        driver_name: Driver = "apsw",
        synchronous: str = "FULL",
        give_up_seconds: float = 10.0,
        allow_affected: bool = False,
        allow_network: bool = False,
    ) -> None:
        driver.check_path(path)
        driver.check_library(driver_name, allow_affected)
        driver.check_file_system(path, allow_network)
        self.path = os.path.abspath(path)
        self.driver_name: Driver = driver_name
        self._synchronous = synchronous
        self._give_up_seconds = give_up_seconds
        self._clock = Clock(boot_id())
        self._file: FileKey | None = None
        self._names = driver.names_of(path)
        self._processes: list[Connections] = [Connections()]  # of this process and of its ancestors
        self._closed = False
        self.gates = Gates()
        self.lent = set()
        self.looked = {}
        self._forked_inside = False
        _sessions.add(self)
        try:
            with _fork_lock:  # threads that open one file must not take each other for strangers
                driver.check_not_open_elsewhere(path, driver_name)
                writer = self._writer(self._processes[-1])
            if not is_current(writer):
                drive(self.migrate())
        except BaseException:
            drive(self.aclose())
            raise

    async def transact(self, op: Operation[R], mode: Mode = Mode.WRITE) -> R:
        process = self._process()
        if mode in (Mode.READ, Mode.GLANCE):
            return self._alone(process.read_lock, lambda: self._read(process, op, self._reader))
        if mode is Mode.COUNT:
            return self._alone(process.count_lock, lambda: self._read(process, op, self._counter))
        [(answer, error)] = self._transact(process, Call([op]))
        if error is not None:
            raise error
        return cast(R, answer)

    def transact_each(self, ops: Sequence[Operation[Any]]) -> list[Outcome]:
        """Write all of these in one transaction. Each has an outcome of its own."""
        return self._transact(self._process(), Call(ops))

    def _transact(self, process: Connections, call: Call) -> list[Outcome]:
        led = True
        try:
            try:
                process.waiting.append(call)
                led = self._wait_or_lead(process, call)
            finally:
                call.gone = True
                try:  # noqa: SIM105 - an interrupt in `suppress` would leave it there
                    process.waiting.remove(call)
                except ValueError:
                    pass  # interrupted before it was added
                if led:
                    self._leave(process, call)
        except StoreBusy:  # a leader may have committed it, or may still do so
            if not call.has_result() and not call.running():
                raise
        return call.results()

    async def reserve_ids(self, count: int) -> list[int] | None:  # noqa: ARG002
        return None

    async def borrow(self, connection: object, *, blocking: bool) -> Tx:
        from tenure.store.sqlite.borrow import borrowed_tx  # it imports this module

        tx = await borrowed_tx(connection, self, self._clock, blocking=blocking)
        tx.gates = self.gates
        return tx

    def lend(self) -> GivenConnection:
        from tenure.store.sqlite.lending import SQLiteLent  # it imports this module

        self._refuse_if_closed()
        return SQLiteLent(self)

    def lock_to_lend(self, asks: Callable[[], None]) -> None:
        """Take the writer lock of this process until `unlock_lent`."""
        self._process().lock.lend(asks, self._give_up_seconds, self.path)

    def begin_lent(self) -> Connection:
        """Begin a transaction on the connection for callers, with the writer lock taken."""
        process = self._process()
        connection = self._connection(process, "borrowed")
        driver.forget_tracers(connection)
        self._begin(connection)
        self._check_in_place(process)
        _refuse_newer(connection)
        return connection

    def commit_lent(self, connection: Connection) -> None:
        """Commit the transaction of a caller."""
        try:
            self._commit(connection)
        except DriverError as error:
            raise driver.translate(error, self.path, committing=True) from error

    def undo_lent(self) -> None:
        """Roll it back, if this thread has begun one, even if an interrupt came just then."""
        process = self._processes[-1]
        if process.lock.is_lent_here() and process.borrowed is not None:
            self._undo(process, process.borrowed)

    def unlock_lent(self) -> None:
        """Release the writer lock, and wake a thread that waits for it."""
        process = self._processes[-1]
        process.lock.take_back()
        self._leave(process, Call([]))

    async def migrate(self) -> int:
        process = self._process()
        return self._alone(
            process.lock,
            lambda: self._write(
                process, Group(), lambda writer, _: migrate_sqlite(writer), migrates=True
            ),
        )

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        self._refuse_if_closed()
        return SQLiteBell(self, ring, on_cancel)

    def look(self) -> Signs:
        """Signs of the queues, which differ if a ticket was added since.

        Uses a connection of its own, which sees all other commits and waits for no long read.
        (`data_version` costs 6 microseconds. The signs are read only when it has changed.)
        """
        process = self._process()
        with process.watch_lock:
            return self._look(process)

    def look_away(self) -> None:
        """Close the connection of `look`. The next look opens another one."""
        process = self._processes[-1]
        if process.pid == os.getpid():
            with process.watch_lock:
                if process.watcher is not None:
                    process.forget(process.watcher)

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    async def storage_trouble(self) -> str | None:
        return await wal.growth(self._names, self.driver_name, self.rest)

    async def aclose(self) -> None:
        if self._closed:
            return
        process = self._processes[-1]
        self._closed = True  # from here on no transaction begins
        try:
            if process.pid == os.getpid():
                self._alone(process.lock, lambda: self._disconnect_when_read(process))
        except BaseException:
            self._closed = False
            raise
        if self._file is not None:
            driver.leave_file(self._file)

    def before_fork(self) -> None:
        """Close all connections, and let no thread open one until `after_fork`.

        A fork inherits SQLite's list of the locks that this process has on the file, but not the
        locks. A connection that the fork opens would trust that list. Other processes would then
        remove the WAL while the fork uses it, and with it the fork's commits.
        """
        process = self._processes[-1]
        if process.pid != os.getpid():
            return  # nothing was opened here; what holds for this process holds for its forks
        inside = bool(self.lent) and is_inside(self)
        process.still = not inside and process.lock_all(self._give_up_seconds)
        self._forked_inside = bool(self.lent) and not process.still
        if process.still:
            process.close()

    def after_fork(self) -> None:
        """In the parent: go on."""
        process = self._processes[-1]
        if process.pid != os.getpid():
            return
        self._forked_inside = False
        if process.still:
            process.still = False
            process.unlock_all()

    def _disconnect_when_read(self, process: Connections) -> None:
        def disconnect() -> None:
            with process.watch_lock:
                process.close()

        def disconnect_when_counted() -> None:
            self._alone(process.count_lock, disconnect)

        self._alone(process.read_lock, disconnect_when_counted)

    def _process(self) -> Connections:
        self._refuse_if_closed()
        if self._processes[-1].pid != os.getpid():
            if self._forked_inside:  # its connections could not be closed: see `before_fork`
                raise InvalidInput(
                    "this process was forked while its parent was inside of transaction(), and "
                    "cannot use the store of its parent; fork before or after the `with` block, or "
                    "open another store here"
                )
            self._processes.append(Connections())
            self.lent = set()  # those of the parent
        return self._processes[-1]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InvalidInput("this store is closed; open another one")

    def _alone(self, turn: Turn, body: Callable[[], R]) -> R:
        return turn.run(body, self._give_up_seconds, self.path)

    def _wait_or_lead(self, process: Connections, call: Call) -> bool:
        """Wait until a leader has committed the call, or lead when the lock is free.

        Returns whether this thread led.
        """
        deadline = time.monotonic() + self._give_up_seconds
        while not process.lock.run_if_free(lambda: self._lead(process, call), self.path):
            left = deadline - time.monotonic()
            call.wait(max(0.0, min(left, BELL_SECONDS)))
            if call.has_result():
                return False
            if left <= 0:
                raise StoreBusy(
                    f"another thread of this process has worked on {self.path}, or waited for "
                    f"another process, for {self._give_up_seconds:g} s; look for what holds it up"
                )
        return True

    def _lead(self, process: Connections, call: Call) -> None:
        """Commit the waiting calls until our own call has its result."""
        while not call.has_result():
            self._commit_waiting(process, call, Group())

    def _leave(self, process: Connections, call: Call) -> None:
        """If a leader is running the call, wait for its end, within a limit. Then wake a caller
        that can lead."""
        deadline = time.monotonic() + self._give_up_seconds
        while call.running() and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
        if process.waiting and process.lock.is_free():
            for next_call in process.waiting.copy():
                if not next_call.has_result():
                    next_call.ring()  # to lead
                    break

    def _commit_waiting(self, process: Connections, own: Call, group: Group) -> None:
        """Commit the waiting calls, up to the group limit."""
        calls: list[Call] = []

        def run_all(connection: Connection, waited: float) -> None:
            waiting = (call for call in process.waiting.copy() if call.join(group))
            calls.extend(islice(waiting, GROUP_LIMIT))
            self._run_all(connection, calls, own, waited)

        try:
            self._write(process, group, run_all)
        finally:
            for call in calls:
                call.ring()

    def _run_all(self, connection: Connection, calls: list[Call], own: Call, waited: float) -> None:
        if calls == [own] and len(own.ops) == 1:
            own.outcomes.append((self._run(connection, own.ops[0], waited), None))
            return
        for run in in_runs(calls):
            outcomes = self._run_each(connection, run, own, waited)
            for (call, _), outcome in zip(run, outcomes, strict=True):
                call.outcomes.append(outcome)

    def _run_each(
        self, connection: Connection, run: Run, own: Call, waited: float
    ) -> list[Outcome]:
        """Run them together. If that fails, one by one, so that only its own caller gets the
        error."""
        failure: Exception | None = None
        if len(run) > 1:
            ops = [cast(Joint[Any], op) for _, op in run]
            answers, failure = self._try(connection, lambda tx: ops[0].together(tx, ops), waited)
            if failure is None:
                return [(answer, None) for answer in answers]
        outcomes = [self._run_apart(connection, op, waited, own=call is own) for call, op in run]
        _raise_if_strange(failure, type(failure) in {type(error) for _, error in outcomes})
        return outcomes

    def _run_apart(
        self, connection: Connection, op: Operation[Any], waited: float, *, own: bool
    ) -> Outcome:
        answer, error = self._try(connection, op, waited)
        if error is not None and not own:
            first = error
            answer, error = self._try(connection, op, waited)
            _raise_if_strange(first, error is not None)
        return answer, error

    def _try(self, connection: Connection, op: Operation[Any], waited: float) -> Outcome:
        connection.execute("savepoint call")
        outcome: Outcome
        try:
            outcome = self._run(connection, op, waited), None
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("rollback to call")
            outcome = None, error
        connection.execute("release call")
        return outcome

    def _run(self, connection: Connection, op: Operation[R], waited: float) -> R:
        tx = SQLiteTx(connection, self.path, self._clock)
        tx.waited_seconds = waited
        tx.gates = self.gates
        return drive(op(tx))  # type: ignore[arg-type]

    def _write(
        self,
        process: Connections,
        group: Group,
        body: Callable[[Connection, float], R],
        *,
        migrates: bool = False,
    ) -> R:
        """Commit the changes of `body`, or undo all of them.

        If another process has migrated the schema, and it is too new for this code, nothing is
        written. While this process has the write lock, no other process can migrate.
        """
        connection = self._writer(process)
        try:
            waited = self._begin(connection)
            self._check_in_place(process)
            if not migrates:
                _refuse_newer(connection)
            answer = body(connection, waited)
            group.closing = True
            self._commit(connection)
            group.kept = True
            return answer
        except BaseException as error:
            undone = self._undo(process, connection)
            if isinstance(error, DriverError):
                group.error = driver.translate(error, self.path, committing=group.closing)
                raise group.error from error
            if group.closing and not undone:
                group.kept = True  # interrupted just after COMMIT
            elif isinstance(error, StoreError | ValueRefused):
                group.error = (
                    error  # an error of the database; any other belongs to this thread alone
                )
            raise
        finally:
            group.over = True

    def _undo(self, process: Connections, connection: Connection) -> bool:
        """Roll back the open transaction. Returns whether there was one."""
        if not connection.in_transaction:
            return False
        try:
            connection.execute("rollback")
        except DriverError:
            process.forget(connection)
        return True

    def _check_in_place(self, process: Connections) -> None:
        """In a transaction: are the files still there? SQLite would write into deleted files."""
        found = _files_now(self._names)
        if process.files is None:
            if None not in found and found[0] == self._file:
                process.files = found
            driver.check_in_place(self._names, (self._file, *found[1:]), found)
        elif found != process.files:
            driver.check_in_place(self._names, process.files, found)
        process.in_place_at = time.monotonic()

    def _commit(self, connection: Connection) -> None:
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            try:
                connection.execute("commit")
                return
            except DriverError as error:
                if driver.result_code(error) != driver.BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _begin(self, connection: Connection) -> float:
        """BEGIN IMMEDIATE, as soon as no other process writes. Returns how many seconds it took."""
        start = time.monotonic()
        while True:
            try:
                connection.execute("begin immediate")
                return time.monotonic() - start
            except DriverError as error:
                if driver.result_code(error) not in (driver.BUSY, driver.LOCKED):
                    raise driver.translate(error, self.path) from error
                if time.monotonic() - start > self._give_up_seconds:
                    raise StoreBusy(
                        f"another process has held the write lock of {self.path} for "
                        f"{self._give_up_seconds:g} s; look for a transaction left open"
                    ) from error
            time.sleep(_pause_seconds(time.monotonic() - start))

    def _read(
        self, process: Connections, op: Operation[R], connect: Callable[[Connections], Connection]
    ) -> R:
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            connection = connect(process)
            try:
                return self._run_snapshot(process, connection, op)
            except StoreBusy:
                if time.monotonic() > deadline:
                    raise
            finally:  # at once, before an interrupt: an open snapshot lets the WAL grow
                try:
                    connection.execute("rollback")
                except DriverError:
                    process.forget(connection)
            time.sleep(RETRY_SECONDS)

    def _run_snapshot(self, process: Connections, connection: Connection, op: Operation[R]) -> R:
        try:
            connection.execute("begin")
        except DriverError as error:
            raise driver.translate(error, self.path) from error
        if time.monotonic() - process.in_place_at > GLANCE_SECONDS:
            self._check_in_place(process)
        return self._run(connection, op, 0.0)

    def _writer(self, process: Connections) -> Connection:
        return self._connection(process, "writer")

    def _reader(self, process: Connections) -> Connection:
        return self._connection(process, "reader")

    def _counter(self, process: Connections) -> Connection:
        return self._connection(process, "counter")

    def _connection(self, process: Connections, name: str) -> Connection:
        """The open connection of this name, or a new one."""
        self._refuse_if_closed()
        connection: Connection | None = getattr(process, name)
        if connection is not None:
            self._undo(process, connection)  # if an interrupt in a rollback left it open
            connection = getattr(process, name)
        if connection is None:
            connection = self._connect(process)
            setattr(process, name, connection)
        return connection

    def _look(self, process: Connections) -> Signs:
        if process.watcher is None:
            self._refuse_if_closed()
            process.watcher = self._connect(process)
            process.watched = (-1, NO_SIGNS)
        watcher = process.watcher
        try:
            if time.monotonic() - process.in_place_at > GLANCE_SECONDS:
                self._check_in_place(process)
            [(version,)] = watcher.execute("pragma data_version")
            if version != process.watched[0]:
                [sql] = statements("sqlite", SCHEMA)["queue_signs"]
                [signs] = watcher.execute(sql)
                process.watched = (version, Signs(*signs))
        except DriverError as error:
            if driver.result_code(error) not in (driver.BUSY, driver.LOCKED):
                process.forget(watcher)
            raise driver.translate(error, self.path) from error
        return process.watched[1]

    def _connect(self, process: Connections) -> Connection:
        if self._file is not None:  # otherwise a new file would take its place
            found = _files_now(self._names)
            known = process.files or (self._file, *found[1:])
            driver.check_in_place(self._names, known, found)
        connection = driver.connect(self.path, self.driver_name)
        try:
            # A new file needs a moment of exclusive access to become WAL; others may want it too.
            driver.configure(connection, self._synchronous, self._give_up_seconds)
            if self._file is None:
                self._file = driver.enter_file(self.path, self.driver_name)
        except BaseException as error:
            connection.close()
            if isinstance(error, DriverError):
                raise driver.translate(error, self.path) from error
            raise
        return connection


_sessions: weakref.WeakSet[SQLite] = weakref.WeakSet()
_fork_lock = threading.Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    for session in list(_sessions):
        session.before_fork()


def _after_fork_in_parent() -> None:
    for session in list(_sessions):
        session.after_fork()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_fork_lock.release,
    )
