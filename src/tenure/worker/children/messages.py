"""The messages between a worker and its child processes, and the channel that carries them."""

import socket
import struct
import threading
from typing import TypeAlias

import msgspec

from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import Settlement
from tenure.rules.notes import NoteValue
from tenure.rules.retention import Keep
from tenure.worker.children.app_ref import AppRef
from tenure.worker.logs import LogSetup

MAX_MESSAGE_BYTES = 256 * 2**20
_LENGTH = struct.Struct("!I")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """To a new child: the application, the name of the worker, and how the worker logs."""

    app: AppRef
    worker: str
    logs: LogSetup
    keep: dict[str, Keep] | None = None


class Run(msgspec.Struct, frozen=True, tag="run"):
    """To the child: run this job."""

    job: Claimed


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """To the child: stop the job, and why. If no flag is set, its timeout is over."""

    cancelled: bool
    lost: bool
    shutdown: bool


class Started(msgspec.Struct, frozen=True, tag="started"):
    """From the child: the handler starts now."""


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """From the child: the progress of this job."""

    id: int
    token: int
    fraction: float | None
    message: str | None


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """From the child: notes of this job."""

    id: int
    token: int
    notes: dict[str, NoteValue]


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """From the child: the handler of this job has ended it with `on=`."""

    id: int
    token: int


class Waits(msgspec.Struct, frozen=True, tag="waits"):
    """From the child: the handler of this job begins or ends to wait for another job."""

    id: int
    token: int
    waits_for: int
    begins: bool


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the child: the handler of this job has ended.

    `stopped`: because it was told to stop. `leaving`: the child process ends.
    """

    id: int
    token: int
    settlement: Settlement | None
    stopped: bool
    leaving: bool


Report: TypeAlias = Started | Progressed | Noted | Completed | Waits | Ended
Message: TypeAlias = Hello | Run | Notice | Report

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of a socket pair. Several threads may call `send`, one may call `receive`."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a whole message. Raises OSError if the other process is gone."""
        data = _encoder.encode(message)
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """Returns the next message; None if the other process is gone or sent a broken one."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        [length] = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            return None
        data = self._read(length)
        try:
            return None if data is None else _decoder.decode(data)
        except msgspec.MsgspecError:  # a signal interrupted its sender in the middle
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
