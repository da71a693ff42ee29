"""Transactions on PostgreSQL: READ COMMITTED, few connections, every retry bounded.

An operation that fails because of a deadlock or a serialization conflict runs again. One that
loses its connection runs again on another until `give_up_seconds` are over, once its first COMMIT
can no longer land (see `late`); `tx.repeat` then tells it that it may have landed. A COMMIT is
never sent on another connection than its BEGIN. A connection on which no answer comes counts as
lost.

Hot-path plans must not depend on statistics: a plan prepared while the tables were empty would scan
them for ever. Our own connections therefore plan without sequential scans, bitmap scans (which read
a whole line to take its first jobs), hash joins and merge joins.
"""

import os
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenure.errors import (
    ConfigError,
    InvalidInput,
    OutcomeUnknown,
    SchemaError,
    StoreBusy,
    StoreError,
)
from tenure.store import migrate
from tenure.store.bell import Bell, OnCancel, Ring, SilentBell
from tenure.store.borrowing import unwrap
from tenure.store.lending import GivenConnection
from tenure.store.postgres.bell import CHANNELS, PostgresBell
from tenure.store.postgres.borrow import wire_of
from tenure.store.postgres.connection import Colour, Wire
from tenure.store.postgres.errors import CONFLICTS, is_outage, is_unanswered, text_of, translate
from tenure.store.postgres.floors import Floors
from tenure.store.postgres.late import end_late, new_mark
from tenure.store.postgres.lending import PostgresLent, unwrap_lent
from tenure.store.postgres.notify import Notifier
from tenure.store.postgres.tx import BorrowedTx, PostgresTx
from tenure.store.session import (
    MAX_OUTDATED,
    Collided,
    Gates,
    Mode,
    Operation,
    Outdated,
    R,
    Session,
    Tx,
    keys_changed_hands,
)
from tenure.store.statements import migration_script, qualify, quoted, statements

CONFLICT_TRIES = 10
TIMEOUT_TRIES = 2
MAX_LENDABLE = 4
"""At most this number of connections for callers is kept for the next transaction."""
ID_BLOCK = 64
"""More than 32: see `draw_ids`."""
BULKS_PER_DRAW = 4
"""Ids for this many bulks of the same size are drawn at once: each draw waits for the disk."""

_PLANNER = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
_PLACE = ("service", "host", "hostaddr", "port", "dbname", "user")
_LOCK_SECONDS = 5.0
_GATE_SECONDS = 5
_LOCKS_SECONDS = 1.0
"""How long an operation waits for a lost connection that can only have rows locked."""
_READ_SECONDS = 60.0
"""How much longer a reading statement may take: it may count millions of rows."""
_MIGRATION_LOCK = 7_364_881_223


_USERS_LOCK = 7_364_883
"""Each connection, but for those behind a pooler, shares this lock of its schema."""
_SHUT_OUT = f"""
lock table {{table}} in access exclusive mode;
select pg_terminate_backend(a.pid) from pg_stat_activity a join pg_locks l
    on l.pid = a.pid and l.database = a.datid
where a.datname = current_database() and pg_has_role(a.usesysid, 'member')
  and l.locktype = 'advisory' and l.objsubid = 2
  and l.classid = {_USERS_LOCK} and l.objid = '{{table}}'::regclass
"""
"""Before a migration after which older code is refused: a connection reads the version once, when
it is new. So those of old code are ended, and new ones wait for the end of the migration."""


class Postgres(Session):
    """One schema in one PostgreSQL database, in one colour."""

    def __init__(
        self,
        conninfo: str,
        colour: Callable[[], Colour],
        *,
        schema: str = "tenure",
        give_up_seconds: float = 10.0,
        transaction_pooler: bool = False,
        notify: bool = True,
    ) -> None:
        self._limits = _limits(give_up_seconds)
        self._params = _connect_params(conninfo, transaction_pooler, _PLANNER | self._limits)
        self._lent_params = _connect_params(conninfo, transaction_pooler, {})
        self._new_colour = colour
        self._schema = schema
        self.place = (schema, *(self._params.get(name) for name in _PLACE))
        """Where the tables are: the same for each store of one application."""
        self._sql = statements("postgres", schema)
        self._give_up_seconds = give_up_seconds
        # Longer than any wait for a lock, so that the server is the first to give up.
        self.silence_seconds = give_up_seconds + _LOCK_SECONDS
        self.read_silence_seconds = self.silence_seconds + _READ_SECONDS
        self._pooler = transaction_pooler
        [notify_sql] = self._sql["notify"]
        self._notifier = Notifier(notify_sql, on=notify)
        self._closed = False
        self._commits_late = False
        self._inherited: list[list[Wire]] = []
        self._start_process()

    def _start_process(self) -> None:
        """Fresh state, also after a fork: a connection is never shared with the parent.

        What a fork inherits is kept and never touched: to collect it would complain, if not worse.
        """
        self._pid = os.getpid()
        self._colour = self._new_colour()
        self._idle: list[Wire] = []
        self._lendable: list[Wire] = []
        self._lending = self._new_colour()
        self.lent = set()
        self.looked = {}
        self._ids: deque[int] = deque()
        self.floors = Floors()
        self.gates = Gates()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._inherited += [self._idle, self._lendable]
            self._start_process()

    async def transact(self, op: Operation[R], mode: Mode = Mode.WRITE) -> R:
        deadline = time.monotonic() + self._give_up_seconds
        call = _Call()
        conflicts = outages = 0
        while True:
            try:
                return await self._attempt(op, mode, deadline, call)
            except (Collided, Outdated) as why:
                call.begin_afresh(why)
            except psycopg.errors.UniqueViolation as error:
                if call.repeat and not call.collided:
                    call.collided = True
                elif not call.overtaken:
                    call.overtaken = True  # the faster transaction is visible now
                else:
                    raise _told(translate(error), call) from error
            except CONFLICTS as error:
                conflicts += 1
                if conflicts >= _tries(error) or time.monotonic() > deadline:
                    raise _told(translate(error), call) from error
                await self._colour.sleep(random.uniform(0, 0.01 * 2**conflicts))
            except psycopg.Error as error:
                if not is_outage(error):
                    if call.silent or not call.notified:
                        raise _told(translate(error), call) from error
                    call.silent = True  # perhaps only the notification was refused
                    continue
                outages += 1
                call.unanswered |= call.repeat and is_unanswered(error)
                pause = random.uniform(0, min(1.0, 0.02 * 2**outages))
                if time.monotonic() + pause > deadline:
                    raise _told(translate(error), call) from error
                await self._colour.sleep(pause)

    async def _attempt(self, op: Operation[R], mode: Mode, deadline: float, call: "_Call") -> R:
        try:
            wire = await self._acquire(deadline)
        except SchemaError:
            raise  # whatever became of the first try: this must be mended before anything else
        except StoreError as error:
            if call.unanswered:
                raise _told(error, call) from error
            raise
        mode = Mode.READ if mode is Mode.COUNT else mode
        reads = mode in (Mode.READ, Mode.GLANCE)
        try:
            wire.allow_silence(
                self.read_silence_seconds if mode is Mode.READ else self.silence_seconds
            )
            while call.late:
                await _end_late(wire, call, deadline)
            tx = PostgresTx(wire, self._sql, self.floors, prepare=not self._pooler)
            tx.schema = self._schema
            tx.request_id, tx.repeat, tx.collided = call.request_id, call.repeat, call.collided
            tx.gates = self.gates
            if mode is Mode.GLANCE and not self._pooler:
                return await op(tx)
            if mode is Mode.LONE and not (self._pooler or self._commits_late or call.repeat):
                return await self._alone(op, tx, call)
            await wire.script(self._begin(mode, wire))
            tx.news = None if call.silent or reads else self._notifier.news()
            answer = await op(tx)
            call.repeat = not reads  # from here on it may have landed
            await self._commit(wire, tx, call)
            return answer
        except BaseException as error:
            if isinstance(error, psycopg.Error) and is_outage(error):
                if is_unanswered(error) and not reads:
                    call.late.append(wire.mark)
                await _discard(wire)
            elif not wire.broken and not wire.idle:
                await _undo(wire)
            raise
        finally:
            await self._release(wire)

    async def _alone(self, op: Operation[R], tx: PostgresTx, call: "_Call") -> R:
        """Each statement commits itself, which saves the round trips of BEGIN and COMMIT."""
        tx.news = self._notifier.news()
        try:
            answer = await op(tx)
        except psycopg.Error as error:
            call.repeat = is_unanswered(error)
            raise
        await self._tell(tx)
        return answer

    async def _tell(self, tx: PostgresTx) -> None:
        """Wake the workers that wait for the committed tickets. The commit stands if this fails."""
        notice = None if tx.news is None else tx.news.take()
        if notice is None:
            return
        try:
            await tx.fetch("notify", **notice.params)
            self._notifier.note_told(notice)
        except psycopg.Error as error:
            if not is_outage(error):
                self._notifier.fall_silent()

    async def _commit(self, wire: Wire, tx: PostgresTx, call: "_Call") -> None:
        """COMMIT and, in the same round trip, wake the workers that wait for its tickets."""
        notice = None if tx.news is None else tx.news.take()
        call.notified = notice is not None or tx.told_of_cancels
        if notice is not None:
            await wire.script(f"{self._notifier.script(notice)}; commit")
            self._notifier.note_told(notice)
            return
        await wire.script("commit")
        if call.silent:  # so it was the notification
            self._notifier.fall_silent()

    def _begin(self, mode: Mode, wire: Wire) -> str:
        parts = ["begin"]
        if mode is Mode.READ:
            parts = ["begin isolation level repeatable read read only"]
        if mode is Mode.GATE:  # who is stopped while it has gates locked stops all others there
            parts.append(f"set local idle_in_transaction_session_timeout = '{_GATE_SECONDS}s'")
            parts.append(
                "set local plan_cache_mode = force_generic_plan"
            )  # planned once, not six times
        if mode is Mode.BEAT:
            parts.append("set local synchronous_commit = off")
        elif mode is not Mode.READ and self._commits_late:  # the user's default is not our promise
            parts.append("set local synchronous_commit = on")
        if self._pooler:
            settings = (_PLANNER if mode is not Mode.READ else {}) | self._limits
            parts[1:1] = [f"set local {name} = '{value}'" for name, value in settings.items()]
            if mode not in (Mode.READ, Mode.GLANCE):
                wire.mark = new_mark()
                parts.append(f"select pg_catalog.pg_advisory_xact_lock({wire.mark})")
        elif mode is Mode.READ:
            parts += [
                f"set local {name} = 'on'"
                for name in ("enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
            ]
        return "; ".join(parts)

    async def reserve_ids(self, count: int) -> list[int] | None:
        self._notice_fork()  # the ids in stock are the parent's
        ids: list[int] = []
        while len(ids) < count:
            try:
                ids.append(self._ids.popleft())  # atomic: threads share the block
                continue
            except IndexError:
                pass  # what fails below is not told as a consequence of this
            missing = count - len(ids)
            block = ID_BLOCK if missing <= ID_BLOCK else BULKS_PER_DRAW * missing
            draw = cast(Operation[list[int]], partial(PostgresTx.draw_ids, count=block))
            self._ids.extend(await self.transact(draw, Mode.LONE))
        return ids

    async def borrow(self, connection: object, *, blocking: bool) -> Tx:
        connection = unwrap_lent(connection, self, blocking=blocking)
        borrowed = await unwrap(connection, blocking=blocking)
        tx = BorrowedTx(wire_of(borrowed, blocking=blocking), self._sql, borrowed)
        tx.news = self._notifier.news(calm=False)
        tx.gates = self.gates
        return tx

    def lend(self) -> GivenConnection:
        if self._closed:
            raise InvalidInput("this store is closed; open another one")
        return PostgresLent(self)

    async def enter_to_lend(self) -> None:
        """Wait until another caller may have a connection. `leave_lent` undoes it."""
        self._notice_fork()
        if not await self._lending.enter(self._give_up_seconds):
            raise StoreBusy(
                "all connections of this store for transaction() have been in use for "
                f"{self._give_up_seconds:g} s; keep its blocks short, or open a store that allows "
                "more connections"
            )

    def leave_lent(self) -> None:
        """Another caller may have a connection."""
        self._lending.leave()

    async def connect_to_lend(self) -> Wire:
        """A connection for the statements of callers, with the settings that their own have.

        Reads the version each time: a connection that is kept does not keep out a migration.
        """
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            kept = _pop(self._lendable)
            try:
                wire = kept or await self._connect(deadline, lent=True)
            except psycopg.Error as error:
                raise translate(error) from error
            try:
                wire.allow_silence(self.silence_seconds)
                await self._check(wire)
                wire.allow_silence(None)
                return wire
            except BaseException as error:
                await _discard(wire)
                if not isinstance(error, psycopg.Error):
                    raise
                if kept is None or not is_outage(error):
                    raise translate(error) from error
                # It was lost while it was kept.

    async def take_back(self, wire: Wire) -> None:
        """A caller needs it no more."""
        is_clean = False
        try:
            if not self._closed and wire.idle and len(self._lendable) < MAX_LENDABLE:
                if not self._pooler:  # its sessions are not ours
                    wire.allow_silence(self.silence_seconds)
                    await wire.renew()
                is_clean = not self._closed
        except psycopg.Error:
            pass
        finally:
            if is_clean:
                self._lendable.append(wire)
            else:
                await _discard(wire)

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        if self._pooler:  # it hands the connection to others after each transaction
            return SilentBell(ring)
        channels = [qualify(name, "postgres", self._schema) for name in CHANNELS]
        return PostgresBell(self._params, channels, ring, on_cancel)

    async def rest(self, seconds: float) -> None:
        await self._colour.sleep(seconds)

    async def aclose(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            for wires in (self._idle, self._lendable):
                while wires:
                    await wires.pop().close()

    async def migrate(self) -> int:
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            try:
                wire = await self._connect(deadline)
                try:
                    return await self._migrate(wire)
                finally:
                    await wire.close()
            except psycopg.Error as error:
                if not is_outage(error) or time.monotonic() > deadline:
                    raise translate(error) from error
                await self._colour.sleep(0.1)

    async def _migrate(self, wire: Wire) -> int:
        table = f"{quoted(self._schema)}.schema_version"
        await wire.script("begin; set local lock_timeout = '60s'")
        await wire.script(f"select pg_advisory_xact_lock({_MIGRATION_LOCK})")
        await wire.script("set local lock_timeout = '5s'")
        [(found,)] = await wire.fetch(
            "select to_regclass(%(t)s)::text", {"t": table}, prepare=False
        )
        if found is None:
            await wire.script(f"create schema if not exists {quoted(self._schema)}")
            await wire.script(f"create table {table} {migrate.VERSION_TABLE}")
            await wire.script(f"insert into {table} values (1, 0, 0)")
        [(version, min_code)] = await wire.fetch(
            f"select version, min_code from {table}", {}, prepare=False
        )
        if version > migrate.VERSION:
            migrate.check_version(version, min_code)
        if min_code < migrate.MIN_CODE[migrate.VERSION] and version:
            await wire.script(_SHUT_OUT.format(table=table))
        for step in range(version + 1, migrate.VERSION + 1):
            await wire.script(migration_script("postgres", step, self._schema))
            await wire.script(
                f"update {table} set version = {step}, min_code = {migrate.MIN_CODE[step]}"
            )
        await wire.script("commit")
        return max(int(version), migrate.VERSION)

    async def _acquire(self, deadline: float) -> Wire:
        if self._closed:
            raise InvalidInput("this store is closed; open another one")
        self._notice_fork()
        if not await self._colour.enter(max(0.001, deadline - time.monotonic())):
            raise StoreBusy("all connections of this store are in use; try again or allow more")
        try:
            return _pop(self._idle) or await self._connect_checked(deadline)
        except BaseException:
            self._colour.leave()
            raise

    async def _release(self, wire: Wire) -> None:
        if not wire.broken and (self._closed or not wire.idle):
            await _discard(wire)
        if not wire.broken:
            self._idle.append(wire)
        self._colour.leave()

    async def _connect_checked(self, deadline: float) -> Wire:
        """A connection to a server that has our schema. Ids and floors of another are forgotten."""
        wire = await self._connect(deadline)
        wire.allow_silence(self.silence_seconds)
        self.floors.reset()
        self.gates.there = None
        self._ids.clear()
        try:
            await self._check(wire)
        except BaseException:
            await _discard(wire)
            raise
        return wire

    async def _check(self, wire: Wire) -> None:
        table = f"{quoted(self._schema)}.schema_version"
        settings = "current_setting('synchronous_commit') = 'off'"
        if not self._pooler:
            wire.mark = new_mark()
            settings += f", pg_catalog.pg_advisory_lock({wire.mark})"
            users = f"{_USERS_LOCK}, '{table}'::pg_catalog.regclass::oid::int"
            settings += f", pg_catalog.pg_advisory_lock_shared({users})"
        try:
            rows = await wire.fetch(
                f"select version, min_code, {settings} from {table}", {}, prepare=False
            )
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            rows = []
        version, min_code, self._commits_late = rows[0][:3] if rows else (None, None, False)
        migrate.check_version(version, min_code)

    async def _connect(self, deadline: float, *, lent: bool = False) -> Wire:
        timeout = max(1, min(5, round(deadline - time.monotonic())))
        params = self._lent_params if lent else self._params
        wire = await self._colour.connect(**{"connect_timeout": timeout} | params)
        encoding = wire.server_encoding
        if encoding not in ("UTF8", None):
            await _discard(wire)
            raise ConfigError(
                f"the encoding of this PostgreSQL database is {encoding}, and Tenure "
                "needs UTF8; create another database: "
                "create database NAME encoding 'UTF8' locale 'C' template template0"
            )
        return wire


@dataclass
class _Call:
    """One call of `transact` through all its tries."""

    request_id: str = field(default_factory=lambda: secrets.token_hex(8))
    repeat: bool = False
    unanswered: bool = False
    """A COMMIT of it was sent, and the connection was gone before the answer."""
    late: list[int] = field(default_factory=list)
    """The marks of the connections that it has lost: on each of them something may still arrive."""
    collided: bool = False
    overtaken: bool = False
    outdated: int = 0
    """How often it was undone because of `Outdated`."""
    notified: bool = False
    """A COMMIT of it was sent together with a notification."""
    silent: bool = False
    """Such a COMMIT was refused: there shall be none."""

    def begin_afresh(self, why: Collided | Outdated) -> None:
        """At once, but not for ever."""
        if isinstance(why, Collided):
            self.collided = True
            return
        self.outdated += 1
        if self.outdated >= MAX_OUTDATED:
            raise _told(keys_changed_hands(), self)


# A peer that has vanished is noticed within seconds, not when TCP gives up.
_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
              "tcp_user_timeout": 10_000}  # fmt: skip

_TIMEOUTS = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)


def _limits(give_up_seconds: float) -> dict[str, str]:
    """No wait for a lock is longer than the whole operation may take.

    All names of Tenure are qualified; the path keeps other functions from replacing the server's.
    """
    lock_milliseconds = max(1, round(1000 * min(_LOCK_SECONDS, give_up_seconds)))
    return {
        "lock_timeout": f"{lock_milliseconds}ms",
        "idle_in_transaction_session_timeout": "60s",
        "search_path": "pg_catalog",
    }


def _connect_params(conninfo: str, pooler: bool, settings: Mapping[str, str]) -> dict[str, Any]:
    try:
        params: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"the PostgreSQL URL cannot be read: {text_of(error)}") from error
    for port in str(params.get("port") or "5432").split(","):
        if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535):
            raise ConfigError("the port in the PostgreSQL URL must be a number from 1 to 65535")
    if not pooler:
        flags = " ".join(f"-c {name}={value}" for name, value in settings.items())
        params["options"] = f"{params.get('options', '')} {flags}".strip()
    params["autocommit"] = True
    params["client_encoding"] = "UTF8"  # whatever PGCLIENTENCODING and the URL say
    for name, value in _KEEPALIVE.items():
        params.setdefault(name, value)
    params.setdefault("application_name", "tenure")
    if pooler:
        params["prepare_threshold"] = None
    return params


def _tries(error: psycopg.Error) -> int:
    """A deadlock is over at once; a lock that is held for seconds may be held for hours."""
    return TIMEOUT_TRIES if isinstance(error, _TIMEOUTS) else CONFLICT_TRIES


def _told(error: StoreError | InvalidInput, call: _Call) -> StoreError | InvalidInput:
    """What ends a call, whatever has kept its repeat from an answer."""
    if not call.unanswered:
        return error
    return OutcomeUnknown(
        f"PostgreSQL went away while a COMMIT was under way, and its repeat failed ({error}); it "
        "may have been kept. Look before you repeat it, or enqueue with a unique key"
    )


async def _end_late(wire: Wire, call: _Call, deadline: float) -> None:
    """End the last connection that was lost. If it might still commit, nothing is done before."""
    seconds = deadline - time.monotonic()
    if not call.repeat:
        seconds = min(seconds, _LOCKS_SECONDS)
    *_, mark = call.late
    is_gone = await end_late(wire, mark, seconds)
    if call.repeat and not is_gone:
        raise OutcomeUnknown(
            "PostgreSQL did not reply to a COMMIT, and the server process of that connection has "
            f"not ended after {seconds:.1f} s. It was not repeated: it may have been kept, or may "
            "still be kept. Look before you repeat it, or enqueue with a unique key"
        )
    call.late.pop()


def _pop(wires: list[Wire]) -> Wire | None:
    try:
        return wires.pop()  # atomic: threads share the list
    except IndexError:
        return None


async def _discard(wire: Wire) -> None:
    with suppress(psycopg.Error):
        await wire.close()


async def _undo(wire: Wire) -> None:
    try:
        await wire.script("rollback")
    except psycopg.Error:
        await _discard(wire)
