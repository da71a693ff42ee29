"""A TCP proxy on loopback between a store and PostgreSQL, to hurt connections at a chosen message.

    with Proxy(server.port) as proxy:
        store = open_store(proxy.url("postgres"))
        cut = proxy.cut_commit("insert into tenure.job", landed=True)
        store.enqueue([...])        # its COMMIT reaches the server, the answer never comes back
        assert cut.done

        fault = proxy.order(Fault("server", 3, "before"))   # the server's third message from now on

It reads the frames of protocol 3 in both directions, and enough of their contents to know which
statements ran in a transaction. A client learns that it was cut only when the server has ended that
session: whatever had reached the server is done by then, so "landed" is certain, not likely.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Side = Literal["client", "server"]
Way = Literal["before", "after", "swallow", "late"]

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16
# Codes in the place of a protocol version: a request for encryption, answered by one byte.
ENCRYPTION_REQUESTS = (80877103, 80877104)
SIDES: tuple[Side, ...] = ("client", "server")


@dataclass
class Cut:
    """One order to cut the connection whose transaction holds `containing`, at its COMMIT."""

    containing: str
    landed: bool
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        """True when the connection has been cut."""
        return self._done.is_set()

    def wait(self, seconds: float = 10.0) -> bool:
        """Wait for the cut; False when it did not come."""
        return self._done.wait(seconds)

    def mark(self) -> None:
        """Called by the proxy."""
        self._done.set()


@dataclass
class Fault:
    """One order about message `number` of one side, counted from the order on, on each connection.

    `before`: the message is not passed on, and the connection ends. `after`: it is the last one to
    be passed on. `swallow`: neither it nor any later one of that side is, and nothing is closed.
    `late`, of the client: it and the rest of the request are kept until `Proxy.deliver_late`; the
    client is cut as soon as it waits for an answer, and the server does not learn of it.
    `again`: not once, but on every connection.
    """

    side: Side
    number: int
    way: Way
    again: bool = False
    times: int = 0
    """How often it has struck."""


class Link:
    """One client's connection and its connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._ends = {"client": client, "server": server}
        self._statements: dict[bytes, str] = {}
        self._answers = threading.Thread(target=self._pump, args=("server",), daemon=True)
        self._started = False
        self._bare_bytes = 0
        """So many answers of a single byte are owed, without a frame."""
        self._lock = threading.Lock()
        self._is_over = False
        self._swallowed: set[Side] = set()
        self._late: bytearray | None = None
        """What is kept for the server; it is not to learn that its client is gone, or will be."""
        self._cut: Cut | None = None
        self.passed: dict[Side, str] = {"client": "", "server": ""}
        """The kinds of the messages that were passed on since the last order; ^ is the first."""
        self.said: list[str] = []
        """Every statement in order, for tests that look at what was sent on which connection."""
        self.transaction: list[str] = []
        self._is_open = False

    def run(self) -> None:
        """Pump both ways until either side is gone."""
        self._answers.start()
        self._pump("client")
        self._answers.join(60)

    def deliver_late(self) -> bool:
        """Give the server what was kept for it, then the end of the connection; wait for its end.

        False: nothing was kept.
        """
        late, self._late = self._late, None
        if late is None:
            return False
        with suppress(OSError):  # the server has ended the session
            self._ends["server"].sendall(late)
        with suppress(OSError):
            self._ends["server"].shutdown(socket.SHUT_WR)
        self._answers.join(60)
        return True

    def cut_client(self) -> None:
        """Cut the client. The server does not learn of it before `deliver_late`."""
        with self._lock:
            self._late = bytearray()
            self._ends["client"].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut both sides, now."""
        for end in self._ends.values():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _end(self, cut: Cut | None = None) -> None:
        """Pass nothing on any more. The server learns of it at once, the client afterwards."""
        self._is_over = True
        self._cut = cut
        with suppress(OSError):
            self._ends["server"].shutdown(socket.SHUT_WR)

    def _pump(self, side: Side) -> None:
        """Pass on what one side sends. The server's pump is the last to leave."""
        with suppress(OSError):
            for message in self._messages(side):
                self._proxy.wait_for_thaw()
                with self._lock:
                    if not self._is_over:
                        self._pass_on(side, message)
        if side == "client":
            with self._lock:
                if not self._is_over and self._late is None:
                    self._end()
            return
        self.close()
        if self._cut is not None:
            self._cut.mark()

    def _messages(self, side: Side) -> Iterator[bytes]:
        """What one side sends, frame by frame."""
        pending = bytearray()
        while data := self._ends[side].recv(CHUNK_BYTES):
            pending += data
            while (length := self._frame(side, pending)) is not None:
                yield bytes(pending[:length])
                del pending[:length]

    def _frame(self, side: Side, data: bytearray) -> int | None:
        """The length of the first message of what has arrived; None: it is not complete yet."""
        if side == "server" and self._bare_bytes and data:
            self._bare_bytes -= 1
            return 1
        prefix = 1 if side == "server" or self._started else 0
        if len(data) < prefix + 4:
            return None
        (length,) = struct.unpack_from("!I", data, prefix)
        return prefix + length if len(data) >= prefix + length else None

    def _pass_on(self, side: Side, message: bytes) -> None:
        """Send a message to the other side, or do to it what was ordered."""
        kind = self._note(message) if side == "client" else message[:1].decode("latin-1")
        cut = self._ordered_cut(message) if side == "client" else None
        way = self._proxy.strike(side, len(self.passed[side]) + 1)
        if way == "late":
            self._late = bytearray()
        if self._late is not None:
            self._keep(side, kind, self._late, message)
            return
        if side in self._swallowed or way == "swallow":
            self._swallowed.add(side)
            return
        if way == "before" or (cut is not None and not cut.landed):
            self._end(cut)
            return
        self.passed[side] += kind
        self._send("server" if side == "client" else "client", message)
        if way == "after" or cut is not None:
            self._end(cut)

    def _keep(self, side: Side, kind: str, late: bytearray, message: bytes) -> None:
        """Keep what the client sends, and cut it when it begins to wait for the answer."""
        if side == "client":
            late += message
            if kind in "^QSc":
                self._ends["client"].shutdown(socket.SHUT_RDWR)

    def _send(self, to: Side, message: bytes) -> None:
        proxy = self._proxy
        if proxy.slow_seconds:
            time.sleep(proxy.slow_seconds)
        step = 1 if proxy.split else len(message)
        for start in range(0, len(message), step):
            self._ends[to].sendall(message[start : start + step])

    def _note(self, message: bytes) -> str:
        """Read a message of the client; answers its kind."""
        if not self._started:
            (code,) = struct.unpack_from("!I", message, 4)
            self._started = code not in ENCRYPTION_REQUESTS
            self._bare_bytes += not self._started
            return "^"
        kind, body = message[:1], message[5:]
        match kind:
            case b"Q":
                self._say(body.rstrip(b"\0").decode())
            case b"P":
                name, text, *_ = body.split(b"\0")
                self._statements[name] = text.decode()
            case b"B":
                _, name, *_ = body.split(b"\0")
                self._say(self._statements[name])
        return kind.decode("latin-1")

    def _say(self, statement: str) -> None:
        if statement.startswith("begin"):
            self._is_open = True
            self.transaction = []
        elif not self._is_open:
            self.transaction = []
        self.transaction.append(statement)
        self.said.append(statement)

    def _ordered_cut(self, message: bytes) -> Cut | None:
        """The order for what this message commits. Outside a transaction every SYNC is a COMMIT."""
        kind, text = message[:1], message[5:].rstrip(b"\0")
        commits = text.endswith(b"commit") if kind == b"Q" else kind == b"S" and not self._is_open
        if kind == b"Q" and (commits or text == b"rollback"):
            self._is_open = False
        return self._proxy.take_order(self.transaction) if commits else None


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes everything on, until told to be unkind."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        """Where new connections go; may be changed at any time."""
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._flowing = threading.Event()
        self._flowing.set()
        self.held_back = 0
        """How often something came while everything was frozen."""
        self.split = False
        """Send each byte by itself."""
        self.slow_seconds = 0.0
        """Keep each message for so long."""
        self._orders: list[Cut] = []
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.links: list[Link] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut everything and stop."""
        self._open.set()
        self._flowing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(60)

    def url(self, dbname: str, **options: str) -> str:
        """The address of a database behind the proxy."""
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/{dbname}?sslmode=disable{query}"

    def cut_commit(self, containing: str, *, landed: bool) -> Cut:
        """Cut the next transaction with such a statement, at its COMMIT.

        `landed`: after the server has committed and before the client hears of it; otherwise
        instead of passing the COMMIT on.
        """
        cut = Cut(containing, landed)
        with self._lock:
            self._orders.append(cut)
        return cut

    def take_order(self, transaction: list[str]) -> Cut | None:
        """The order that meets this transaction, once."""
        with self._lock:
            for order in self._orders:
                if any(order.containing in statement for statement in transaction):
                    self._orders.remove(order)
                    return order
        return None

    def order(self, fault: Fault | None) -> Fault | None:
        """Let this happen, instead of what was ordered before; None: nothing any more."""
        with self._lock:
            for link in self.links:
                link.passed = {"client": "", "server": ""}
            self._fault = fault
        return fault

    def strike(self, side: Side, number: int) -> Way | None:
        """Called by the links for each message: what is to become of it."""
        with self._lock:
            fault = self._fault
            if fault is None or (fault.side, fault.number) != (side, number):
                return None
            fault.times += 1
            if not fault.again:
                self._fault = None
            return fault.way

    def hold_new(self) -> None:
        """Let new clients connect, and keep them waiting."""
        self._open.clear()

    def let_new(self) -> None:
        """Serve those who wait, and all to come."""
        self._open.set()

    def freeze(self) -> None:
        """Pass nothing on, and close nothing: the other end seems to have vanished."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything flow again, also what was held back."""
        self._flowing.set()

    def wait_for_thaw(self) -> None:
        """Called by the links before they pass anything on."""
        if not self._flowing.is_set():
            self.held_back += 1
            self._flowing.wait()

    def deliver_late(self) -> int:
        """Deliver what late faults have kept. Answers on how many connections there was any."""
        return sum([link.deliver_late() for link in list(self.links)])

    def cut_all(self) -> None:
        """Cut every connection now, wherever it is."""
        for link in list(self.links):
            link.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        for client in self._clients():
            self._start(self._serve, client)

    def _clients(self) -> Iterator[socket.socket]:
        with suppress(OSError):
            while True:
                yield self._listener.accept()[0]

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        try:
            server = socket.create_connection((LOOPBACK, self.server_port))
        except OSError:  # the server is down: so are we
            client.close()
            return
        for end in (client, server):  # each message is sent at once
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, client, server)
        self.links.append(link)
        link.run()
