"""Jobs that are stored before they are enqueued: those of schedules and of failure hooks.

A template is a `NewJob` as JSON, without its tenant. What a hook receives is filled in when a job
fails.
"""

from datetime import datetime

import msgspec

from tenure.rules.job import Json, NewJob, Unique
from tenure.store.session import to_json


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NewJob without its tenant, which is that of the schedule or of the failed job."""

    task: str
    args: msgspec.Raw
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    unique: Unique | None = None
    retry: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    gate: str | None = None
    gate_key: str | None = None
    needs: int = 0
    at_most_once: bool = False
    keep_succeeded_seconds: float | None = None
    keep_other_seconds: float | None = None
    start_within_seconds: float | None = None
    finish_within_seconds: float | None = None

    def job(
        self, tenant: str, *, args: Json, metadata: Json | None, due_at: datetime | None = None
    ) -> NewJob:
        """The job to be enqueued."""
        return NewJob(
            task=self.task, args=args, queue=self.queue, priority=self.priority, due_at=due_at,
            tenant=tenant, unique=self.unique, max_attempts=self.max_attempts,
            timeout_seconds=self.timeout_seconds,
            retry=Json(bytes(self.retry)) if isinstance(self.retry, msgspec.Raw) else None,
            metadata=metadata, gate=self.gate, gate_key=self.gate_key, needs=self.needs,
            at_most_once=self.at_most_once, keep_succeeded_seconds=self.keep_succeeded_seconds,
            keep_other_seconds=self.keep_other_seconds,
            start_within_seconds=self.start_within_seconds,
            finish_within_seconds=self.finish_within_seconds,
        )  # fmt: skip


read_template = msgspec.json.Decoder(Template).decode


def dump(job: NewJob) -> str:
    """What is stored of a job."""
    return to_json(
        Template(
            job.task, msgspec.Raw(job.args), job.queue, job.priority, job.max_attempts,
            job.timeout_seconds, job.unique, _raw(job.retry), _raw(job.metadata), job.gate,
            job.gate_key, job.needs, job.at_most_once, job.keep_succeeded_seconds,
            job.keep_other_seconds, job.start_within_seconds, job.finish_within_seconds,
        )
    )  # fmt: skip


def _raw(data: Json | None) -> msgspec.Raw | msgspec.UnsetType:
    return msgspec.UNSET if data is None else msgspec.Raw(data)


# --- failure hooks --------------------------------------------------------------------------------


class _Failed(msgspec.Struct):
    """What is read here of the record that a hook receives."""

    id: int
    token: int
    task: str
    tenant: str
    metadata: dict[str, msgspec.Raw] | None = None


class _Calls(msgspec.Struct):
    """The column `calls` of `EndedJob`: hooks as (parameter, template), and the failed job."""

    hooks: list[tuple[str, Template]]
    failed: msgspec.Raw


TRACE = "trace"
"""The key of the metadata that jobs inherit from the job that has caused them."""

_read_calls = msgspec.json.Decoder(_Calls).decode
_read_failed = msgspec.json.Decoder(_Failed).decode


def jobs_of_hooks(calls: str) -> list[NewJob]:
    """The jobs that this failure enqueues, one for each hook. Their metadata names the failed job,
    and they inherit its trace.

    A hook may be declared for one task and for all tasks: it is called once.
    """
    read = _read_calls(calls)
    failed = _read_failed(read.failed)
    origin: dict[str, object] = {
        "failed_job": {"id": failed.id, "token": failed.token, "task": failed.task}
    }
    if failed.metadata is not None and TRACE in failed.metadata:
        origin[TRACE] = failed.metadata[TRACE]
    metadata = Json(to_json(origin).encode())
    by_task = {template.task: (parameter, template) for parameter, template in read.hooks}
    return [
        template.job(
            failed.tenant, args=Json(to_json({parameter: read.failed}).encode()), metadata=metadata
        )
        for _, (parameter, template) in sorted(by_task.items())
    ]
