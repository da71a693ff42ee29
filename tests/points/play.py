"""One operation on one store: dies at each of its points, and each time all must be well.

Besides what judge.py asks, the rows right after the death are compared with what they must be: all
that was committed before the point, and nothing else. Before the first COMMIT they are those of the
scene, after the last one those of a call that nobody disturbed; between two of several transactions
they are the same, wherever in between the process died.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec

from tenure.store import Store, open_store
from tests.points.deed import Deed, Hand
from tests.points.deeds_feed import FEED_DEEDS
from tests.points.deeds_flows import FLOW_DEEDS
from tests.points.deeds_jobs import JOB_DEEDS
from tests.points.deeds_keep import KEEP_DEEDS
from tests.points.deeds_many import MANY_DEEDS
from tests.points.judge import carry_on, row_faults, verdict
from tests.points.records import Records
from tests.points.stages import Rows, Stage
from tests.points.tripwire import END, Point, Statement, Tripwire, stretch
from tests.support.plain import Plain
from tests.support.stores import Clock

DEEDS: dict[str, type[Deed]] = {
    kind.name: kind for kind in (*JOB_DEEDS, *KEEP_DEEDS, *FLOW_DEEDS, *MANY_DEEDS, *FEED_DEEDS)
}
VICTIM_SECONDS = 60
RAISED = 3


class Report(msgspec.Struct):
    """What came of it."""

    operation: str
    statements: list[Statement] = []
    points: int = 0
    """All there are."""
    kills: int = 0
    violations: list[str] = []


class Play:
    """One operation on one stage. `splits`: statements before which the victim commits, against
    the rules."""

    def __init__(self, stage: Stage, kind: type[Deed], splits: Sequence[str] = ()) -> None:
        self._stage = stage
        self._deed = kind()
        self._splits = splits
        self._clock = Clock()
        self._folder = Path(tempfile.mkdtemp(dir=stage.folder))
        self._eras: dict[int, Rows] = {}
        self._last: Rows = {}
        self._accounts: list[tuple[Rows, list[str]]] = []
        self._under_way: list[tuple[str, int, Rows]] = []
        self._report = Report(kind.name)

    def run(self, every: int = 1) -> Report:
        """Every n-th point, or all of them."""
        try:
            self._lay()
            self._undisturbed()
            chosen = self._points()
            self._report.points = len(chosen)
            first = crc32(self._deed.name.encode()) % min(every, len(chosen))
            for point in chosen[first::every]:
                self._die_at(point)
            self._either_or()
        finally:
            shutil.rmtree(self._folder)
        return self._report

    def _lay(self) -> None:
        (self._folder / "scene").mkdir()
        with self._records("scene", self._clock) as records:
            self._stage.lay(
                lambda store, plain, url: self._deed.lay(
                    Hand(records.wrap(store), self._clock, url, records), plain
                ),
                self._deed.driver,
            )

    def _undisturbed(self) -> None:
        """Nobody dies before the call is answered. What it did is the measure for all others."""
        with self._stage.opened() as (_, plain, _):
            self._eras[0] = self._stage.rows(plain)
        self._stage.restore()
        records = self._new_folder("undisturbed")
        status, said = self._victim(None, records)
        assert status == 0, f"{self._deed.name} failed undisturbed:\n{said.decode()}"
        self._report.statements = msgspec.json.decode(said, type=list[Statement])
        self._stage.buried()
        with self._stage.opened() as (store, plain, url):
            self._last = self._stage.rows(plain)
            self._eras[self._era(len(self._report.statements))] = self._last
            self._go_on("undisturbed", records, store, plain, url, landed=True)

    def _points(self) -> list[Point]:
        count = len(self._report.statements)
        points = [Point(n) for n in range(count + 1)]
        if self._stage.can_send:
            points += [Point(n, sent=True) for n in range(count)]
        return sorted(points, key=lambda point: (point.n, point.sent))

    def _die_at(self, point: Point) -> None:
        name = self._name(point)
        self._stage.restore()
        records = self._new_folder(f"{point.n}-{point.sent:d}")
        status, said = self._victim(point, records)
        self._report.kills += 1
        if status != -signal.SIGKILL:
            self._complain(name, f"did not die there, but ended as {status}: {said.decode()}")
            return
        self._stage.buried()
        with self._stage.opened() as (store, plain, url):
            found = self._stage.rows(plain)
            for fault in (*self._half_done(point, name, found), *self._row_faults(plain, found)):
                self._complain(name, fault)
            self._go_on(name, records, store, plain, url, landed=found == self._last)

    def _half_done(self, point: Point, name: str, found: Rows) -> Iterator[str]:
        era = self._era(point.n)
        if point.sent and self._report.statements[point.n].commits:
            self._under_way.append((name, era, found))
        elif found != self._eras.setdefault(era, found):
            yield f"half done: {_difference(self._eras[era], found)}"

    def _row_faults(self, plain: Plain, found: Rows) -> list[str]:
        """The account of the very same rows is drawn up once."""
        for rows, faults in self._accounts:
            if rows == found:
                return faults
        self._accounts.append((found, list(row_faults(plain))))
        return self._accounts[-1][1]

    def _either_or(self) -> None:
        """What was sent to be committed, and never answered, was committed or not."""
        for name, era, found in self._under_way:
            known = [self._eras[n] for n in (era, era + 1) if n in self._eras]
            if len(known) == 2 and found not in known:
                self._complain(name, f"half done: {_difference(known[0], found)}")

    def _era(self, n: int) -> int:
        """How often something was committed before this statement."""
        return sum(statement.commits for statement in self._report.statements[:n])

    def _go_on(
        self, name: str, folder: Path, store: Store, plain: Plain, url: str, *, landed: bool
    ) -> None:
        clock = Clock(self._clock.now)
        with self._records(folder.name, clock) as records:
            hand = Hand(records.wrap(store), clock, url, records)
            try:
                carry_on(self._deed, hand, plain)
                for fault in verdict(self._deed, hand, plain, folder, landed=landed):
                    self._complain(name, fault)
            except Exception as error:  # noqa: BLE001 - of any kind: nobody must be able to break this
                self._complain(name, f"those who carry on: {type(error).__name__}: {error}")

    def _victim(self, point: Point | None, folder: Path) -> tuple[int, bytes]:
        """A process that makes the call. Answers how it ended, and what it said."""
        gc.freeze()  # what is there already is not to be copied by looking at it
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            self._live(point, folder, writes)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), said

    def _live(self, point: Point | None, folder: Path, out: int) -> None:
        signal.alarm(VICTIM_SECONDS)
        code, said = RAISED, b""
        try:
            trip = Tripwire(point, self._splits)
            stretch(trip)
            clock = Clock(self._clock.now)
            records = Records(folder, clock)
            store = open_store(self._stage.victims_url)
            store.paused_queues()  # a connection is there
            hand = Hand(records.wrap(store), clock, self._stage.victims_url, records)
            trip.arm()
            self._deed.do(hand)
            trip.end()
            code, said = 0, msgspec.json.encode(trip.seen)
        except BaseException:  # noqa: BLE001 - it must not live on as its parent
            said = traceback.format_exc().encode()
        finally:
            os.write(out, said)
            os._exit(code)

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / name
        shutil.copytree(self._folder / "scene", folder)
        return folder

    @contextmanager
    def _records(self, name: str, clock: Clock) -> Iterator[Records]:
        records = Records(self._folder / name, clock)
        try:
            yield records
        finally:
            records.close()

    def _name(self, point: Point) -> str:
        statements = self._report.statements
        if point.n == len(statements):
            return f"before {END}"
        what = f"{point.n + 1} {statements[point.n].name}"
        return f"{what} sent" if point.sent else f"before {what}"

    def _complain(self, point: str, fault: str) -> None:
        self._report.violations.append(f"{self._deed.name}, {point}: {fault}")


def _difference(known: Rows, found: Rows) -> str:
    changed = [table for table in known if known[table] != found.get(table)]
    table = changed[0]
    return f"{', '.join(changed)}; {table} was {known[table]!r:.200}, is {found[table]!r:.200}"


def play(stage: Stage, operation: str, *, every: int = 1, splits: Sequence[str] = ()) -> Report:
    """One operation on one stage."""
    return Play(stage, DEEDS[operation], splits).run(every)
