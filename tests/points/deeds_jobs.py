"""enqueue, claim, extend, settle, sweep, promote, fire: the life of jobs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import ClassVar, Literal

from tenure.rules import lifecycle
from tenure.rules.claim import NEEDS, Ask, Claimed
from tenure.rules.codec import encode
from tenure.rules.gates import Limits
from tenure.rules.job import NewStep, Replace, State, Unique, Until
from tenure.rules.lifecycle import Settlement
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule
from tests.points.deed import SUCCESSOR, VICTIM, Deed, Hand, all_of
from tests.points.tripwire import Caller
from tests.support.plain import Plain
from tests.support.work import ERROR, add, add_many, job, settle

BULK = 120  # goes by COPY
REPLACE = Replace(postpone=True, postpone_at_most_seconds=60)


class EnqueueOne(Deed):
    """A job without a key and without parents is one statement that commits itself."""

    name, call, about = "enqueue one", "enqueue", "insert_"

    def do(self, hand: Hand) -> None:
        hand.store.enqueue([job()], now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(int(landed))


class EnqueueBulk(Deed):
    """All of them, or none."""

    name, call, about = "enqueue a bulk", "enqueue", "draw_positions"

    def do(self, hand: Hand) -> None:
        hand.store.enqueue([job()] * BULK, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(BULK if landed else 0)


class EnqueueUnique(Deed):
    """Three jobs, two of them with keys. Whoever enqueues them again gets these or new ones."""

    name, call, about = "enqueue with unique keys", "enqueue", "take_keys"
    keyed = (job(unique=Unique(key="a")), job(unique=Unique(key="b", until=Until.STARTED)))

    def do(self, hand: Hand) -> None:
        hand.store.enqueue([job(delay_seconds=60), *self.keyed], now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.enqueue(self.keyed, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(2 + landed)


class EnqueueReplacing(Deed):
    """Two waiting jobs get new arguments: one is ready, one is due later."""

    name, call, about = "enqueue replacing", "enqueue", "replace_job"
    new = tuple(
        job(args=encode({"n": 2}), unique=Unique(key=key, on_conflict=REPLACE), delay_seconds=5)
        for key in ("a", "b")
    )

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now, args=encode({"n": 1}), unique=Unique(key="a"))
        add(hand.store, hand.now, args=encode({"n": 1}), unique=Unique(key="b"), delay_seconds=9)

    def do(self, hand: Hand) -> None:
        hand.store.enqueue(self.new, now=hand.now)

    def again(self, hand: Hand) -> None:
        answers = hand.store.enqueue(self.new, now=hand.now)
        assert [answer.replaced for answer in answers] == [True, True]

    def work(self, hand: Hand, held: Claimed) -> None:  # noqa: ARG002
        assert held.args == '{"n":2}'

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)


class EnqueueChildren(Deed):
    """Children of a job that has ended, of one that runs, of one in line, and of all of them."""

    name, call, about = "enqueue with parents", "enqueue", "add_parents"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.parents = add_many(hand.store, hand.now, 3)
        held = hand.take(2)
        settle(hand.store, hand.now, lifecycle.succeed(held[0]), worker=VICTIM)
        hand.ended(held[0])

    def do(self, hand: Hand) -> None:
        own = [job(parents=(parent,)) for parent in self.parents]
        hand.store.enqueue([*own, job(parents=tuple(self.parents))], now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(7 if landed else 3)


class EnqueueAtGate(Deed):
    """Jobs of two lines of a gate."""

    name, call, about = "enqueue at a gate", "enqueue", "add_gate_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1, keyed=True)}, now=hand.now)

    def do(self, hand: Hand) -> None:
        jobs = [job(gate="g", gate_key=key) for key in "aab"]
        hand.store.enqueue([*jobs, job()], now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(4 if landed else 0)


class EnqueueOn(Deed):
    """A job becomes real with the caller's own row."""

    name, call, about = "enqueue in the caller's transaction", "enqueue", "insert_job"
    driver: ClassVar[Literal["apsw", "sqlite3"]] = "sqlite3"

    def do(self, hand: Hand) -> None:
        caller = Caller(hand.url)
        caller.begin()
        caller.execute("insert into ledger values (0, 0)")
        hand.store.enqueue([job(unique=Unique(key="a"))], on=caller.connection, now=hand.now)
        caller.execute("commit")

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(int(landed))

    def check(self, hand: Hand, *, landed: bool) -> None:
        with Plain(hand.url) as plain:
            assert plain.one("select count(*) from ledger") == landed, "a row without its job"


class EnqueueLent(EnqueueOn):
    """The same in a transaction that the store lends."""

    name, call, about = "enqueue in a lent transaction", "enqueue", "insert_job"
    driver = "apsw"

    def do(self, hand: Hand) -> None:
        with hand.store.transaction() as lent:
            lent.execute("insert into ledger values (0, 0)")
            hand.store.enqueue([job(unique=Unique(key="a"))], on=lent, now=hand.now)


class Claim(Deed):
    """Seven jobs, of which five are wanted: with a suspect, one to cancel, and keys to give up."""

    name, call, about = "claim", "claim", "take_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:
        add(hand.store, hand.now)
        hand.take(1, worker="dead")
        hand.clock.advance(31)
        assert hand.store.sweep(now=hand.now).requeued == 1
        ids = add_many(hand.store, hand.now, 5)
        add(hand.store, hand.now, priority=-1, unique=Unique(key="a", until=Until.STARTED))
        plain.rows("update tenure.job set cancel_requested = true where id = ?", ids[1])

    def do(self, hand: Hand) -> None:
        hand.store.claim(VICTIM, {"default": 5}, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(succeeded=6, cancelled=1)


class ClaimByNeeds(Deed):
    """Of two kinds some are wanted, within a few kilobytes; jobs of a third kind stay."""

    name, call, about = "claim by needs and bytes", "claim", "take_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        large = encode("x" * 3000)
        for kind in ("async", "thread", "process"):
            add_many(hand.store, hand.now, 2, needs=NEEDS[kind])
        add_many(hand.store, hand.now, 2, needs=NEEDS["async"], args=large)

    def do(self, hand: Hand) -> None:
        ask = Ask(9, {NEEDS["async"]: 4, NEEDS["thread"]: 1})
        claim = hand.store.claim(VICTIM, {"default": ask}, max_kb=3, now=hand.now)
        assert sum(len(lease.jobs) for lease in claim) == 4

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(8)


class ClaimByTask(Deed):
    """Jobs of one task are chosen among those of another."""

    name, call, about = "claim by task", "claim", "look_ahead"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        for task in ("mail", "audio", "mail"):
            add_many(hand.store, hand.now, 2, task=task)

    def do(self, hand: Hand) -> None:
        claim = hand.store.claim(VICTIM, {"default": 5}, tasks=["audio"], now=hand.now)
        assert sum(len(lease.jobs) for lease in claim) == 2

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(6)


class ClaimAtGate(Deed):
    """Jobs at three gates, and some without: permits, starts and turns are given out."""

    name, call, about = "claim at a gate", "claim", "look_at_"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        limits = {
            "few": Limits(max_running=2), "each": Limits(max_running=1, keyed=True),
            "slow": Limits(rate=2, per_seconds=60),
        }  # fmt: skip
        hand.store.declare_gates(limits, now=hand.now)
        jobs = [job(gate="few") for _ in range(4)]
        jobs += [job(gate="each", gate_key=key) for key in "aab"]
        jobs += [job(gate="slow") for _ in range(3)]
        hand.store.enqueue([job(), *jobs, job(), job()], now=hand.now)
        hand.take(1)

    def do(self, hand: Hand) -> None:
        for most in (1, 9):  # the second one knows that somebody waits at gates
            hand.store.claim(VICTIM, {"default": most}, riders=1.0, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(13)


class Extend(Deed):
    """A heartbeat for two leases: all jobs have started, one is asked to stop."""

    name, call, about = "extend", "extend", "extend"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 3)
        blocks = [hand.take(2), hand.take(1)]
        assert hand.store.cancel(blocks[1][0].id, now=hand.now) is State.RUNNING
        self.leases = {block[0].lease_id: [one.id for one in block] for block in blocks}
        hand.clock.advance(20)

    def do(self, hand: Hand) -> None:
        hand.store.extend(VICTIM, self.leases, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(succeeded=2, cancelled=1)


class _Settle(Deed):
    """Attempts end: `held` by `how`."""

    call = "settle"
    held: list[Claimed]

    def how(self) -> list[Settlement]:
        return [lifecycle.succeed(one, result=encode(one.id)) for one in self.held]

    def do(self, hand: Hand) -> None:
        settle(hand.store, hand.now, *self.how(), worker=VICTIM)


class Succeed(_Settle):
    """Three jobs of one block."""

    name, about = "settle: succeed", "succeed"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 3)
        self.held = hand.take()

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(3)


class SucceedFeatured(_Settle):
    """A job with a key, one with a note, one with children, one at a gate."""

    name, about = "settle: succeed, with all that hangs on jobs", "note_parent_ends"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        jobs = [job(unique=Unique(key="a")), job(), job(), job(gate="g"), job(gate="g")]
        added = hand.store.enqueue(jobs, now=hand.now)
        self.held = hand.take()
        assert len(self.held) == 4
        by_id = {one.id: one for one in self.held}
        hand.store.save_checkpoint(VICTIM, by_id[added[1].id], encode(1), now=hand.now)
        parents = (added[0].id, added[2].id)
        hand.store.enqueue([job(parents=parents), job(parents=parents)], now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(7)


class Retry(_Settle):
    """It goes back in line, and another worker runs it."""

    name, about = "settle: retry", "add_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now)
        self.held = hand.take()

    def how(self) -> list[Settlement]:
        return [lifecycle.retry(one, ERROR, 5) for one in self.held]

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)


class Fail(_Settle):
    """For good, whoever runs it; its child is skipped, and its grandchild."""

    name, about = "settle: fail", "finish"
    endings: ClassVar = {"app.bad": lambda held: lifecycle.fail(held, ERROR)}

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        parent = add(hand.store, hand.now, task="app.bad", unique=Unique(key="a"))
        child = add(hand.store, hand.now, parents=(parent,))
        add(hand.store, hand.now, parents=(child,))
        self.held = hand.take()

    def how(self) -> list[Settlement]:
        return [lifecycle.fail(one, ERROR) for one in self.held]

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(failed=1, skipped=2)


class SettleBatch(_Settle):
    """Every way to end an attempt, in one batch."""

    name, about = "settle: a batch of all ways", "succeed"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 7)
        self.held = hand.take()

    def how(self) -> list[Settlement]:
        success, failure, again, later, back, stopped, skipped = self.held
        return [
            lifecycle.succeed(success), lifecycle.fail(failure, ERROR),
            lifecycle.retry(again, ERROR, 0), lifecycle.snooze(later, 60), lifecycle.release(back),
            lifecycle.abort(stopped), lifecycle.skip(skipped),
        ]  # fmt: skip

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter(succeeded=4, failed=1, cancelled=1, skipped=1) if landed else all_of(7)


class Complete(Deed):
    """A handler's own row and the end of its job are one transaction."""

    name, call, about = "settle in the caller's transaction", "settle", "caller: insert into ledger"
    driver: ClassVar[Literal["apsw", "sqlite3"]] = "sqlite3"
    has_effects = True

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        parent = add(hand.store, hand.now)
        add(hand.store, hand.now, parents=(parent,))
        [self.held] = hand.take()

    def do(self, hand: Hand) -> None:
        complete(hand, self.held, VICTIM)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(2)


class CompleteLent(Complete):
    """The same in a transaction that the store lends."""

    name, call, about = "settle in a lent transaction", "settle", "succeed"
    driver = "apsw"

    def do(self, hand: Hand) -> None:
        complete_lent(hand, self.held, VICTIM)


def complete_lent(hand: Hand, held: Claimed, worker: str) -> None:
    """What a handler with an effect does in a transaction of the store."""
    with hand.store.transaction() as lent:
        lent.execute(f"insert into ledger values ({held.id}, {held.token})")
        hand.store.settle(worker, [lifecycle.succeed(held)], on=lent, now=hand.now)


def complete(hand: Hand, held: Claimed, worker: str) -> None:
    """What a handler with an effect does."""
    if hand.url.startswith("sqlite") and "driver=sqlite3" not in hand.url:
        complete_lent(hand, held, worker)
        return
    caller = Caller(hand.url)
    caller.begin()
    caller.execute(f"insert into ledger values ({held.id}, {held.token})")
    ends = [lifecycle.succeed(held)]
    hand.store.settle(worker, ends, on=caller.connection, now=hand.now)
    caller.execute("commit")
    caller.connection.close()


class Sweep(Deed):
    """Three leases: one job has no attempt left, two go back in line, one stands at a gate."""

    name, call, about = "sweep", "sweep", "lock_swept"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        parent = add(hand.store, hand.now, max_attempts=1)
        add(hand.store, hand.now, parents=(parent,))
        hand.take(1)
        add_many(hand.store, hand.now, 2)
        hand.take(2)
        add_many(hand.store, hand.now, 2, gate="g")
        assert len(hand.take()) == 1
        hand.clock.advance(31)

    def do(self, hand: Hand) -> None:
        hand.store.sweep(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(failed=1, skipped=1, succeeded=4)


class Expire(Deed):
    """Three jobs were not started in time: one has a child, one a key, one is at a gate."""

    name, call, about = "expire", "expire", "late_jobs"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        parent = add(hand.store, hand.now, start_within_seconds=5)
        add(hand.store, hand.now, parents=(parent,))
        add(hand.store, hand.now, start_within_seconds=5, unique=Unique(key="a"))
        add(hand.store, hand.now, start_within_seconds=5, gate="g")
        add(hand.store, hand.now, start_within_seconds=500)
        hand.clock.advance(10)

    def do(self, hand: Hand) -> None:
        hand.store.expire(now=hand.now)

    def again(self, hand: Hand) -> None:
        add(hand.store, hand.now, unique=Unique(key="b"))

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(skipped=4, succeeded=2)


class ClaimLate(Deed):
    """A claim meets two jobs that were not started in time, and one that was."""

    name, call, about = "claim late", "claim", "finish"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add_many(hand.store, hand.now, 2, start_within_seconds=5)
        add(hand.store, hand.now)
        hand.clock.advance(10)

    def do(self, hand: Hand) -> None:
        hand.take()

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(skipped=2, succeeded=1)


class Promote(Deed):
    """Three jobs are due, one of them at a gate, and one is not."""

    name, call, about = "promote", "promote", "promote"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        jobs = [job(delay_seconds=10), job(delay_seconds=10, gate="g"), job(delay_seconds=50)]
        hand.store.enqueue([*jobs, job(delay_seconds=10, priority=3)], now=hand.now)
        hand.clock.advance(20)

    def do(self, hand: Hand) -> None:
        hand.store.promote(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(4)


class Fire(Deed):
    """Five ticks of four schedules are due: one has missed some, one has a job that still runs, one
    has a job with a key that is held."""

    name, call, about = "schedule fire", "fire", "add_ticks"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hourly, alone = (
            ScheduleTiming(cron="0 * * * *"),
            ScheduleTiming(cron="0 * * * *", overlap="skip"),
        )
        missed = ScheduleTiming(cron="*/30 * * * *", catch_up="all")
        for name, timing, options in (
            ("hourly", hourly, {}), ("alone", alone, {}), ("missed", missed, {}),
            ("keyed", hourly, {"unique": Unique(key="a")}),
        ):  # fmt: skip
            new = NewSchedule(name=name, timing=timing, job=job(**options))
            hand.store.add_schedule(new, now=hand.now)
        hand.store.trigger_schedule("alone", now=hand.now)
        add(hand.store, hand.now, unique=Unique(key="a"))
        hand.clock.advance(3600)

    def do(self, hand: Hand) -> None:
        hand.store.fire(now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.fire(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(5)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        counts = {
            name: len(hand.store.schedule_runs(name, now=hand.now))
            for name in ("hourly", "alone", "missed", "keyed")
        }
        assert counts == {"hourly": 1, "alone": 2, "missed": 2, "keyed": 1}, counts
        later = hand.store.get_schedule("hourly", now=hand.now).next_at
        assert later is not None
        assert later - hand.now <= timedelta(hours=1)


class RecordStep(Deed):
    """What a step has answered. The next attempt runs it only if it is not there."""

    name, call, about = "record_step", "record_step", "record_step"
    step = NewStep("pay", "app.pay", encode("paid"))

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now)
        [self.held] = hand.take()

    def do(self, hand: Hand) -> None:
        hand.store.record_step(VICTIM, self.held, self.step, now=hand.now)

    def work(self, hand: Hand, held: Claimed) -> None:
        if not hand.store.steps(held.id, now=hand.now):
            assert hand.store.record_step(SUCCESSOR, held, self.step, now=hand.now).landed

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)

    def check(self, hand: Hand, *, landed: bool) -> None:
        [kept] = hand.store.steps(self.held.id, now=hand.now)
        assert (kept.name, kept.result_json, kept.token) == ("pay", '"paid"', 1 if landed else 2), (
            kept
        )


class Checkpoint(Deed):
    """The next attempt finds it, or the one before."""

    name, call, about = "save_checkpoint", "save_checkpoint", "save_checkpoint"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now)
        [self.held] = hand.take()

    def do(self, hand: Hand) -> None:
        hand.store.save_checkpoint(VICTIM, self.held, encode("half"), now=hand.now)

    def work(self, hand: Hand, held: Claimed) -> None:
        found = hand.store.progress(held.id, now=hand.now).checkpoint_json
        assert found in (None, '"half"'), found

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)


class Report(Checkpoint):
    """How far it has come."""

    name, call, about = "report_progress", "report_progress", "report_progress"

    def do(self, hand: Hand) -> None:
        hand.store.report_progress(VICTIM, [(self.held, 0.5, "half")], now=hand.now)


class Annotate(Checkpoint):
    """Small values, merged with those that are there."""

    name, call, about = "annotate", "annotate", "annotate"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.store.annotate(VICTIM, [(self.held, {"epoch": 1, "loss": 9})], now=hand.now)

    def do(self, hand: Hand) -> None:
        hand.store.annotate(VICTIM, [(self.held, {"loss": 3, "gone": None})], now=hand.now)

    def check(self, hand: Hand, *, landed: bool) -> None:
        notes = hand.store.get(self.held.id, now=hand.now).notes
        assert notes == {"epoch": 1, "loss": 3 if landed else 9}, notes


class StartOnce(Deed):
    """The mark of the only start: if it landed, the job must not run again."""

    name, call, about = "start_once", "start_once", "start_once"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now, at_most_once=True)
        [self.held] = hand.take()

    def do(self, hand: Hand) -> None:
        hand.store.start_once(VICTIM, self.held, now=hand.now)

    def work(self, hand: Hand, held: Claimed) -> None:
        assert hand.store.start_once(SUCCESSOR, held, now=hand.now).landed

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter({"failed": 1}) if landed else all_of(1)


JOB_DEEDS: tuple[type[Deed], ...] = (
    EnqueueOne, EnqueueBulk, EnqueueUnique, EnqueueReplacing, EnqueueChildren, EnqueueAtGate,
    EnqueueOn, EnqueueLent, Claim, ClaimByNeeds, ClaimByTask, ClaimAtGate, ClaimLate, Extend,
    Succeed, SucceedFeatured, Retry, Fail, SettleBatch, Complete, CompleteLent, Sweep, Expire,
    Promote, Fire, RecordStep, Checkpoint, Report, Annotate, StartOnce,
)  # fmt: skip
