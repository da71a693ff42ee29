"""What running jobs tell of themselves: progress and notes. Checkpoints: see jobs/notes.py.

One row of `note` per job. Only jobs with the feature NOTES have one. It stays until the job is
pruned or deleted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tenure.rules.codec import clean_text
from tenure.rules.job import Feature
from tenure.rules.lifecycle import HeldJob, Settlement
from tenure.rules.notes import NoteValue, merged
from tenure.store.moves import leased_rows
from tenure.store.records import JobNotes, LeasedJob
from tenure.store.session import Tx, to_json

MAX_MESSAGE = 1000

Pair = tuple[int, int]


class Told(NamedTuple):
    """What a job has told: its progress, its notes, or both."""

    id: int
    token: int
    progress: tuple[float | None, str | None] | None
    notes: Mapping[str, NoteValue] | None


async def hold_notes(
    tx: Tx, worker: str, jobs: Sequence[HeldJob] | Sequence[Settlement]
) -> set[Pair]:
    """Lock those of these jobs that the worker truly holds, and note that they have a row."""
    leased = await tx.fetch_as(LeasedJob, "lock_leased", rows=leased_rows(jobs), worker=worker)
    fresh = [job.id for job in leased if not job.features & Feature.NOTES]
    if fresh:
        await tx.fetch("mark_noted", ids=to_json(fresh))
    return {(job.id, job.token) for job in leased}


async def write_told(tx: Tx, told: Sequence[Told]) -> None:
    """Write what held jobs have told. Of several reports of one job the last one counts."""
    reports: dict[int, dict[str, object]] = {}
    notes: dict[int, dict[str, NoteValue]] = {}
    tokens = {each.id: each.token for each in told}
    for each in told:
        if each.progress is not None:
            fraction, message = each.progress
            message = None if message is None else clean_text(message, MAX_MESSAGE)
            reports[each.id] = {
                "id": each.id, "token": each.token, "fraction": fraction, "message": message
            }  # fmt: skip
        if each.notes is not None:
            older = {n: v for n, v in notes.get(each.id, {}).items() if n not in each.notes}
            notes[each.id] = {**older, **each.notes}
    if reports:
        await tx.fetch("report_progress", rows=to_json(list(reports.values())))
    if notes:
        before = await notes_of(tx, list(notes))
        rows = []
        for id, new in notes.items():
            now = merged(before.get(id), new)
            row: dict[str, object] = {"id": id, "token": tokens[id]}
            rows.append(row if now is None else row | {"notes": msgspec.Raw(now)})
        await tx.fetch("annotate", rows=to_json(rows))


async def write_unsent(tx: Tx, worker: str, settlements: Sequence[Settlement]) -> None:
    """settle: write what these attempts have told since the last heartbeat."""
    held = await hold_notes(tx, worker, settlements)
    await write_told(
        tx,
        [Told(s.id, s.token, s.progress, s.notes) for s in settlements if (s.id, s.token) in held],
    )


async def notes_of(tx: Tx, ids: Sequence[int]) -> dict[int, str]:
    """The stored notes of those of these jobs that have some."""
    return {row.id: row.notes for row in await tx.fetch_as(JobNotes, "notes_of", ids=to_json(ids))}


async def noted(tx: Tx, features: Mapping[int, int]) -> dict[int, msgspec.Raw]:
    """The notes of jobs whose attempts end, for their timelines. Takes the features of each."""
    having = [id for id, bits in features.items() if bits & Feature.NOTES]
    if not having:
        return {}
    return {id: msgspec.Raw(text.encode()) for id, text in (await notes_of(tx, having)).items()}
