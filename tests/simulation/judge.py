"""After a run: every invariant, over what all processes did and what the database holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenure.testing.recorder import Answered
from tenure.worker.leases import MARGIN
from tests.simulation.handlers import report as report_of_failures
from tests.simulation.handlers import transactional
from tests.simulation.hub import Process
from tests.simulation.stage import IDLE_POLL_SECONDS, Stage
from tests.support import audit, recovery
from tests.support.books import Blow, Books, Expected, Grant, Violation, Violations
from tests.support.history import Records, add_process, final_of
from tests.support.invariants import report, violations
from tests.support.plain import Plain
from tests.support.recount import overcounted_in

GRACE_SECONDS = 0.1
"""So long a fault may have an effect after its end."""
ANSWERED_SHARE = 0.55
"""A claim that is answered later may not see another heartbeat in time: a worker trusts its lease
for 0.85 of its length, and heartbeats come after 0.29 of it."""
SWEPT_SECONDS = 2.0
"""A look (0.5 s), a pause between sweeps (0.4 s at most), and a second."""


def judge(stage: Stage) -> str:
    """What is wrong, in words; nothing if all is well."""
    plain = Plain.over(stage.session.memory)
    try:
        audit.check(plain)
    except AssertionError as error:
        return f"the rows do not add up: {error}"
    if over := overcounted_in(plain):
        return f"the statistics count more than has ended: {dict(over)}"
    books = Books(records_of(stage), final_of(plain, _in_hub_time(stage)))
    broken = [
        *violations(books, expected_of(stage, books)), *losses(stage, books),
        *late_runs(stage, books), *repeated_ends(stage),
        *stale_steps(stage), *stage.steps_taken.wrong, *excess(stage),
        *late_starts(stage, books), *second_starts(stage, books), *unheard_ends(stage, books),
    ]  # fmt: skip
    return "\n".join(report(books, broken, blows_of(stage)))


def records_of(stage: Stage) -> Records:
    """What all processes did."""
    records = Records()
    for environment in stage.environments:
        add_process(records, environment.log.lines)
    records.calls.sort(key=lambda call: call.began)
    records.runs.sort(key=lambda run: run.began)
    return records


def blows_of(stage: Stage) -> list[Blow]:
    """The deaths of processes."""
    processes = [environment.process for environment in stage.environments]
    return [
        Blow(process.pid, at, "kill")
        for process in processes
        for at, until in process.troubles
        if until == float("inf")
    ]


def expected_of(stage: Stage, books: Books) -> Expected:
    """What the simulation knows by itself."""
    effects = _effects(stage, books)
    alone = {pair for pair, handed_out in stage.session.handed_out.items() if handed_out.alone}
    return Expected(
        effects=effects, swept_seconds=SWEPT_SECONDS, quiet_at=stage.quiet_at, alone=alone,
        every_tick="jump" not in stage.faults.counts, blows=blows_of(stage), atomic=True,
    )  # fmt: skip


def losses(stage: Stage, books: Books) -> Violations:
    """6: a lease is lost only by who was in trouble while it lasted."""
    lease_seconds = stage.plan.lease_seconds
    processes = {environment.process.pid: environment.process for environment in stage.environments}
    workers = {c.sent.worker: processes[c.pid] for c in books.records.calls if c.sent.worker}
    leases = {(g.id, g.token): g for grants in books.grants.values() for g in grants}
    for event in books.final.events:
        if event.kind != "crashed" or event.worker not in workers:
            continue
        grant = leases.get((event.id, event.token))
        process = workers[event.worker]
        handed_out = stage.session.handed_out.get((event.id, event.token))
        if handed_out is None:
            text = f"token {event.token} was taken from {process}, who never had it"
            yield Violation(6, "unexplained crash", event.id, text)
            continue
        if grant is None:  # the claim was never answered: the trouble came with it
            since = handed_out.at
            until = since + lease_seconds
        else:
            since = _trusted_since(books, grant, lease_seconds)
            until = event.at
            if grant.ended > grant.began + ANSWERED_SHARE * lease_seconds:
                # The store tried several times. A worker trusts its lease from before it asked.
                since = min(since, grant.began)
            if _was_told_late(process, grant, lease_seconds):
                continue
        excused = process.was_troubled(since - GRACE_SECONDS, until)
        if grant is None:
            excused |= process.claimed_in_trouble(since - GRACE_SECONDS, until)
            excused |= _stood_still(process, since, until, lease_seconds)
        else:  # of all claims, only its own
            excused |= process.claimed_in_trouble(grant.began, grant.ended)
        if not excused:
            text = f"{process} was in no trouble and lost token {event.token}"
            yield Violation(6, "unexplained crash", event.id, text)


def _trusted_since(books: Books, grant: Grant, lease_seconds: float) -> float:
    """When it was last renewed before the worker gave it up: what comes later is in vain.

    By its own clock, from before it sent the claim or a heartbeat; that clock is ours.
    """
    since, trusted_seconds = grant.began, (1 - MARGIN) * lease_seconds
    for call in books.records.of("extend"):
        if grant.lease in call.sent.leases and isinstance(call.answer, Answered):
            lost = grant.lease in (*call.answer.lost, *call.answer.busy)
            if lost or call.began >= since + trusted_seconds:
                break
            since = call.began
    return since


def late_runs(stage: Stage, books: Books) -> Violations:
    """3: no handler starts on a lease that has ended, unless its process stood still."""
    processes = {environment.process.pid: environment.process for environment in stage.environments}
    leases = {(g.id, g.token): g for grants in books.grants.values() for g in grants}
    for run in books.records.runs:
        grant = leases.get((run.id, run.token))
        if grant is None:
            continue
        _, most = books.deadlines[grant.lease]
        process = processes[run.pid]
        if run.began > most and not process.was_stalled(grant.ended, run.began):
            text = f"{run.began - most:.3f} s after the lease of token {run.token}"
            yield Violation(3, "started late", run.id, text)


def late_starts(stage: Stage, books: Books) -> Violations:
    """13: what the last blow has hit runs again within lease + poll + 1 s."""
    if stage.last_blow is None:
        return
    most = stage.plan.lease_seconds + IDLE_POLL_SECONDS + 1.0
    found = [*recovery.recoveries(books, [stage.last_blow])]
    stage.recoveries = [each.seconds - stage.plan.lease_seconds for each in found]
    yield from recovery.starts_are_prompt(books, [stage.last_blow], most)
    if not found:
        yield Violation(13, "late recovery", None, f"nothing that {stage.last_blow} hit ran again")


def second_starts(stage: Stage, books: Books) -> Violations:
    """4: a job that starts at most once starts again only after an operator has replayed it."""
    for id, starts in stage.only_starts.items():
        replays = sum(event.kind == "replayed" for event in books.events[id])
        if starts > 1 + replays:
            text = f"started {starts} times, replayed {replays} times"
            yield Violation(4, "started twice", id, text)


def repeated_ends(stage: Stage) -> Violations:
    """12: a workflow ends once, and again only after it was opened again."""
    open_ones: dict[int, bool] = {}
    noted = "select workflow_id, ended from flow_end order by rowid"
    for flow, ended in stage.session.memory.execute(noted):
        if bool(ended) != open_ones.get(flow, True):
            text = f"workflow {flow} {'ended twice' if ended else 'was opened twice'}"
            yield Violation(12, "workflow ended twice", None, text)
        open_ones[flow] = not ended


def unheard_ends(stage: Stage, books: Books) -> Violations:
    """16: every end is in the feed, once, and every failure has called its hook."""
    fed = Counter(
        stage.session.memory.execute("select job_id, token, state from tenure_feed").fetchall()
    )
    called = {job.called_for for job in books.final.jobs}
    for job in books.final.jobs:
        if job.is_live:
            continue
        if fed[job.id, job.token, job.state] != 1:
            text = f"{fed[job.id, job.token, job.state]} times, token {job.token}, {job.state}"
            yield Violation(16, "end not once in the feed", job.id, text)
        failed = job.state == "failed" and job.task != report_of_failures.name
        if failed and (job.id, job.token) not in called:
            yield Violation(16, "failure without its hook", job.id, f"token {job.token}")


def stale_steps(stage: Stage) -> Violations:
    """4: no attempt that has lost its job records a step, however late its request arrives."""
    for id, token in stage.session.memory.execute("select job_id, token from stale_step"):
        yield Violation(4, "stale step recorded", id, f"of token {token}", (token,))


def excess(stage: Stage) -> Violations:
    """2: no claim gets more jobs of a queue or of a kind, or more bytes, than it asked for."""
    for environment in stage.environments:
        yield from environment.log.wrong


def _was_told_late(process: Process, grant: Grant, lease_seconds: float) -> bool:
    """Was its event loop blocked, so that nobody saw the claim in time to renew the lease?

    A worker trusts its lease from before it asked, and may have stood still before the claim was on
    its way. A thread may have had the answer before: the event loop sees it when it stands still no
    more. Only a stall that covers the missing time counts: from the claim to the answer, but for
    what an answer needs at most.
    """
    return _stood_still(process, grant.began, process.moves_at(grant.ended), lease_seconds)


def _stood_still(process: Process, since: float, until: float, lease_seconds: float) -> bool:
    """For so long that a claim sent at the first time and seen at the second comes too late?"""
    share_seconds = ANSWERED_SHARE * lease_seconds
    stalled_seconds = process.stalled_seconds(since, until)
    return until > since + share_seconds and stalled_seconds >= share_seconds - GRACE_SECONDS


def _effects(stage: Stage, books: Books) -> dict[int, int]:
    """How often the effect of each job is there, since an operator last began it anew."""
    execute = stage.session.memory.execute
    effects: Counter[int] = Counter()
    for id, count in execute("select job_id, count(*) from effect group by job_id"):
        effects[id] = count - sum(event.kind == "succeeded" for event in books.events[id])
    others = execute("select id from tenure_history where task <> ?", (transactional.name,))
    for (id,) in others:  # they have nothing to show
        effects[id] += books.rows[id].state == "succeeded"
    return effects


def _in_hub_time(stage: Stage) -> Any:
    return lambda microseconds: stage.session.clock.read_at[microseconds]
