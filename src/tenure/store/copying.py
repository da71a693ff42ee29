"""New jobs as lines of COPY's text format, and their tickets; and rows as they are."""

from collections.abc import Sequence

from tenure.job import NewJob
from tenure.store.rows import features_of

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_NOTHING_SPECIAL = "\t\\N" * 7 + "\n"


def can_copy(job: NewJob) -> bool:
    """COPY is for jobs that stand in line at once; the others need a due time worked out."""
    return job.delay_seconds is None and job.due_at is None and not job.parents


def job_line(place: int, id: int, job: NewJob, created_at: str) -> str:
    """One line of `copy_jobs`."""
    head = (
        f"{id}\t{place}\t{created_at}\t{job.priority}\t{job.max_attempts}\t{features_of(job)}"
        f"\t{_field(job.tenant)}\t{job.queue}\t{job.task}\t{_escaped(job.args.decode())}"
    )
    unique = job.unique
    if (
        unique is None
        and job.retry is None
        and job.metadata is None
        and job.timeout_seconds is None
    ):
        return head + _NOTHING_SPECIAL
    rest: list[object] = [job.retry, job.metadata, job.timeout_seconds, None, None, None, None]
    if unique is not None:
        rest[3:] = unique.period_seconds, unique.scope or job.task, unique.key, unique.until
    return head + "".join([f"\t{_field(value)}" for value in rest]) + "\n"


def ticket_line(place: int, id: int, job: NewJob) -> str:
    """One line of `copy_tickets`."""
    return f"{place}\t{id}\t1\t{job.priority}\t{job.queue}\n"


def line(row: Sequence[object]) -> str:
    """One line of any COPY statement."""
    return "\t".join([_field(value) for value in row]) + "\n"


def _field(value: object) -> str:
    if value is None or value == b"null":
        return "\\N"
    return _escaped(value.decode() if isinstance(value, bytes) else str(value))


def _escaped(text: str) -> str:
    """JSON that was not made by the codec may have line breaks and tabs between its tokens."""
    if "\\" in text or "\n" in text or "\t" in text or "\r" in text:
        return text.translate(_ESCAPES)
    return text
