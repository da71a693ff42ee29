"""The feed of finished jobs and its readers; the jobs that failures enqueue."""

from __future__ import annotations

from collections import Counter

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.ends import Ended, NewHook
from tenure.rules.job import NewJob
from tests.points.deed import VICTIM, Deed, Hand, all_of
from tests.support.plain import Plain
from tests.support.work import ERROR, TASK, add, add_many, settle

HOOK = "app.alert"
READER = "r"
HOOKED = NewHook(task=TASK, parameter="failed", job=NewJob(task=HOOK))


def unread(hand: Hand) -> list[Ended]:
    """What the reader gets, whoever has read before."""
    return list(hand.store.read_feed(READER, limit=1000, now=hand.now).ends)


def ended(hand: Hand, count: int) -> None:
    """So many jobs succeed."""
    add_many(hand.store, hand.now, count)
    held = hand.take()
    for one in held:
        hand.ended(one)
    settle(hand.store, hand.now, *map(lifecycle.succeed, held), worker=VICTIM)


class Followed(Deed):
    """Every job that has ended is in the feed, once, and every failure has called its hook."""

    endings = {TASK: lambda held: lifecycle.fail(held, ERROR)}  # noqa: RUF012

    def prepare(self, hand: Hand) -> None:
        hand.store.add_reader(READER, now=hand.now)
        hand.store.declare_hooks([HOOKED], now=hand.now)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        with Plain(hand.url) as plain:
            wanted = plain.rows("select id, token, cast(state as text) from tenure.history")
        ends = unread(hand)
        assert sorted((end.id, end.token, str(end.state)) for end in ends) == sorted(wanted)
        failed = [end.id for end in ends if end.task == TASK and end.state == "failed"]
        told = [job.args["failed"]["id"] for job in hand.store.list_jobs(task=HOOK, limit=100).jobs]
        assert sorted(told) == sorted(failed)


class SettleFollowed(Followed):
    """Two jobs fail, and one succeeds."""

    name, call, about = "settle, with a reader and a hook", "settle", "finish"
    held: list[Claimed]

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.prepare(hand)
        add_many(hand.store, hand.now, 2)
        add(hand.store, hand.now, task="app.other")
        self.held = hand.take()

    def do(self, hand: Hand) -> None:
        ends = [self.endings.get(one.task, lifecycle.succeed)(one) for one in self.held]
        settle(hand.store, hand.now, *ends, worker=VICTIM)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(failed=2, succeeded=3)


class SweepFollowed(Followed):
    """A dead worker had the last attempt of a job: the sweep of another one ends it."""

    name, call, about = "sweep, with a reader and a hook", "sweep", "finish"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.prepare(hand)
        add(hand.store, hand.now, max_attempts=1)
        hand.take(worker="dead")
        hand.clock.advance(31)

    def do(self, hand: Hand) -> None:
        hand.store.sweep(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(failed=1, succeeded=1)


class ExpireFollowed(Followed):
    """Upkeep ends two jobs that were not started in time, and the child of one."""

    name, call, about = "expire, with a reader and a hook", "expire", "finish"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.prepare(hand)
        [parent, _] = add_many(hand.store, hand.now, 2, start_within_seconds=5)
        add(hand.store, hand.now, parents=(parent,))
        hand.clock.advance(10)

    def do(self, hand: Hand) -> None:
        hand.store.expire(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(skipped=3)


class ClaimLateFollowed(ExpireFollowed):
    """A claim meets them. If it dies before it has ended them, the sweep does."""

    name, call, about = "claim late, with a reader and a hook", "claim", "finish"

    def do(self, hand: Hand) -> None:
        hand.take()


class AddReader(Deed):
    """It is there, or is added by the next call, and gets what ends from then on."""

    name, call, about = "add a reader", "add_reader", "add_reader"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 2)

    def do(self, hand: Hand) -> None:
        hand.store.add_reader(READER, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.add_reader(READER, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        assert len({end.id for end in unread(hand)}) == len(unread(hand)) == 2


class OfReader(Deed):
    """Three jobs have ended, and a reader has read none of them."""

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.add_reader(READER, now=hand.now)
        ended(hand, 3)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(3)


class ReadFeed(OfReader):
    """The same ends come again, in the same order."""

    name, call, about = "read the feed", "read_feed", "see_reader"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.clock.advance(100)

    def do(self, hand: Hand) -> None:
        unread(hand)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        ends = unread(hand)
        assert [end.id for end in ends] == sorted(end.id for end in ends)
        assert [end.place for end in ends] == [1, 2, 3]


class MoveReader(OfReader):
    """What it is done with does not come again, once that is said; nothing else is lost."""

    name, call, about = "move a reader", "move_reader", "move_reader"
    place: int

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        self.place = unread(hand)[0].place

    def do(self, hand: Hand) -> None:
        hand.store.move_reader(READER, self.place, now=hand.now)

    def check(self, hand: Hand, *, landed: bool) -> None:
        assert len(unread(hand)) == (2 if landed else 3)
        with Plain(hand.url) as plain:
            assert plain.one("select count(*) from tenure.feed") == (2 if landed else 3)


class RemoveReader(OfReader):
    """The ends that were kept for it go with it."""

    name, call, about = "remove a reader", "remove_reader", "remove_reader"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        unread(hand)  # all have their places

    def do(self, hand: Hand) -> None:
        hand.store.remove_reader(READER, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.remove_reader(READER, now=hand.now)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        assert hand.store.readers(now=hand.now) == []
        with Plain(hand.url) as plain:
            assert plain.table("feed") == []


class GiveUpReaders(OfReader):
    """A prune gives up the reader that is away, and removes its ends."""

    name, call, about = "prune the feed", "prune", "give_up_readers"
    forgets = True

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.clock.advance(8 * 86_400)

    def do(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(0)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        assert [reader.lost_at is None for reader in hand.store.readers(now=hand.now)] == [False]
        with Plain(hand.url) as plain:
            assert plain.table("feed") == []


FEED_DEEDS: tuple[type[Deed], ...] = (
    SettleFollowed, SweepFollowed, ExpireFollowed, ClaimLateFollowed, AddReader, ReadFeed,
    MoveReader, RemoveReader, GiveUpReaders,
)  # fmt: skip
