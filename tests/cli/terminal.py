"""Commands in a real terminal, and commands with pipes: both as processes of their own.

with Terminal("rm", "all", url=url, folder=folder) as terminal:
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support import patience

PATIENCE_SECONDS = patience.PATIENCE_SECONDS
CTRL_C = "\x03"

CALL = "from tenure.cli.main import main; main()"
# The terminal is opened once more, by the leader of its session: that makes it the one whose
# Ctrl-C this process gets.
CALL_IN_TERMINAL = f"import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); {CALL}"


def environment(url: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a user who has set nothing but these."""
    ours = ("TENURE_", "NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    named = {} if url is None else {"TENURE_URL": url}
    return kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | named | dict(more or {})


class Terminal:
    """A command with a terminal as its input, its output and its controlling terminal."""

    def __init__(
        self,
        *words: str,
        folder: Path,
        url: str | None = None,
        columns: int = 100,
        rows: int = 30,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._heard = b""
        self._open = True
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CALL_IN_TERMINAL, *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment(url, env),
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return self._heard.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until this has been shown."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.text.count(text) < times:
            assert self._open, f"ended without {text!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.text}"
            self._listen()

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C, and again if need be: one just before a read begins can be lost."""
        for _ in range(10):
            self.type(CTRL_C)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
                break
        return self.end()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end. Answers the exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._open:
            assert time.monotonic() < deadline, f"does not end:\n{self.text}"
            self._listen()
        return self.process.wait(PATIENCE_SECONDS)

    def _listen(self) -> None:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if not ready:
            return
        try:
            heard = os.read(self._master, 65_536)
        except OSError:  # Linux says so when the other side is closed
            heard = b""
        self._heard += heard
        self._open = bool(heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@dataclass(frozen=True, slots=True)
class Done:
    """How a command with pipes ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Every line of the output, each as the JSON that it must be."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The one line on stderr, as the JSON that it must be."""
        assert self.err.count("\n") == 1, self.err
        found = json.loads(self.err)
        assert isinstance(found, dict)
        return found


def start(
    *words: str, folder: Path, url: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command with pipes and nothing to read."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CALL, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
        env=environment(url, env), text=True, encoding="utf-8",
    )  # fmt: skip


def run(
    *words: str, folder: Path, url: str | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """Run a command with pipes to its end."""
    process = start(*words, folder=folder, url=url, env=env)
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Done(process.returncode, out, err)
