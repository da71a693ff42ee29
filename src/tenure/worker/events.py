"""What a worker reports about its jobs: log lines, and events to listeners. Never arguments."""

import logging

from tenure.hooks import Hooks, JobEvent
from tenure.rules.codec import decode
from tenure.rules.job import Claimed
from tenure.rules.lifecycle import Outcome, Settlement, Standing, after_settlement
from tenure.store import Answer
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob

log = logging.getLogger("tenure.worker")

_REQUEUED = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed", Outcome.RELEASE: "released"}
_LEVELS = {"succeeded": logging.DEBUG, "failed": logging.ERROR, "retried": logging.WARNING}


class EventReporter:
    """Reports for one worker."""

    def __init__(self, hooks: Hooks, worker: str, environment: Environment) -> None:
        self._hooks = hooks
        self._worker = worker
        self._environment = environment

    def say(self, level: int, job: Claimed, what: str) -> None:
        """Log one line about one job."""
        if log.isEnabledFor(level):
            facts = {"job": job.id, "task": job.task, "queue": job.queue,
                     "attempt": job.attempts + 1, "worker": self._worker}  # fmt: skip
            log.log(
                level, "job %d of %s (queue %s, attempt %d, worker %s): %s", *facts.values(), what,
                extra={"tenure": facts},
            )  # fmt: skip

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
        return bool(self._hooks.listeners) or log.isEnabledFor(logging.DEBUG)

    def settled(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> None:
        """Report what the store returned for this settlement."""
        job = leased.job
        if not answer.landed:
            # The database's message about a refused row may quote the row: it is not logged.
            why = "the job is no longer ours" if answer.error is None else "the store refused it"
            self.say(logging.WARNING, job, f"{settlement.outcome} was refused: {why}")
            self.event("stale", job, settlement)
            return
        standing = Standing(job.attempts, job.max_attempts, bool(leased.cancelled))
        move = after_settlement(standing, settlement)
        kind = str(move.to) if move.to.final else _REQUEUED[settlement.outcome]
        again = f", again in {move.delay_seconds:.1f} s" if move.delay_seconds else ""
        self.say(_LEVELS.get(kind, logging.INFO), job, f"{kind}{_because(settlement)}{again}")
        self.event(kind, job, settlement)


def _because(settlement: Settlement) -> str:
    """The reason. For an error, only its type: its message may contain secrets."""
    if settlement.reason == "error" and settlement.error is not None:
        return f": {decode(settlement.error, dict[str, str])['type']}"
    return f": {settlement.reason}" if settlement.reason else ""
