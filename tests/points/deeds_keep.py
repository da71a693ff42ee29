"""Jobs that are not kept or kept for a time, keys that outlive jobs, tasks that no worker has."""

from __future__ import annotations

from collections import Counter

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import NewStep, Unique, Until
from tenure.rules.lifecycle import Settlement
from tests.points.deed import VICTIM, Deed, Hand, all_of
from tests.support.counting import counted
from tests.support.plain import Plain
from tests.support.work import ERROR, TASK, add, add_many, job, settle

FOREVER = Unique(key="a", until=Until.FOREVER)
WEEK_SECONDS = 7 * 86_400.0


class SucceedUnkept(Deed):
    """Nothing of them is left, whoever ends them, but the key that one holds for ever."""

    name, call, about = "settle: succeed, and keep nothing", "settle", "forget_jobs"
    forgets = True
    held: list[Claimed]

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 2, keep_succeeded_seconds=0)
        add(hand.store, hand.now, unique=FOREVER, keep_succeeded_seconds=0)
        first = hand.take()
        for one in first:
            hand.ended(one)
        settle(hand.store, hand.now, *(lifecycle.retry(one, ERROR, 0) for one in first),
               worker=VICTIM)  # fmt: skip
        self.held = hand.take()
        for one in self.held:
            hand.store.save_checkpoint(VICTIM, one, encode(1), now=hand.now)
            hand.store.record_step(VICTIM, one, NewStep("s", "f", encode(1)), now=hand.now)

    def do(self, hand: Hand) -> None:
        settle(hand.store, hand.now, *map(lifecycle.succeed, self.held), worker=VICTIM)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(0)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        with Plain(hand.url) as plain:
            for table in ("event", "note", "step"):
                assert plain.table(table) == [], f"{table} has rows of jobs that are gone"
            assert plain.rows("select outcome from tenure.unique_key") == [("succeeded",)]


class PruneKept(Deed):
    """What was kept for its time is gone, what is kept for longer stays; another one goes on."""

    name, call, about = "prune what was kept for a time", "prune", "prune_kept"
    forgets = True

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 3, keep_succeeded_seconds=60)
        add_many(hand.store, hand.now, 2, keep_succeeded_seconds=1e6)
        held = hand.take()
        for one in held:
            hand.ended(one)
        settle(hand.store, hand.now, *map(lifecycle.succeed, held), worker=VICTIM)
        hand.clock.advance(100)

    def do(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)


class FreeKey(Deed):
    """The key of a job that has ended is free, or is freed by who asks again."""

    name, call, about = "free a key", "free_key", "free_key"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now, unique=FOREVER)
        [held] = hand.take()
        hand.ended(held)
        settle(hand.store, hand.now, lifecycle.succeed(held), worker=VICTIM)

    def do(self, hand: Hand) -> None:
        hand.store.free_key(TASK, "a", now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.free_key(TASK, "a", now=hand.now)
        assert hand.store.enqueue([job(unique=FOREVER)], now=hand.now)[0].created

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)


class RetakeKey(Deed):
    """Work that failed is enqueued again: once, by this process or by who asks again."""

    name, call, about = "enqueue again what has failed", "enqueue", "drop_key"
    again_job = job(unique=Unique(key="a", until=Until.FOREVER, retake_failed=True))

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now, unique=FOREVER)
        [held] = hand.take()
        hand.ended(held)
        settle(hand.store, hand.now, lifecycle.fail(held, ERROR), worker=VICTIM)

    def do(self, hand: Hand) -> None:
        hand.store.enqueue([self.again_job], now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.enqueue([self.again_job], now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(failed=1, succeeded=1)


class UnknownTask(Deed):
    """A worker does not have the task, for the second time; another one has it."""

    name, call, about = "settle: a task that the worker does not have", "settle", "fold_events"
    held: list[Claimed]

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 2)
        self.held = hand.take()
        for one in self.held:
            hand.ended(one)
        self.do(hand)
        self.held = hand.take()

    def do(self, hand: Hand) -> None:
        settle(hand.store, hand.now, *self._how(), worker=VICTIM)

    def _how(self) -> list[Settlement]:
        return [lifecycle.unknown_task(one, 0, WEEK_SECONDS) for one in self.held]

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)


class AddUpStatistics(Deed):
    """Old counts are added up to an hour, in several steps: none is lost, and none counts twice."""

    name, call, about = "prune: add up statistics", "prune", "take_statistics"
    forgets = True

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        rows = counted(*[(queue, TASK, "succeeded", 0.3, 2.0) for queue in ("a", "b")])
        for n in range(3):
            hand.store.add_statistics(f"p{n}", rows, at=hand.now)
        hand.clock.advance(4 * 3600)

    def do(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(0)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        with Plain(hand.url) as plain:
            spans = plain.rows(
                "select span, cast(sum(ends) as integer), cast(sum(run_seconds) as integer) "
                "from tenure.statistic group by span"
            )
        assert spans in ([(10, 6, 12)], [(3600, 6, 12)]), f"half done: {spans}"


class CountCancelled(Deed):
    """A cancelled job is counted if, and only if, it is cancelled; so is its skipped child."""

    name, call, about = "cancel, and count it", "cancel", "write_statistics"
    id: int

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = add(hand.store, hand.now)
        add(hand.store, hand.now, parents=(self.id,))

    def do(self, hand: Hand) -> None:
        hand.store.cancel(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter(cancelled=1, skipped=1) if landed else all_of(2)

    def check(self, hand: Hand, *, landed: bool) -> None:
        with Plain(hand.url) as plain:
            counted = plain.rows("select outcome, ends from tenure.statistic order by outcome")
        assert counted == ([("cancelled", 1), ("skipped", 1)] if landed else [])


KEEP_DEEDS: tuple[type[Deed], ...] = (
    SucceedUnkept, PruneKept, FreeKey, RetakeKey, UnknownTask, AddUpStatistics, CountCancelled,
)  # fmt: skip
