"""The recorder: writes down all operations, their tokens, and what the store returned.

    environment = RecordingEnvironment(folder)
    environment.record(app)                        # the application: its clients and handlers
    Worker(app, environment=environment).run()     # the worker

Each process writes a file of its own into the folder, one line of JSON per entry, each with one
write: a kill loses nothing that was written before. An operation has one entry when it is sent and
another when it returns, so a reader sees operations that never returned. Operations that only read
have none. A worker in another environment does not pay for this.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tenure.client import Client
from tenure.errors import OutcomeUnknown, TenureError
from tenure.rules.claim import Lease
from tenure.rules.graph import GrowingNode, NewWorkflow, WorkflowAdded
from tenure.rules.job import Beat, Enqueued, NewJob
from tenure.rules.lifecycle import HeldJob, Settlement
from tenure.rules.limits import JobId, id_of
from tenure.running import Running
from tenure.store import Answer, AsyncStore, Fired, Store, Swept
from tenure.store.api import Operation
from tenure.store.feed import hooks
from tenure.store.feed import readers as feed
from tenure.store.gates import limits
from tenure.store.jobs import bulk, named_keys, notes, operate, settle, steps, sweep
from tenure.store.jobs.claim import claim
from tenure.store.jobs.enqueue import enqueue
from tenure.store.jobs.expire import expire
from tenure.store.jobs.replay import replay as replay_job
from tenure.store.look import workers as presence
from tenure.store.proxy import AsyncStoreProxy, StoreProxy, StoreWrapper
from tenure.store.prune import prune as prune_store
from tenure.store.schedules import change as schedules
from tenure.store.schedules.fire import fire
from tenure.store.session import P, R
from tenure.store.workflows import act
from tenure.store.workflows.add import enqueue_workflow
from tenure.store.workflows.grow import grow_workflow
from tenure.store.workflows.stop import heal_workflows
from tenure.worker.environment import Environment


class Moment(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """When a line was written: by the clock that only grows, and by the wall clock; in seconds."""

    mono: float = 0.0
    wall: float = 0.0


class Begun(Moment, tag="begun"):
    """The first line of a file: which process writes it."""

    pid: int


class Key(msgspec.Struct, frozen=True, gc=False):
    """A unique key that a new job asks for."""

    tenant: str
    scope: str
    key: str
    until: str


class Sent(Moment, tag="sent"):
    """An operation is about to be sent. `n` finds its answer in the same file.

    `on`: in a transaction of the caller, so that its answer promises nothing yet. `jobs` are pairs
    of id and token; `outcomes` go with them.
    """

    n: int
    op: str
    worker: str | None = None
    on: bool = False
    jobs: list[tuple[int, int]] = []
    outcomes: list[str] = []
    leases: list[int] = []
    lease_seconds: float | None = None
    count: int = 0
    """How many jobs an enqueue asks for."""
    keys: list[Key | None] = []
    """The keys of these jobs, if any has one."""
    tenants: list[str] = []
    """The tenants of these jobs, if any has one."""
    later: list[int] = []
    """Which of these jobs, by their numbers from 0, are due at a later time."""


class Granted(msgspec.Struct, frozen=True, gc=False):
    """A lease that a claim returned; times are the database's."""

    id: int
    claimed_at: float
    expires_at: float
    jobs: list[tuple[int, int]]


class Answered(Moment, tag="answered"):
    """The store has returned. `answers` are in the order of the jobs that were sent."""

    n: int
    granted: list[Granted] = []
    enqueued: list[tuple[int, bool]] = []
    answers: list[str] = []
    lost: list[int] = []
    busy: list[int] = []
    said: str | None = None


class Refused(Moment, tag="refused"):
    """The operation raised. `unknown`: it may have been done nevertheless."""

    n: int
    error: str
    unknown: bool


class Started(Moment, tag="started"):
    """A handler starts."""

    id: int
    token: int
    worker: str
    tenant: str = ""


class Ended(Moment, tag="ended"):
    """A handler has ended; `error` is the type of what it raised."""

    id: int
    token: int
    worker: str
    error: str | None = None


Line: TypeAlias = Begun | Sent | Answered | Refused | Started | Ended

_encode = msgspec.json.Encoder().encode


class Log:
    """The file of one process. A fork writes into another one."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self._folder = folder
        self._environment = environment
        self._numbers = itertools.count(1)
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        path = self._folder / f"{self._pid}-{secrets.token_hex(4)}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write(Begun(pid=self._pid))

    def write(self, line: Line) -> None:
        """Write one line, with the time, at once."""
        if os.getpid() != self._pid:
            self._open()
        line.mono = self._environment.monotonic()
        line.wall = self._environment.now().timestamp()
        os.write(self._file, _encode(line) + b"\n")

    def sent(
        self, op: "Op", args: tuple[Any, ...], kwargs: Mapping[str, Any], tenant: str | None
    ) -> int:
        """An operation is about to be sent. Returns the number of its entries."""
        line = op.sent(*args, **kwargs)
        line.n, line.op = next(self._numbers), op.name
        line.on = kwargs.get("on") is not None
        if tenant is not None:
            _set_tenant(line, tenant)
        self.write(line)
        return line.n

    def answered(self, n: int, op: "Op", answer: Any) -> None:
        """The store has returned."""
        line = op.answered(answer)
        line.n = n
        self.write(line)

    def refused(self, n: int, error: BaseException) -> None:
        """The operation raised."""
        unknown = not isinstance(error, TenureError) or isinstance(error, OutcomeUnknown)
        self.write(Refused(n=n, error=type(error).__name__, unknown=unknown))

    @contextmanager
    def around(self, job: Running) -> Iterator[None]:
        """Writes down when a handler runs."""
        self.write(Started(id=job.id, token=job.token, worker=job.worker, tenant=job.tenant))
        error: str | None = None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.write(Ended(id=job.id, token=job.token, worker=job.worker, error=error))


class RecordingStore(StoreProxy):
    """A store that writes down what passes through it."""

    def __init__(
        self, store: Store, watcher: StoreWrapper, log: Log, tenant: str | None = None
    ) -> None:
        super().__init__(store, watcher)
        self._log = log
        self._tenant = tenant

    def for_tenant(self, tenant: str) -> Store:
        scoped = self._store.for_tenant(tenant)
        return RecordingStore(scoped, self._wrapper, self._log, tenant)

    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        op = OPS.get(operation)
        if op is None:
            return self._store.run(operation, *args, **kwargs)
        n = self._log.sent(op, args, kwargs, self._tenant)
        try:
            answer = self._store.run(operation, *args, **kwargs)
        except BaseException as error:
            self._log.refused(n, error)
            raise
        self._log.answered(n, op, answer)
        return answer


class RecordingAsyncStore(AsyncStoreProxy):
    """The same for async stores."""

    def __init__(
        self, store: AsyncStore, watcher: StoreWrapper, log: Log, tenant: str | None = None
    ) -> None:
        super().__init__(store, watcher)
        self._log = log
        self._tenant = tenant

    def for_tenant(self, tenant: str) -> AsyncStore:
        scoped = self._store.for_tenant(tenant)
        return RecordingAsyncStore(scoped, self._wrapper, self._log, tenant)

    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        op = OPS.get(operation)
        if op is None:
            return await self._store.run(operation, *args, **kwargs)
        n = self._log.sent(op, args, kwargs, self._tenant)
        try:
            answer = await self._store.run(operation, *args, **kwargs)
        except BaseException as error:
            self._log.refused(n, error)
            raise
        self._log.answered(n, op, answer)
        return answer


class RecordingEnvironment(Environment):
    """The real environment; records all operations in files in this folder."""

    def __init__(self, folder: str | Path) -> None:
        self._log = Log(Path(folder), self)

    def record(self, app: Client) -> None:
        """Record what this application's clients and handlers do, too; before its first use."""
        app.wrapper = self
        app.hooks.arounds.append(self._log.around)

    def wrap(self, store: Store) -> Store:
        if isinstance(store, RecordingStore):
            return store
        return RecordingStore(store, self, self._log)

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        if isinstance(store, RecordingAsyncStore):
            return store
        return RecordingAsyncStore(store, self, self._log)


# --- what is worth knowing of each operation ------------------------------------------------------


class Op(msgspec.Struct, frozen=True):
    """How an operation is written down: what is sent, given its arguments, and its answer."""

    name: str
    sent: Callable[..., Sent]
    answered: Callable[[Any], Answered]


def _sent(**facts: Any) -> Sent:
    return Sent(n=0, op="", **facts)


def _enqueue(jobs: Sequence[NewJob], **_: object) -> Sent:
    keys, tenants = [_key(job) for job in jobs], [job.tenant for job in jobs]
    return _sent(
        count=len(jobs), keys=keys if any(keys) else [], tenants=tenants if any(tenants) else [],
        later=[n for n, job in enumerate(jobs) if job.delay_seconds or job.due_at is not None],
    )  # fmt: skip


def _set_tenant(sent: Sent, tenant: str) -> None:
    """Whatever its jobs say, they are this tenant's."""
    sent.tenants = [tenant] * sent.count
    sent.keys = [key and msgspec.structs.replace(key, tenant=tenant) for key in sent.keys]


def _key(job: NewJob) -> Key | None:
    unique = job.unique
    if unique is None:
        return None
    return Key(job.tenant, unique.scope or job.task, unique.key, unique.until)


def _enqueued(answers: Sequence[Enqueued]) -> Answered:
    return Answered(n=0, enqueued=[(answer.id, answer.created) for answer in answers])


def _enqueue_workflow(workflow: NewWorkflow, **_: object) -> Sent:
    nodes = [*workflow.nodes, *([workflow.finaliser] if workflow.finaliser else [])]
    sent = _enqueue([node.job for node in nodes])
    if workflow.tenant:
        _set_tenant(sent, workflow.tenant)
    return sent


def _added(added: WorkflowAdded) -> Answered:
    ids = [*added.nodes, *([] if added.finaliser is None else [added.finaliser])]
    return Answered(n=0, enqueued=[(id, True) for id in ids])


def _grow(worker: str, job: HeldJob, nodes: Sequence[GrowingNode], **_: object) -> Sent:
    sent = _enqueue([node.job for node in nodes])
    sent.worker, sent.jobs = worker, [(job.id, job.token)]
    return sent


def _grown(ids: Sequence[int] | None) -> Answered:
    answer = "refused" if ids is None else "landed"
    return Answered(n=0, enqueued=[(id, True) for id in ids or ()], answers=[answer])


def _claim(worker: str, queues: object, *, lease_seconds: float = 30.0, **_: object) -> Sent:  # noqa: ARG001
    return _sent(worker=worker, lease_seconds=lease_seconds)


def _claimed(leases: Sequence[Lease]) -> Answered:
    return Answered(
        n=0,
        granted=[
            Granted(
                lease.id, lease.claimed_at.timestamp(), lease.expires_at.timestamp(),
                [(job.id, job.token) for job in lease.jobs],
            )
            for lease in leases
        ],
    )  # fmt: skip


def _settle(
    worker: str,
    settlements: Sequence[Settlement],
    *,
    done_leases: Sequence[int] | None = None,
    **_: object,
) -> Sent:
    return _sent(
        worker=worker, jobs=[(s.id, s.token) for s in settlements],
        outcomes=[str(s.outcome) for s in settlements], leases=list(done_leases or ()),
    )  # fmt: skip


def _answers(answers: Sequence[Answer]) -> Answered:
    return Answered(n=0, answers=[_in_a_word(answer) for answer in answers])


def _in_a_word(answer: Answer) -> str:
    if answer.landed:
        return "landed"
    return "busy" if answer.busy else "refused" if answer.error else "stale"


def _report(worker: str, reports: Sequence[tuple[HeldJob, Any, Any]], **_: object) -> Sent:
    return _sent(worker=worker, jobs=[(job.id, job.token) for job, _, _ in reports])


def _save(worker: str, job: HeldJob, what: object = None, **_: object) -> Sent:  # noqa: ARG001
    return _sent(worker=worker, jobs=[(job.id, job.token)])


def _annotate(worker: str, notes: Sequence[tuple[HeldJob, object]], **_: object) -> Sent:
    return _sent(worker=worker, jobs=[(job.id, job.token) for job, _ in notes])


def _saved(answer: Answer) -> Answered:
    return _answers([answer])


def _extend(
    worker: str, leases: Mapping[int, Sequence[int]], *, lease_seconds: float = 30.0, **_: object
) -> Sent:
    return _sent(worker=worker, leases=list(leases), lease_seconds=lease_seconds)


def _beat(beat: Beat) -> Answered:
    return Answered(n=0, lost=list(beat.lost), busy=list(beat.busy))


def _swept(swept: Swept) -> Answered:
    return Answered(n=0, said=f"{swept.requeued} queued, {swept.finished} finished")


def _triggered(id: int) -> Answered:
    return Answered(n=0, enqueued=[(id, True)])


def _fired(fired: Fired) -> Answered:
    return Answered(n=0, enqueued=[(id, True) for id in fired.jobs])


def _of_all(*_: object, **__: object) -> Sent:
    return _sent()


def _of_one(id: JobId, **_: object) -> Sent:
    return _sent(jobs=[(id_of(id), 0)])


def _of_many(ids: Iterable[JobId], **_: object) -> Sent:
    return _sent(jobs=[(id_of(id), 0) for id in ids])


def _changes(changes: bulk.Changes) -> Answered:
    return Answered(n=0, said=f"{len(changes.changed)} changed")


def _of_worker(worker: str, **_: object) -> Sent:
    return _sent(worker=worker)


def _done(_: object) -> Answered:
    return Answered(n=0)


def _said(answer: object) -> Answered:
    return Answered(n=0, said=None if answer is None else str(answer))


OPS: dict[Callable[..., Any], Op] = {
    call: Op(call.__name__, sent, answered)
    for call, sent, answered in (
        (enqueue, _enqueue, _enqueued),
        (enqueue_workflow, _enqueue_workflow, _added),
        (grow_workflow, _grow, _grown),
        (act.cancel_workflow, _of_all, _said),
        (act.pause_workflow, _of_all, _said),
        (act.resume_workflow, _of_all, _said),
        (heal_workflows, _of_all, _said),
        (claim, _claim, _claimed),
        (settle.settle, _settle, _answers),
        (notes.report_progress, _report, _answers),
        (notes.save_checkpoint, _save, _saved),
        (notes.annotate, _annotate, _answers),
        (notes.start_once, _save, _saved),
        (steps.record_step, _save, _saved),
        (sweep.extend, _extend, _beat),
        (sweep.promote, _of_all, _said),
        (sweep.sweep, _of_all, _swept),
        (expire, _of_all, _said),
        (fire, _of_all, _fired),
        (schedules.declare_schedules, _of_all, _done),
        (schedules.add_schedule, _of_all, _done),
        (schedules.edit_schedule, _of_all, _done),
        (schedules.pause_schedule, _of_all, _done),
        (schedules.resume_schedule, _of_all, _done),
        (schedules.remove_schedule, _of_all, _done),
        (schedules.trigger_schedule, _of_all, _triggered),
        (limits.declare_gates, _of_all, _done),
        (limits.set_gate, _of_all, _done),
        (limits.reset_gate, _of_all, _done),
        (operate.cancel, _of_one, _said),
        (operate.hold, _of_one, _said),
        (operate.unhold, _of_one, _said),
        (operate.move, _of_one, _said),
        (replay_job, _of_one, _said),
        (operate.delete, _of_one, _said),
        (named_keys.free_key, _of_all, _said),
        (bulk.cancel_many, _of_many, _changes),
        (bulk.hold_many, _of_many, _changes),
        (bulk.unhold_many, _of_many, _changes),
        (bulk.move_many, _of_many, _changes),
        (bulk.replay_many, _of_many, _changes),
        (bulk.delete_many, _of_many, _changes),
        (prune_store, _of_all, _said),
        (feed.add_reader, _of_all, _said),
        (feed.read_feed, _of_all, _done),
        (feed.move_reader, _of_all, _done),
        (feed.remove_reader, _of_all, _said),
        (hooks.declare_hooks, _of_all, _said),
        (hooks.remove_hook, _of_all, _said),
        (presence.retire, _of_worker, _said),
    )
}
"""Everything that writes, except announcements, pauses and migrations."""
