"""A disk under SQLite that fails on demand: the n-th write, sync or truncation from now on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tests.power.disk import BASE, path_of

_number = count()


class Fault(NamedTuple):
    """From the n-th call of a kind on, each one fails with this result code of SQLite."""

    call: str
    number: int
    code: int


class Breaking(apsw.VFS):
    """The default of apsw while it is registered; meant for one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"breaking-{next(_number)}", BASE, makedefault=True)
        self._folder = folder
        self._fault: Fault | None = None
        self.calls: Counter[str] = Counter()
        self.struck = False

    def order(self, fault: Fault | None) -> None:
        """Fail like this from now on; None: never."""
        self._fault, self.struck = fault, False
        self.calls.clear()

    def meet(self, call: str) -> None:
        """A call is about to be made."""
        self.calls[call] += 1
        fault = self._fault
        if fault is not None and fault.call == call and self.calls[call] >= fault.number:
            self.struck = True
            raise apsw.exception_for(fault.code)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's names
        if name is None or path_of(name).parent != self._folder:
            return apsw.VFSFile(BASE, name, flags)
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Breaking, name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._disk = disk

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.meet("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.meet("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: ARG002, N802 - nobody cuts the power here
        self._disk.meet("sync")


@contextmanager
def breaking(folder: Path) -> Iterator[Breaking]:
    """While this lasts, files in this folder lie on a disk that can be told to fail."""
    disk = Breaking(folder)
    try:
        yield disk
    finally:
        disk.unregister()
