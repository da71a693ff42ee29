"""A TCP proxy on loopback between a store and PostgreSQL, to cut connections at a chosen message.

    with Proxy(server.port) as proxy:
        store = open_store(proxy.url("postgres"))
        cut = proxy.cut_commit("insert into tenure.job", landed=True)
        store.enqueue([...])        # its COMMIT reaches the server, the answer never comes back
        assert cut.done

It reads enough of the protocol to know where a client's message ends, which statements ran in the
transaction, and where the server's answer to a COMMIT is complete. A connection that is cut because
its COMMIT landed is cut only after the server has answered, so "landed" is certain, not likely.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16
# Codes in the place of a protocol version: a request for encryption, answered by one byte.
ENCRYPTION_REQUESTS = (80877103, 80877104)
READY_FOR_QUERY = b"Z"


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


class Link:
    """One client's connection and its connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._statements: dict[bytes, str] = {}
        self._started = False
        self._cut: Cut | None = None
        self._may_cut = threading.Event()
        self.said: list[str] = []
        """Every statement in order, for tests that look at what was sent on which connection."""
        self.transaction: list[str] = []
        self._is_open = False

    def run(self) -> None:
        """Pump both ways until either side is gone."""
        answers = threading.Thread(target=self._pump_answers, daemon=True)
        answers.start()
        with suppress(OSError):
            self._pump_messages()
        if self._may_cut.is_set():  # the server owes an answer: the other thread waits for it
            answers.join(10)
        self.close()
        answers.join(10)

    def close(self) -> None:
        """Cut both sides."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pump_messages(self) -> None:
        pending = b""
        while data := self._client.recv(CHUNK_BYTES):
            self._proxy.wait_for_thaw()
            pending += data
            while message := self._first_message(pending):
                pending = pending[len(message) :]
                if not self._pass_on(message):
                    return

    def _first_message(self, data: bytes) -> bytes:
        """The first complete message of what has arrived, or nothing yet."""
        prefix = 1 if self._started else 0
        if len(data) < prefix + 4:
            return b""
        (length,) = struct.unpack_from("!I", data, prefix)
        return data[: prefix + length] if len(data) >= prefix + length else b""

    def _pass_on(self, message: bytes) -> bool:
        """Send a message to the server; False when the connection ends here."""
        if not self._started:
            (code,) = struct.unpack_from("!I", message, 4)
            self._started = code not in ENCRYPTION_REQUESTS
        else:
            self._note(message)
            if (cut := self._ordered_cut(message)) is not None:
                if not cut.landed:
                    self.close()
                    cut.mark()
                    return False
                self._cut = cut
                self._may_cut.set()
                self._server.sendall(message)
                return False
        self._server.sendall(message)
        return True

    def _note(self, message: bytes) -> None:
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

    def _pump_answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(CHUNK_BYTES):
                self._proxy.wait_for_thaw()
                if self._may_cut.is_set():
                    # The last message of an answer is six bytes long: Z, its length, the status.
                    if data[-6:-5] == READY_FOR_QUERY:
                        assert self._cut is not None
                        self.close()
                        self._cut.mark()
                        return
                    continue
                self._client.sendall(data)
        self.close()


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes everything on, until told to be unkind."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._flowing = threading.Event()
        self._flowing.set()
        self.held_back = 0
        """How often something came while everything was frozen."""
        self._orders: list[Cut] = []
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
            thread.join(10)

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
            server = socket.create_connection((LOOPBACK, self._server_port))
        except OSError:  # the server is down: so are we
            client.close()
            return
        for end in (
            client,
            server,
        ):  # messages are sent one by one: do not wait for acknowledgement
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, client, server)
        self.links.append(link)
        link.run()
