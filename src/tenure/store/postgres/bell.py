"""The bell of PostgreSQL: one connection that listens, and makes sure that it still would hear.

The thread runs an event loop of its own, so that it can be stopped at any moment, also while it
connects. After the connect, libpq is used directly: when a query is cancelled, psycopg waits for
the server, and the probe is for servers that do not reply.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tenure.errors import StoreError
from tenure.store.bell import Bell, OnCancel, Ring, pause_seconds
from tenure.store.postgres.errors import text_of

CHANNELS = ("tenure.bell", "tenure.cancel")
"""Of new tickets, and of cancel requests. See the statements `notify` and `notify_cancels`."""

PROBE_SECONDS = 10.0
ANSWER_SECONDS = 5.0
"""A connection whose other end has vanished is noticed after both together, and no later."""

AHEAD_SECONDS = 1.0
"""The statements notify of what is due within 1.5: who looks this often has time to spare."""

_FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class PostgresBell(Bell):
    """Listens on two channels, over a connection of its own."""

    def __init__(
        self,
        params: Mapping[str, Any],
        channels: Sequence[str],
        ring: Ring,
        on_cancel: OnCancel | None = None,
    ) -> None:
        super().__init__(ring, on_cancel)
        name = f"{params['application_name']} bell"
        self._params = {"connect_timeout": 5} | dict(params) | {"application_name": name}
        listens = [sql.SQL("listen {}").format(sql.Identifier(channel)) for channel in channels]
        self._listen = sql.SQL("; ").join(listens).as_bytes(None)
        self._of_cancels = channels[1].encode()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ahead_seconds(self) -> float:
        return AHEAD_SECONDS if self._hears else 0.0

    def _prepare(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._task = self._loop.create_task(self._listen_for_ever())

    def _wake(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()
        self._hears = False

    async def _listen_for_ever(self) -> None:
        failures = 0
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(**self._params)
                try:
                    ear = _Ear(connection.pgconn)
                    await ear.ask(self._listen)
                    failures = 0
                    self._heard()
                    await self._ring_when_heard(ear)
                finally:
                    await connection.close()
            except psycopg.Error as error:
                self._lost(StoreError(text_of(error)))
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on, and so do we
                self._lost(error)
            failures += 1
            await asyncio.sleep(pause_seconds(failures))

    async def _ring_when_heard(self, ear: "_Ear") -> None:
        self._call()  # something may have been missed until now
        self._call_cancel(None)
        while True:
            if not await ear.wait(PROBE_SECONDS):
                await ear.ask(b"select 1")
            heard = ear.notifications()
            if any(channel != self._of_cancels for channel, _ in heard):
                self._call()
            for channel, ids in heard:
                if channel == self._of_cancels:
                    self._call_cancel(_ids(ids))


def _ids(payload: bytes) -> frozenset[int] | None:
    """The ids in the notification of a cancel request; None: there were too many for it."""
    try:
        return frozenset(int(id) for id in payload.split()) or None
    except ValueError:  # sent by another program
        return None


class _Ear:
    """The bell's own connection, used through libpq."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection

    async def wait(self, seconds: float) -> bool:
        """Wait for something to read; False when nothing came."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(self._connection.socket, came.set)
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._connection.socket)
        self._connection.consume_input()
        return True

    def notifications(self) -> list[tuple[bytes, bytes]]:
        """The channels and payloads of the notifications that have come. They are all taken."""
        found = []
        while (notification := self._connection.notifies()) is not None:
            found.append((notification.relname, notification.extra))
        return found

    async def ask(self, statement: bytes) -> None:
        """Run a statement. Raises when there is no good answer in time.

        Whether there is more is asked before each result: `get_result` waits for it with the
        interpreter in its hands, and the whole process would wait with it.
        """
        self._connection.send_query(statement)
        self._connection.flush()
        while (result := await self._result()) is not None:
            if result.status not in _FINE:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace"))

    async def _result(self) -> PGresult | None:
        while self._connection.is_busy():
            if not await self.wait(ANSWER_SECONDS):
                raise psycopg.OperationalError(f"no answer for {ANSWER_SECONDS:g} s")
        return self._connection.get_result()
