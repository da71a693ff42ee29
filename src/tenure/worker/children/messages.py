"""What a worker and its child processes say to each other, and how it travels."""

import socket
import struct
import threading
from typing import TypeAlias

import msgspec

from tenure.rules.job import Claimed
from tenure.rules.lifecycle import Settlement
from tenure.worker.children.app_ref import AppRef

MAX_MESSAGE_BYTES = 256 * 2**20
_LENGTH = struct.Struct("!I")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """To a new child: whom it works for."""

    app: AppRef
    worker: str


class Run(msgspec.Struct, frozen=True, tag="run"):
    """To the child: run this job."""

    job: Claimed


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """To the child: stop the job. Perhaps somebody asked for it, or it is not ours any more,

    or the worker shuts down.
    """

    cancelled: bool
    lost: bool
    shutdown: bool


class Started(msgspec.Struct, frozen=True, tag="started"):
    """From the child: the handler starts now."""


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """From the child: how far this job has come."""

    id: int
    token: int
    fraction: float | None
    message: str | None


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """From the child: the handler has completed this job, in a transaction of its own."""

    id: int
    token: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the child: the handler of this job has ended.

    `stopped`: because it was told to. `leaving`: the child serves no other job.
    """

    id: int
    token: int
    settlement: Settlement | None
    stopped: bool
    leaving: bool


Report: TypeAlias = Started | Progressed | Completed | Ended
Message: TypeAlias = Hello | Run | Notice | Report

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Line:
    """One end of a socket pair. `send` may be used by several threads, `receive` by one."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send it as a whole. Raises OSError when the other end is gone."""
        data = _encoder.encode(message)
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone, or cannot be understood."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        [length] = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            return None
        data = self._read(length)
        try:
            return None if data is None else _decoder.decode(data)
        except msgspec.MsgspecError:  # its sender was interrupted in the middle
            return None

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(count - len(parts), 2**20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
