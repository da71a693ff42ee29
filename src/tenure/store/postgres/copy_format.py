"""New jobs as lines of COPY's text format, and their tickets; and rows as they are."""

from collections.abc import Iterator, Sequence

from tenure.rules.job import NewJob
from tenure.store.rows import features_of, is_plain

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_NOTHING_SPECIAL = "\t\\N" * 9 + "\n"
PIECE = 64

Numbered = Sequence[tuple[int, NewJob]]


def can_copy(job: NewJob) -> bool:
    """COPY is for jobs that are ready at once; the due time of others has to be computed."""
    return (
        job.delay_seconds is None
        and job.due_at is None
        and not job.parents
        and job.gate is None
        and job.features == 0
        and job.expires_at is None
        and job.start_within_seconds is None
        and job.finish_by is None
        and job.finish_within_seconds is None
    )


def job_lines(jobs: Numbered, first_position: int, created_at: str) -> Iterator[str]:
    """All jobs as lines of `copy_jobs`, in pieces: the server reads one while the next is made."""
    same: dict[tuple[object, ...], str] = {}
    for start in range(0, len(jobs), PIECE):
        lines = []
        for position, (id, job) in enumerate(jobs[start : start + PIECE], first_position + start):
            if is_plain(job):  # then few of its fields differ from those of its neighbours
                kind = (
                    job.priority, job.max_attempts, job.needs, job.tenant, job.queue, job.task
                )  # fmt: skip
                middle = same.get(kind)
                if middle is None:
                    middle = same[kind] = f"\t{created_at}{_middle(job)}"
                args = _escaped(job.args.decode())
                kb = job.size_kb if len(job.args) > 1023 else 0
                lines.append(f"{id}\t{position}{middle}{kb}\t{args}{_NOTHING_SPECIAL}")
            else:
                lines.append(_special(position, id, job, created_at))
        yield "".join(lines)


def ticket_lines(jobs: Numbered, first_position: int) -> Iterator[str]:
    """Their tickets as lines of `copy_tickets`, piece by piece."""
    for start in range(0, len(jobs), PIECE):
        some = enumerate(jobs[start : start + PIECE], first_position + start)
        yield "".join(
            [
                f"{position}\t{id}\t1\t{job.priority}\t{job.needs}\t"
                f"{job.size_kb if len(job.args) > 1023 or job.metadata or job.retry else 0}\t"
                f"{job.queue}\n"
                for position, (id, job) in some
            ]
        )


def _middle(job: NewJob) -> str:
    return (
        f"\t{job.priority}\t{job.max_attempts}\t{features_of(job)}\t{job.needs}"
        f"\t{_field(job.tenant)}\t{job.queue}\t{job.task}\t"
    )


def _special(position: int, id: int, job: NewJob, created_at: str) -> str:
    unique = job.unique
    key: tuple[object, ...] = (None, None, None, None)
    if unique is not None:
        key = unique.period_seconds, unique.scope or job.task, unique.key, unique.until
    rest: list[object] = [
        job.retry, job.metadata, job.timeout_seconds, *key, job.keep_succeeded_seconds,
        job.keep_other_seconds,
    ]  # fmt: skip
    args = _escaped(job.args.decode())
    fields = "".join([f"\t{_field(value)}" for value in rest])
    return f"{id}\t{position}\t{created_at}{_middle(job)}{job.size_kb}\t{args}{fields}\n"


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
