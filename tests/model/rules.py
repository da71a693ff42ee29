"""What may happen next: each rule draws one operation from the present state of the model.

A rule sees only a seed and the model, so a step means something in any story, also in one from
which other steps were dropped. That is what makes a story easy to shrink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tenure.rules.codec import encode
from tenure.rules.job import NewJob, NewStep, Replace, State, Unique, Until
from tenure.rules.lifecycle import (
    Settlement,
    abort,
    fail,
    release,
    retry,
    skip,
    snooze,
    succeed,
    unknown_task,
)
from tenure.rules.limits import FAR_FUTURE
from tests.model.books import NOBODY, Held, JobId, LeaseId, Where, Wish, Work
from tests.model.reference import Model
from tests.model.sides import Lost, Op

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORKERS = ("w1", "w2", "w3")
QUEUES = ("mail", "video")
PRIORITIES = (0, 0, 0, -5, 7)
TENANTS = ("", "", "acme", "umbrella")
TASKS = ("app.send", "app.cut")
LEASE_SECONDS = (5.0, 30.0, 30.0, 60.0)
NO_LEASE = LeaseId(10**9)
ERROR = encode({"type": "ValueError", "message": "no"})
MANY = 14
REPLACE = (
    Replace(),
    Replace(args=False, postpone=True),
    Replace(postpone=True, postpone_at_most_seconds=8.0),
)
READERS = ("one", "two")


@dataclass
class Scene:
    """The model, the time, and what workers and clients remember."""

    model: Model = field(default_factory=Model)
    now: datetime = START
    handed_out: list[tuple[str, Held]] = field(default_factory=list)
    sent: list[Op] = field(default_factory=list)
    fresh_key: int = 0

    def op(self, name: str, *args: Any, lost: Lost = Lost.NOTHING, **options: Any) -> Op:
        """An operation at the present time."""
        tenant = options.pop("tenant", None)
        return Op(name, args, {**options, "now": self.now}, tenant, lost)

    def remember(self, op: Op, answer: object) -> None:
        """Workers know what they were handed; clients know what they sent."""
        if op.name == "claim" and isinstance(answer, list):
            for lease in answer:
                self.handed_out += [
                    (lease.worker, Held(JobId(job.id), job.token, LeaseId(lease.id)))
                    for job in lease.jobs
                ]
        self.handed_out = self.handed_out[-60:]
        if op.name in REPEATABLE:
            self.sent = [*self.sent[-11:], op]

    def leases(self, worker: str, *, foreign: bool = False) -> list[LeaseId]:
        """Leases of this worker, or of all others, whose ids somebody was told."""
        told = {held.lease_id for _, held in self.handed_out}
        return sorted(
            id for id, lease in self.model.leases.items()
            if id in told and (lease.worker != worker) == foreign
        )  # fmt: skip

    def holds(self, worker: str) -> list[Held]:
        """What the worker rightly believes to hold."""
        return [
            held for name, held in self.handed_out
            if name == worker and self.model.is_held(worker, *held)
        ]  # fmt: skip


REPEATABLE = {
    "settle", "extend", "cancel", "hold", "unhold", "move", "replay", "report_progress",
    "save_checkpoint", "record_step", "annotate", "start_once", "delete",
}  # fmt: skip

Rule = Callable[[Scene, Random], Op | None]


def _lost(rnd: Random) -> Lost:
    return rnd.choices([Lost.NOTHING, Lost.REPLY, Lost.REQUEST], [94, 4, 2])[0]


def _any_job(scene: Scene, rnd: Random) -> JobId:
    """Mostly a known job, and mostly a recent one."""
    known = sorted(scene.model.jobs)
    if not known or rnd.random() < 0.02:
        return NOBODY
    return rnd.choice(known[-8:] if rnd.random() < 0.6 else known)


def _job_in(scene: Scene, rnd: Random, *wheres: Where) -> JobId:
    """A job in one of these places if there is one, and sometimes any other."""
    found = sorted(id for id, work in scene.model.jobs.items() if work.where in wheres)
    return rnd.choice(found) if found and rnd.random() < 0.85 else _any_job(scene, rnd)


def _scope(scene: Scene, rnd: Random, id: JobId) -> str | None:
    """Mostly nobody's scope, else a tenant's, rightly or wrongly."""
    if rnd.random() < 0.75:
        return None
    work = scene.model.jobs.get(id)
    own = work.job.tenant if work is not None else ""
    return own if own and rnd.random() < 0.7 else rnd.choice(("acme", "umbrella"))


# Clients -------------------------------------------------------------------------------------


def enqueue(scene: Scene, rnd: Random) -> Op:
    crowded = sum(work.live for work in scene.model.jobs.values()) > MANY
    count = 1 if crowded else rnd.choice((1, 1, 2, 3, 5))
    wishes = [_wish(scene, rnd) for _ in range(count)]
    tenant = rnd.choice(("acme", "umbrella")) if rnd.random() < 0.1 else None
    return scene.op("enqueue", wishes, tenant=tenant, lost=_lost(rnd))


def enqueue_plain(scene: Scene, rnd: Random) -> Op:
    """Alike and simple, as a bulk load is."""
    queue, priority = rnd.choice(QUEUES), rnd.choice(PRIORITIES)
    jobs = [NewJob(task="app.send", queue=queue, priority=priority, args=encode({"n": n}))
            for n in range(rnd.choice((3, 4, 6)))]  # fmt: skip
    return scene.op("enqueue", [Wish(job) for job in jobs], lost=_lost(rnd))


def enqueue_and_finish(scene: Scene, rnd: Random) -> Op | None:
    """Jobs that are over before their enqueue is answered; their keys are new ones."""
    if len(scene.model.queues_with_suspects()) > 1:
        return None
    queues = dict.fromkeys(QUEUES, 50)
    wishes = []
    for _ in range(rnd.choice((1, 2, 3))):
        scene.fresh_key += 1
        unique = Unique(key=f"fresh-{scene.fresh_key}") if rnd.random() < 0.5 else None
        delay = rnd.choice((None, None, None, 5.0))
        wishes.append(
            Wish(NewJob(task="app.cut", queue="video", unique=unique, delay_seconds=delay))
        )
    return scene.op("enqueue_and_finish", wishes, queues, lease_seconds=30.0, lost=Lost.REPLY)


def _wish(scene: Scene, rnd: Random) -> Wish:
    tenant, task = rnd.choice(TENANTS), rnd.choice(TASKS)
    options: dict[str, Any] = {}
    if rnd.random() < 0.25:
        options["delay_seconds"] = rnd.choice((0.0, 0.25, 1.0, 5.0, 20.0))
    elif rnd.random() < 0.1:
        options["due_at"] = scene.now + timedelta(seconds=rnd.choice((-4, 0, 2, 10)))
    if rnd.random() < 0.3:
        until = rnd.choice(list(Until))
        options["unique"] = Unique(
            key=rnd.choice("kl"), scope=rnd.choice((None, None, "shared")), until=until,
            period_seconds=rnd.choice((10.0, 40.0)) if until is Until.PERIOD else None,
            retake_failed=rnd.random() < 0.3,
            on_conflict=rnd.choice((None, *REPLACE)),
        )  # fmt: skip
    if rnd.random() < 0.2:
        options["at_most_once"] = True
    if rnd.random() < 0.15:
        options["start_within_seconds"] = rnd.choice((0.0, 3.0, 10.0))
    if rnd.random() < 0.1:
        options["finish_by"] = scene.now + timedelta(seconds=9)
    if rnd.random() < 0.1:
        options |= {"timeout_seconds": 2.5, "metadata": encode({"by": "me"})}
    for name in ("keep_succeeded_seconds", "keep_other_seconds"):
        if rnd.random() < 0.2:
            options[name] = rnd.choice((0.0, 0.0, 20.0, 60.0, math.inf))
    job = NewJob(
        task=task, args=encode({"n": rnd.randrange(2)}), queue=rnd.choice(QUEUES),
        priority=rnd.choice(PRIORITIES), tenant=tenant, max_attempts=rnd.choice((1, 2, 3, 5)),
        **options,
    )  # fmt: skip
    return Wish(job, _parents(scene, rnd, tenant) if rnd.random() < 0.25 else ())


def _parents(scene: Scene, rnd: Random, tenant: str) -> tuple[JobId, ...]:
    found = [id for id, work in scene.model.jobs.items() if work.job.tenant == tenant]
    chosen = rnd.sample(found[-8:], min(len(found[-8:]), rnd.choice((1, 1, 2, 3))))
    if rnd.random() < 0.05:
        chosen.append(_any_job(scene, rnd))
    return tuple(chosen)


def cancel(scene: Scene, rnd: Random) -> Op:
    id = _job_in(scene, rnd, Where.LEASE, Where.LINE, Where.DUE, Where.WAITING, Where.HELD)
    reason = rnd.choice(("cancelled", "not needed"))
    lost = Lost.NOTHING if _leaves_no_trace(scene, id) else _lost(rnd)
    return scene.op("cancel", id, reason=reason, tenant=_scope(scene, rnd, id), lost=lost)


def _leaves_no_trace(scene: Scene, id: JobId) -> bool:
    """Is it gone, or may it not be kept? Then only some stores know a call again whose reply was
    lost."""
    work = scene.model.jobs.get(id)
    return work is None or 0 in (
        work.job.keep_succeeded_seconds,
        work.job.keep_other_seconds,
    )


def hold(scene: Scene, rnd: Random) -> Op:
    id = _job_in(scene, rnd, Where.LEASE, Where.LINE, Where.DUE, Where.WAITING)
    return scene.op("hold", id, tenant=_scope(scene, rnd, id), lost=_lost(rnd))


def unhold(scene: Scene, rnd: Random) -> Op:
    held = sorted(id for id, work in scene.model.jobs.items() if work.held)
    id = rnd.choice(held) if held and rnd.random() < 0.9 else _any_job(scene, rnd)
    return scene.op("unhold", id, tenant=_scope(scene, rnd, id), lost=_lost(rnd))


def move(scene: Scene, rnd: Random) -> Op:
    id = _job_in(scene, rnd, Where.LINE, Where.DUE, Where.WAITING, Where.HELD)
    changes: dict[str, Any] = {}
    while not changes:
        if rnd.random() < 0.5:
            changes["queue"] = rnd.choice(QUEUES)
        if rnd.random() < 0.5:
            changes["priority"] = rnd.choice(PRIORITIES)
        if rnd.random() < 0.4:
            changes["due_at"] = scene.now + timedelta(seconds=rnd.choice((-5, 0, 3, 15)))
    return scene.op("move", id, **changes, tenant=_scope(scene, rnd, id), lost=_lost(rnd))


def replay(scene: Scene, rnd: Random) -> Op:
    id = _job_in(scene, rnd, Where.HISTORY)
    afresh = rnd.random() < 0.3
    return scene.op("replay", id, afresh=afresh, tenant=_scope(scene, rnd, id), lost=_lost(rnd))


def delete(scene: Scene, rnd: Random) -> Op:
    id = _job_in(scene, rnd, Where.HISTORY)
    return scene.op("delete", id, tenant=_scope(scene, rnd, id), lost=_lost(rnd))


def _key(scene: Scene, rnd: Random) -> tuple[str, str, str]:
    """Mostly a key that a job has: tenant, scope, key."""
    taken = sorted(scene.model.keys)
    if taken and rnd.random() < 0.8:
        return rnd.choice(taken)
    return rnd.choice(TENANTS), rnd.choice((*TASKS, "shared")), rnd.choice("kl")


def get_by_key(scene: Scene, rnd: Random) -> Op:
    tenant, scope, key = _key(scene, rnd)
    return scene.op("get_by_key", scope, key, tenant=tenant or None)


def free_key(scene: Scene, rnd: Random) -> Op:
    tenant, scope, key = _key(scene, rnd)
    lost = _lost(rnd) if (tenant, scope, key) in scene.model.keys else Lost.NOTHING
    return scene.op("free_key", scope, key, tenant=tenant or None, lost=lost)


def pause(scene: Scene, rnd: Random) -> Op:
    return scene.op("pause", rnd.choice(QUEUES), reason=rnd.choice((None, "deploy")))


def resume(scene: Scene, rnd: Random) -> Op:
    paused = sorted(scene.model.paused)
    if not paused:
        return scene.op("resume", rnd.choice(QUEUES))
    return scene.op("resume", rnd.choice(paused), lost=_lost(rnd))


def prune(scene: Scene, rnd: Random) -> Op:
    ages = (0.0, 20.0, 60.0, 300.0)
    return scene.op("prune", succeeded_seconds=rnd.choice(ages), other_seconds=rnd.choice(ages))


# Workers -------------------------------------------------------------------------------------


def claim(scene: Scene, rnd: Random) -> Op:
    names = rnd.sample(QUEUES, rnd.choice((1, 2, 2)))
    if len(scene.model.queues_with_suspects()) > 1:
        names = names[:1]  # which of two suspects comes first is left to the store
    queues = {name: rnd.choice((1, 2, 3, 10)) for name in names}
    seconds = rnd.choice(LEASE_SECONDS)
    return scene.op("claim", rnd.choice(WORKERS), queues, lease_seconds=seconds, lost=_lost(rnd))


def claim_by_task(scene: Scene, rnd: Random) -> Op:
    queues = {rnd.choice(QUEUES): rnd.choice((1, 2, 10))}
    tasks = rnd.choice(([TASKS[0]], [TASKS[1]], [*TASKS]))
    return scene.op(
        "claim", rnd.choice(WORKERS), queues, lease_seconds=30.0, tasks=tasks, lost=_lost(rnd)
    )


def held(scene: Scene, rnd: Random) -> Op:
    """What does a worker hold?"""
    return scene.op("held", rnd.choice(WORKERS))


def settle(scene: Scene, rnd: Random) -> Op | None:
    """A batch of what the worker holds, of what it has lost, and of repetitions."""
    worker = rnd.choice(WORKERS)
    own = scene.holds(worker)
    old = [held for name, held in scene.handed_out if name == worker and held not in own]
    batch = rnd.sample(own, min(len(own), rnd.choice((1, 1, 2, 4))))
    before = [held for held in old if held.id in {now.id for now in batch}]
    if before and rnd.random() < 0.5:
        batch.append(rnd.choice(before))
    elif old and rnd.random() < 0.2:
        batch.append(rnd.choice(old))
    if batch and rnd.random() < 0.1:
        batch.append(rnd.choice(batch))
    rnd.shuffle(batch)
    if not batch:
        return None
    done = rnd.choice((None, [], sorted({held.lease_id for held in batch})))
    settlements = [_settlement(scene, rnd, held) for held in batch]
    unkept = any(_leaves_no_trace(scene, held.id) for held in batch)
    lost = Lost.NOTHING if unkept else _lost(rnd)
    return scene.op("settle", worker, settlements, done_leases=done, lost=lost)


def intrude(scene: Scene, rnd: Random) -> Op | None:
    """Somebody settles what is not his: another's job, another's lease, another token."""
    held = rnd.choice(scene.handed_out)[1] if scene.handed_out else None
    if held is None:
        return None
    worker = rnd.choice(WORKERS)
    match rnd.randrange(3):
        case 0:
            foreign = scene.leases(worker, foreign=True)
            held = held._replace(lease_id=rnd.choice([*foreign, NO_LEASE]))
        case 1:
            own = scene.leases(worker)
            held = Held(held.id, max(1, held.token - 1), rnd.choice([*own, held.lease_id]))
        case _:
            worker = "stranger"
    if rnd.random() < 0.2:
        return scene.op("report_progress", worker, [(held, 0.5, "mine?")])
    if rnd.random() < 0.3:
        return scene.op("annotate", worker, [(held, {"mine": True})])
    if rnd.random() < 0.3:
        return scene.op("start_once", worker, held)
    return scene.op("settle", worker, [_settlement(scene, rnd, held)])


def _settlement(scene: Scene, rnd: Random, held: Held) -> Settlement:
    delay = rnd.choice((0.0, 0.0, 0.25, 2.0, 10.0))
    work = scene.model.jobs.get(held.id)
    was_unknown = work is not None and work.story and work.story[-1].kind == "unknown_task"
    if was_unknown and rnd.random() < 0.6:
        return unknown_task(held, delay, rnd.choice((0.0, 5.0, 30.0)))
    match rnd.choices(range(8), (40, 26, 6, 8, 10, 5, 10, 5))[0]:
        case 0:
            return succeed(held, rnd.choice((None, encode(None), encode({"ok": 1}))), 0.5)
        case 1:
            return retry(held, ERROR, delay)
        case 2:
            return fail(held, ERROR)
        case 3:
            return snooze(held, delay)
        case 4:
            return release(held, delay_seconds=rnd.choice((0.0, 0.0, 3.0)))
        case 5:
            return abort(held)
        case 6:
            return unknown_task(held, delay, rnd.choice((0.0, 5.0, 30.0)))
    return skip(held)


def extend(scene: Scene, rnd: Random) -> Op | None:
    """A heartbeat for what the worker holds, or believes to hold; started jobs stay started."""
    worker = rnd.choice(WORKERS)
    mine = [held for name, held in scene.handed_out if name == worker]
    leases: dict[LeaseId, list[JobId]] = {}
    for held in mine[-8:]:
        lease = scene.model.leases.get(held.lease_id)
        known = lease is not None and held.id in lease.started
        started = leases.setdefault(held.lease_id, [])
        if known or rnd.random() < 0.4:
            started.append(held.id)
    if rnd.random() < 0.1:
        leases |= {id: [] for id in scene.leases(worker, foreign=True)[:1]}
    seconds = rnd.choice(LEASE_SECONDS)
    if not leases:
        return None
    return scene.op("extend", worker, leases, lease_seconds=seconds, lost=_lost(rnd))


def report_progress(scene: Scene, rnd: Random) -> Op | None:
    worker = rnd.choice(WORKERS)
    mine = [held for name, held in scene.handed_out if name == worker]
    if not mine:
        return None
    reports = [
        (rnd.choice(mine[-6:]), rnd.choice((None, 0.25, 1.0)), rnd.choice((None, "half")))
        for _ in range(rnd.choice((1, 1, 2, 3)))
    ]
    return scene.op("report_progress", worker, reports, lost=_lost(rnd))


def annotate(scene: Scene, rnd: Random) -> Op | None:
    worker = rnd.choice(WORKERS)
    mine = [held for name, held in scene.handed_out if name == worker]
    if not mine:
        return None
    values = (None, 1, -2.5, True, "text")
    notes = [
        (rnd.choice(mine[-6:]), {name: rnd.choice(values) for name in rnd.sample("abc", 2)})
        for _ in range(rnd.choice((1, 1, 2, 3)))
    ]
    return scene.op("annotate", worker, notes, lost=_lost(rnd))


def start_once(scene: Scene, rnd: Random) -> Op | None:
    """A job that may start only once, held or lost."""
    worker = rnd.choice(WORKERS)
    jobs = scene.model.jobs
    mine = [
        held for name, held in scene.handed_out
        if name == worker and held.id in jobs and jobs[held.id].job.at_most_once
    ]  # fmt: skip
    if not mine:
        return None
    return scene.op("start_once", worker, rnd.choice(mine[-4:]), lost=_lost(rnd))


def save_checkpoint(scene: Scene, rnd: Random) -> Op | None:
    worker = rnd.choice(WORKERS)
    mine = [held for name, held in scene.handed_out if name == worker]
    if not mine:
        return None
    state = encode({"step": rnd.randrange(3)})
    return scene.op("save_checkpoint", worker, rnd.choice(mine[-6:]), state, lost=_lost(rnd))


def record_step(scene: Scene, rnd: Random) -> Op | None:
    """Mostly a name of its own, sometimes one that stands for another result already."""
    worker = rnd.choice(WORKERS)
    mine = [held for name, held in scene.handed_out if name == worker]
    if not mine:
        return None
    step = NewStep(rnd.choice("abc"), "f", encode(rnd.randrange(2)))
    return scene.op("record_step", worker, rnd.choice(mine[-6:]), step, lost=_lost(rnd))


def promote(scene: Scene, rnd: Random) -> Op:
    return scene.op("promote", most=rnd.choice((1, 2, 100)), lost=_lost(rnd))


def expire(scene: Scene, rnd: Random) -> Op:
    return scene.op("expire", most=rnd.choice((1, 2, 100)))


def sweep(scene: Scene, rnd: Random) -> Op:
    most = rnd.choice((1, 2, 20, 20))
    times = [scene.model.leases[id].expires_at for id in scene.model.expired(scene.now)]
    if len(set(times)) < len(times):
        most = 100  # among leases that expire together, stores may differ in which is first
    return scene.op("sweep", most=most, lost=_lost(rnd))


def repeat(scene: Scene, rnd: Random) -> Op | None:
    """The same again, later, as if the answer had been lost."""
    if not scene.sent:
        return None
    op = rnd.choice(scene.sent)
    return Op(op.name, op.args, {**op.options, "now": scene.now}, op.tenant)


# Onlookers -----------------------------------------------------------------------------------


def look(scene: Scene, rnd: Random) -> Op:
    id = _any_job(scene, rnd)
    name = rnd.choice(("get", "get", "progress", "attempts"))
    return scene.op(name, id, tenant=_scope(scene, rnd, id))


def list_jobs(scene: Scene, rnd: Random) -> Op:
    states = frozenset(rnd.sample(list(State), rnd.choice((1, 2, 5))))
    return scene.op(
        "list_jobs", states=rnd.choice((None, states)), queue=rnd.choice((None, *QUEUES)),
        order=rnd.choice((None, "newest", "oldest")),
        task=rnd.choice((None, None, *TASKS)), limit=rnd.choice((1, 3, 100)),
        tenant=rnd.choice((None, None, "acme")),
    )  # fmt: skip


def count(scene: Scene, rnd: Random) -> Op:
    if scene.model.void_tickets() == 0 and rnd.random() < 0.3:
        return scene.op("oldest_ready")
    if rnd.random() < 0.2:
        return scene.op("paused_queues")
    tenant = rnd.choice((None, None, "acme"))
    if rnd.random() < 0.5:
        return scene.op("count_live", tenant=tenant)
    since = scene.now - timedelta(seconds=rnd.choice((0, 10, 60)))
    return scene.op("count_finished", since, scene.now, tenant=tenant)


def add_reader(scene: Scene, rnd: Random) -> Op:
    return scene.op("add_reader", rnd.choice(READERS), tenant=rnd.choice((None, None, "acme")))


def remove_reader(scene: Scene, rnd: Random) -> Op:
    return scene.op("remove_reader", rnd.choice(READERS), tenant=rnd.choice((None, "acme")))


def follow(scene: Scene, rnd: Random) -> Op:
    return scene.op("follow", rnd.choice(READERS), tenant=rnd.choice((None, None, "acme")))


def moments(model: Model) -> list[datetime]:
    """When something changes by itself: a due time, a deadline, the end of a key."""
    found: list[datetime | None] = [lease.expires_at for lease in model.leases.values()]
    found += [work.due_at for work in model.jobs.values()]
    found += [hold.expires_at for hold in model.keys.values()]
    found += [work.keep_until for work in model.jobs.values() if work.keep_until != FAR_FUTURE]
    return sorted({at for at in found if at is not None})


def later(scene: Scene, rnd: Random) -> datetime:
    """The clock goes on: a little, much, to just before or exactly at a moment, or back."""
    ahead = [at for at in moments(scene.model) if at > scene.now]
    match rnd.choices(range(4), (35, 45, 12, 8))[0]:
        case 1 if ahead:
            return rnd.choice(ahead[:3]) + timedelta(microseconds=rnd.choice((-1, 0, 0, 1)))
        case 2:
            return scene.now + timedelta(seconds=70)
        case 3:
            return scene.now - timedelta(seconds=rnd.choice((1, 7, 40)))
    return scene.now + timedelta(seconds=rnd.choice((0.25, 1, 2, 6)))


def stale_ticket(scene: Scene, rnd: Random) -> tuple[str, int, JobId, int]:
    """A ticket under a token of the past, or of a job that is over."""
    id = _any_job(scene, rnd)
    work: Work | None = scene.model.jobs.get(id)
    token = 1 if work is None else work.token
    if work is not None and work.live:
        token -= 1
    return rnd.choice(QUEUES), rnd.choice(PRIORITIES), id, token


RULES: dict[str, tuple[int, Rule]] = {
    "enqueue": (12, enqueue),
    "enqueue_plain": (3, enqueue_plain),
    "enqueue_and_finish": (1, enqueue_and_finish),
    "claim": (15, claim),
    "claim_by_task": (4, claim_by_task),
    "held": (2, held),
    "settle": (20, settle),
    "intrude": (4, intrude),
    "extend": (6, extend),
    "report_progress": (3, report_progress),
    "save_checkpoint": (2, save_checkpoint),
    "annotate": (4, annotate),
    "start_once": (5, start_once),
    "record_step": (3, record_step),
    "promote": (6, promote),
    "expire": (3, expire),
    "sweep": (8, sweep),
    "repeat": (7, repeat),
    "cancel": (5, cancel),
    "hold": (3, hold),
    "unhold": (3, unhold),
    "move": (4, move),
    "replay": (4, replay),
    "delete": (1, delete),
    "get_by_key": (2, get_by_key),
    "free_key": (1, free_key),
    "pause": (1, pause),
    "resume": (2, resume),
    "prune": (1, prune),
    "look": (4, look),
    "list_jobs": (2, list_jobs),
    "count": (2, count),
    "add_reader": (2, add_reader),
    "remove_reader": (1, remove_reader),
    "follow": (4, follow),
}
CLOCK, VOID = "clock", "void_ticket"
WEIGHTS = {CLOCK: 14, VOID: 3} | {name: weight for name, (weight, _) in RULES.items()}
