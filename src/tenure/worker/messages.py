"""What a worker and its child processes say to each other, and how it travels."""

import socket
import struct
from typing import TypeAlias

import msgspec

from tenure.job import Claimed
from tenure.lifecycle import Settlement
from tenure.worker.elsewhere import AppRef

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
    """To the child: the job was asked to stop, or is not ours any more."""

    cancelled: bool
    lost: bool


class Started(msgspec.Struct, frozen=True, tag="started"):
    """From the child: the handler starts now."""


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """From the child: how far it has come."""

    fraction: float | None
    message: str | None


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the child: the handler has ended. `stopped`: because it was told to."""

    settlement: Settlement | None
    completed: bool
    stopped: bool


Message: TypeAlias = Hello | Run | Notice | Started | Progressed | Ended

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Line:
    """One end of a socket pair. `send` may be used by several threads, `receive` by one."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Message) -> None:
        """Send it as a whole. Raises OSError when the other end is gone."""
        data = _encoder.encode(message)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        [length] = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            return None
        data = self._read(length)
        return None if data is None else _decoder.decode(data)

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
