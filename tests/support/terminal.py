"""A terminal with a program in it, and what one would see on its screen.

Knows the few sequences that Tenure writes: the other screen, the cursor, the way home, clearing,
colours. Anything else is an error, so that nothing unknown passes for seen.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.patience import PATIENCE_SECONDS

SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
# Standard input becomes the controlling terminal, whose keys send signals; then the program starts.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
Cell = tuple[str, tuple[int, ...]]
"""A character, and the numbers of its style."""
BLANK: Cell = (" ", ())


class Screen:
    """What has been written, as a person would see it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.is_alternate = False
        self.is_cursor_visible = True
        self.frames: list[str] = []
        """What the other screen has shown, from one painting to the next."""
        self.painted: list[list[Cell]] = []
        """The last of these, with its styles."""
        self.transcript = ""
        """All text on the ordinary screen, without colours."""
        self._style: tuple[int, ...] = ()
        self._rest = ""
        self._clear()

    def write(self, text: str) -> None:
        """Take what the program has written. A sequence that is cut in two waits for its end."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
            elif match := SEQUENCE.match(text, at):
                self._obey(match[1] + match[3], match[2])
                at = match.end()
            else:
                assert len(text) - at < 16, f"an unknown sequence: {text[at : at + 16]!r}"
                self._rest = text[at:]
                return

    @property
    def rows(self) -> list[str]:
        """The lines on the other screen."""
        return ["".join(char for char, _ in row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        """The other screen as one text."""
        return "\n".join(self.rows)

    def _clear(self) -> None:
        self.cells: list[list[Cell]] = [[BLANK] * self.columns for _ in range(self.lines)]
        self._row = self._column = 0

    def _put(self, char: str) -> None:
        if not self.is_alternate:
            self.transcript += char
        elif char == "\r":
            self._column = 0
        elif char == "\n":
            assert self._row + 1 < self.lines, "the view scrolls"
            self._row += 1
        else:
            assert self._column < self.columns, f"wider than the screen: {self.rows[self._row]}"
            self.cells[self._row][self._column] = (char, self._style)
            self._column += 1

    def _obey(self, command: str, numbers: str) -> None:
        match command, numbers:
            case "?h", "1049":
                self.is_alternate = True
                self._clear()
            case "?l", "1049":
                self.frames.append(self.text)
                self.is_alternate = False
            case (("?h" | "?l"), "25"):
                self.is_cursor_visible = command == "?h"
            case "H", "":
                self.frames.append(self.text)
                self.painted = [row[:] for row in self.cells]
                self._row = self._column = 0
            case "K", "":
                row = self.cells[self._row]
                row[self._column :] = [BLANK] * (self.columns - self._column)
            case "J", "":
                self.cells[self._row][self._column :] = [BLANK] * (self.columns - self._column)
                for row in self.cells[self._row + 1 :]:
                    row[:] = [BLANK] * self.columns
            case "m", _:
                given = tuple(int(each) for each in numbers.split(";") if each)
                self._style = () if given in {(), (0,)} else (*self._style, *given)
            case _:
                raise AssertionError(f"an unknown sequence: {command} {numbers}")


class Terminal:
    """A program that believes it talks to a person."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        env: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.screen = Screen(columns, lines)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._us, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        # Keys are not shown where the cursor is: what is on the screen is the program's own.
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        self._before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command],
            cwd=cwd, env={**_without_size(env), "TERM": "xterm-256color"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        self._theirs = theirs

    def read(self, seconds: float = 0.1) -> bool:
        """Take what comes within this time. False when the program has ended and all is read."""
        ended = self.process.poll() is not None
        ready, _, _ = select.select([self._us], [], [], 0 if ended else seconds)
        if ready:
            self.screen.write(self._decoder.decode(os.read(self._us, 65536)))
        return bool(ready) or not ended

    def wait_for(
        self, seen: Callable[[Screen], bool], *, seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Until this is to be seen."""
        deadline = time.monotonic() + seconds
        while not seen(self.screen):
            shown = f"{self.screen.transcript}\n{self.screen.text}"
            assert time.monotonic() < deadline, f"not seen in time:\n{shown}"
            assert self.read(), f"ended with {self.process.poll()} before it was seen:\n{shown}"

    def finish(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Until the program ends; answers its exit status."""
        deadline = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < deadline, f"did not end in time:\n{self.screen.text}"
        return self.process.wait()

    def press_ctrl_c(self) -> None:
        """The key, not the signal: the terminal makes the one of the other."""
        os.write(self._us, b"\x03")

    @property
    def is_as_before(self) -> bool:
        """Does the terminal behave as it did before the program?"""
        return termios.tcgetattr(self._theirs) == self._before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._us)
        os.close(self._theirs)


def _without_size(env: Mapping[str, str]) -> dict[str, str]:
    """The size is what the terminal says, and not what a variable says of another one."""
    return {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
