"""Durable steps: whenever one runs, and whenever one has returned, the database is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.running import Running
from tests.support.books import Violation

if TYPE_CHECKING:
    from tests.simulation.store import Session

RECORDED = "select token, result from tenure_step where job_id = ? and name = ?"


class Steps:
    """What the handlers of one run have taken."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.wrong: list[Violation] = []

    def begins(self, job: Running, name: str) -> str:
        """A step runs: no attempt up to this one has recorded it. Answers its result."""
        for token, _ in self._session.memory.execute(RECORDED, (job.id, name)):
            if token <= job.token:
                self._note("step ran again", job, f"{name!r}, recorded by token {token}")
        return f"token {job.token}"

    def has_returned(self, job: Running, name: str, value: str) -> None:
        """As long as the job is this attempt's, what it was told is what is recorded."""
        execute = self._session.memory.execute
        current = list(execute("select token from tenure_job where id = ?", (job.id,)))
        if current != [(job.token,)]:
            return
        recorded = [result for _, result in execute(RECORDED, (job.id, name))]
        if recorded != [f'"{value}"']:
            self._note("step not recorded", job, f"{name!r}: {value!r} is not {recorded}")

    def _note(self, what: str, job: Running, text: str) -> None:
        self.wrong.append(Violation(6, what, job.id, text, (job.token,)))
