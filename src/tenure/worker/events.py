"""What a worker reports about its jobs: log lines, and events to listeners. Never arguments."""

import logging
import sys

from tenure.hooks import Hooks, JobEvent
from tenure.rules.claim import Claimed
from tenure.rules.codec import decode
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Outcome, Settlement, Standing, after_settlement
from tenure.rules.why import UNFIT
from tenure.store import Answer
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob
from tenure.worker.logs import job_facts
from tenure.worker.settings import WorkerSettings

log = logging.getLogger("tenure.worker")

_REQUEUED = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed", Outcome.RELEASE: "released"}
_ONCE = int(Feature.ONCE)
_LEVELS = {"failed": logging.ERROR, "retried": logging.WARNING}


MAX_LINES = 100
"""How many successes per second get a line of their own."""


class EventReporter:
    """Reports for one worker."""

    def __init__(
        self, hooks: Hooks, worker: str, settings: WorkerSettings, environment: Environment
    ) -> None:
        self._hooks = hooks
        self._worker = worker
        self._environment = environment
        in_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._errors = settings.log_errors or ("traceback" if in_terminal else "type")
        successes = settings.log_successes
        logs_successes = in_terminal if successes is None else successes
        self._levels = _LEVELS | {"succeeded": logging.INFO if logs_successes else logging.DEBUG}
        self._unfit: set[str] = set()
        """Tasks of which the log has said that arguments do not fit."""
        self._second = 0.0
        self._lines = 0
        """How many lines about successes this second has. A terminal cannot show thousands."""

    def say(self, level: int, job: Claimed, what: str) -> None:
        """Log one line about one job."""
        if log.isEnabledFor(level):
            facts = job_facts(job.id, job.task, job.queue, job.attempts + 1, self._worker)
            log.log(
                level, "job %d of %s (queue %s, attempt %d, worker %s): %s", *facts.values(), what,
                extra={"tenure": facts},
            )  # fmt: skip

    def stuck(self, job: Claimed) -> None:
        """Log that a handler was told to stop and does not."""
        self.say(logging.ERROR, job, "does not stop; its slot is stuck")

    def event(self, kind: str, job: Claimed, settlement: Settlement | None = None) -> None:
        """Send an event to the listeners, if there are any."""
        if not self._hooks.listeners:
            return
        self._hooks.tell(
            JobEvent(
                kind=kind, id=job.id, token=job.token, task=job.task, queue=job.queue,
                tenant=job.tenant, attempt=job.attempts + 1, worker=self._worker,
                at=self._environment.now(), reason=settlement.reason if settlement else None,
                duration_seconds=settlement.duration_seconds if settlement else None,
            )
        )  # fmt: skip

    def reports_successes(self) -> bool:
        """Does a listener or the log want successes? The settler asks once per batch."""
        return bool(self._hooks.listeners) or log.isEnabledFor(self._levels["succeeded"])

    def settled(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> str | None:
        """Report what the store returned for this settlement. Returns how the attempt has ended;
        None: the job is no longer ours."""
        job = leased.job
        if not answer.landed:
            # The database's message about a refused row may quote the row: it is not logged.
            why = "the job is no longer ours" if answer.error is None else "the store refused it"
            self.say(logging.WARNING, job, f"{settlement.outcome} was refused: {why}")
            self.event("stale", job, settlement)
            return None
        spent = bool(job.features & _ONCE) and leased.started_at is not None
        standing = Standing(job.attempts, job.max_attempts, bool(leased.cancelled), spent)
        move = after_settlement(standing, settlement)
        to = answer.became or move.to
        kind = str(to) if to.final else _REQUEUED[settlement.outcome]
        again = f", again in {move.delay_seconds:.1f} s" if move.delay_seconds else ""
        level = self._levels.get(kind, logging.INFO)
        if kind == "released" and self._is_first_unfit(job, settlement):
            level = logging.WARNING
        if kind != "succeeded" or (log.isEnabledFor(level) and self._has_room()):
            because = "" if settlement.reason == kind else self._because(settlement)
            took = _took(kind, settlement) if to.final else ""
            trace = self._trace(job, settlement) if kind == "failed" else ""
            self.say(level, job, f"{kind}{because}{took}{again}{trace}")
        self.event(kind, job, settlement)
        return kind

    def _is_first_unfit(self, job: Claimed, settlement: Settlement) -> bool:
        """Do the arguments not fit this code, as the first ones of their task?"""
        if not (settlement.reason or "").startswith(UNFIT) or job.task in self._unfit:
            return False
        self._unfit.add(job.task)
        return True

    def _has_room(self) -> bool:
        """May this success have a line? After `MAX_LINES` in a second, the rest are counted."""
        self.end_second(self._environment.monotonic())
        self._lines += 1
        return self._lines <= MAX_LINES

    def has_uncounted(self) -> bool:
        """Were there successes without a line that the log does not count yet?"""
        return self._lines > MAX_LINES

    def end_second(self, now: float) -> None:
        """If a second is over, log how many successes had no line in it."""
        if now - self._second >= 1.0:
            if self.has_uncounted():
                more = self._lines - MAX_LINES
                log.info("worker %s: %d more jobs succeeded", self._worker, more)
            self._second, self._lines = now, 0

    def _because(self, settlement: Settlement) -> str:
        """The reason. Of an error, as much as the settings say: its message may contain secrets."""
        if settlement.reason != "error" or settlement.error is None:
            return f": {settlement.reason}" if settlement.reason else ""
        error = decode(settlement.error, dict[str, str])
        kind = error["type"].removeprefix("tenure.errors.")
        if self._errors == "type" or not error["message"]:
            return f": {kind}"
        return f": {kind}: {error['message']}"

    def _trace(self, job: Claimed, settlement: Settlement) -> str:
        """The traceback of a final failure, if the settings say so, or where it can be seen."""
        if settlement.error is None:
            return ""
        if self._errors != "traceback":
            return f"; see `tenure get {job.id}`"
        return f"\n{decode(settlement.error, dict[str, str])['traceback']}".rstrip()


def _took(kind: str, settlement: Settlement) -> str:
    """How long the last attempt ran."""
    seconds = settlement.duration_seconds
    if seconds is None:
        return ""
    took = f"{seconds:.3g} s" if seconds >= 0.001 else "less than 1 ms"
    return f" in {took}" if kind == "succeeded" else f", after {took}"
