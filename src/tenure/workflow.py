"""Workflows: build, enqueue and follow them.

    flow   = app.workflow("ingest", key=doc_id)
    pages  = flow.add(split.call(doc_id))
    embeds = [flow.add(embed.call(doc_id, n), after=[pages]) for n in range(100)]
    flow.add(index.call(doc_id), after=embeds)
    run = flow.enqueue()
    run.wait()

`enqueue` writes the whole workflow in one transaction. A running job adds nodes to its own workflow
in the same way, with `job.workflow`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)

from tenure.drawing import draw
from tenure.errors import InvalidWorkflow, WorkflowFailed
from tenure.handle import Handle
from tenure.rules.graph import (
    GrowingNode,
    NewNode,
    NewWorkflow,
    NodeSeen,
    OnFailure,
    Outcome,
    WorkflowAdded,
    WorkflowSeen,
    in_order,
)
from tenure.rules.job import NewJob, When
from tenure.rules.limits import Timeout, check_name, seconds_of
from tenure.store import AsyncStore, Store
from tenure.store.api import Operation, Runner, both, run_on
from tenure.store.jobs.replay import replay as replay_job
from tenure.store.session import drive
from tenure.store.workflows import act
from tenure.store.workflows import look as workflow_look
from tenure.tasks import Call, Task
from tenure.waiting import Rests, wait_until

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Rule = When | Literal["all_succeeded", "all_finished", "any_succeeded", "any_failed"]

RESTS = Rests(first_seconds=0.005, longest_seconds=0.5)
MAX_BASE_LENGTH = 150


class App(Protocol):
    """The part of an application that a workflow uses."""

    @property
    def store(self) -> Store:
        """For callers in threads."""

    @property
    def async_store(self) -> AsyncStore:
        """For callers on the running event loop."""

    def _add_workflow(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """Enqueue it."""

    async def _add_workflow_async(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """Enqueue it."""

    def handle(self, task: Task[..., R], id: int) -> Handle[R]:
        """The handle of a job."""


class Node(Generic[R_co]):
    """One job of a workflow that is being built. `add` returns it; `after` and `before` take it."""

    __slots__ = ("_home", "name", "task")

    def __init__(self, name: str, task: Task[..., R_co], home: object) -> None:
        self.name = name
        self.task = task
        self._home = home

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


class _Draft(NamedTuple):
    """A node as it was given to `add`."""

    name: str
    job: NewJob
    after: tuple[str, ...]
    before: tuple[str, ...]
    when: When


class _Builder:
    """Collects nodes, and names each node that was added without a name."""

    def __init__(self, prefix: str = "") -> None:
        self._drafts: dict[str, _Draft] = {}
        self._counts: dict[str, int] = {}
        self._prefix = prefix

    def add(
        self,
        call: Call[R],
        *,
        after: "Iterable[Node[Any] | str]" = (),
        before: "Iterable[Node[Any] | str]" = (),
        when: Rule = When.ALL_SUCCEEDED,
        name: str | None = None,
    ) -> Node[R]:
        """Add a job that runs after the nodes in `after` and before the nodes in `before`.

        `when` says which outcomes of its parents let it run. Without `name` it is named after its
        task, with a number from the second one on.
        """
        if not isinstance(call, Call):
            raise InvalidWorkflow(f"add takes a call such as task.call(...), not {call!r:.60}")
        if name is None:
            name = self._new_name(call.task.name)
        check_name("node", name)
        if name in self._drafts:
            raise InvalidWorkflow(f"two nodes are named {name}; give each its own name=")
        try:
            rule = When(when)
        except ValueError:
            known = ", ".join(When)
            raise InvalidWorkflow(f"when takes one of {known}, not {when!r:.60}") from None
        draft = _Draft(name, call.job, self._names("after", after), self._names("before", before),
                       rule)  # fmt: skip
        self._drafts[name] = draft
        return Node(name, call.task, self)

    def _new_name(self, task: str) -> str:
        base = self._prefix + task.rsplit(".", 1)[-1][:MAX_BASE_LENGTH]
        while True:
            count = self._counts[base] = self._counts.get(base, 0) + 1
            name = base if count == 1 else f"{base}-{count}"
            if name not in self._drafts:
                return name

    def _names(self, what: str, given: "Iterable[Node[Any] | str]") -> tuple[str, ...]:
        if isinstance(given, Node | str) or not isinstance(given, Iterable):
            raise InvalidWorkflow(f"{what} takes a list of nodes: write {what}=[{given!r:.60}]")
        names = []
        for each in given:
            if isinstance(each, Node):
                if each._home is not self:
                    raise InvalidWorkflow(f"node {each.name} belongs to another workflow")
                names.append(each.name)
            elif isinstance(each, str):
                names.append(each)
            else:
                raise InvalidWorkflow(f"{what} takes nodes or their names, not {each!r:.60}")
        return tuple(dict.fromkeys(names))


class Workflow(_Builder):
    """A workflow that is being built."""

    def __init__(
        self,
        app: App,
        name: str,
        *,
        key: str | None = None,
        on_failure: OnFailure | Literal["finish", "stop"] = OnFailure.FINISH,
        finaliser: Call[Any] | None = None,
        tenant: str | None = None,
    ) -> None:
        super().__init__()
        check_name("workflow", name)
        try:
            self._on_failure = OnFailure(on_failure)
        except ValueError:
            raise InvalidWorkflow(
                f'on_failure takes "finish" or "stop", not {on_failure!r:.60}'
            ) from None
        self._app = app
        self._name = name
        self._key = key
        self._tenant = tenant
        self._finaliser: NewNode | None = None
        if finaliser is not None:
            node = self.add(finaliser)
            self._finaliser = NewNode(name=node.name, job=finaliser.job)

    def __repr__(self) -> str:
        return f"<Workflow {self._name} of {len(self._drafts)} nodes>"

    def enqueue(self, *, on: object | None = None) -> "WorkflowRun":
        """Enqueue the whole workflow in one transaction, or in the caller's own.

        Raises `InvalidWorkflow`, before it writes anything, if nodes wait for each other in a
        circle, or for a node that does not exist.
        """
        return WorkflowRun(self._app, self._app._add_workflow(self._new(), on))

    async def enqueue_async(self, *, on: object | None = None) -> "WorkflowRun":
        """Enqueue the whole workflow in one transaction, or in the caller's own.

        Raises `InvalidWorkflow`, before it writes anything, if nodes wait for each other in a
        circle, or for a node that does not exist.
        """
        return WorkflowRun(self._app, await self._app._add_workflow_async(self._new(), on))

    def _new(self) -> NewWorkflow:
        final = None if self._finaliser is None else self._finaliser.name
        drafts = [draft for name, draft in self._drafts.items() if name != final]
        names = [draft.name for draft in drafts]
        spots = {name: n for n, name in enumerate(names)}
        parents = [[_found(spots, name, draft) for name in draft.after] for draft in drafts]
        for n, draft in enumerate(drafts):
            for name in draft.before:
                parents[_found(spots, name, draft)].append(n)
        order = in_order(names, parents)
        moved = {n: place for place, n in enumerate(order)}
        nodes = tuple(
            NewNode(
                name=drafts[n].name, job=drafts[n].job, when=drafts[n].when,
                after=tuple(moved[parent] for parent in dict.fromkeys(parents[n])),
            )
            for n in order
        )  # fmt: skip
        return NewWorkflow(
            name=self._name, key=self._key, tenant=self._whose(nodes), nodes=nodes,
            on_failure=self._on_failure, finaliser=self._finaliser,
        )  # fmt: skip

    def _whose(self, nodes: Sequence[NewNode]) -> str:
        """The given tenant, or else the tenant of the calls, if they have one."""
        if self._tenant is not None:
            return self._tenant
        return max((node.job.tenant for node in nodes), default="")


def _found(spots: dict[str, int], name: str, draft: _Draft) -> int:
    if name not in spots:
        raise InvalidWorkflow(
            f"node {draft.name} names {name}, but this workflow has no node of that name"
        )
    return spots[name]


class Growth(_Builder):
    """Adds nodes to the workflow of a running job: call `add` for each, then `enqueue`.

    `after` and `before` may name nodes that exist already. Nodes in `before` must not have started.
    Each attempt of a job gives the same names in the same order, so a node that an earlier attempt
    has added is not added again.
    """

    def __init__(
        self,
        job_id: int,
        grow: Callable[[Sequence[GrowingNode]], list[int]],
        grow_async: Callable[[Sequence[GrowingNode]], Awaitable[list[int]]],
    ) -> None:
        super().__init__(f"{job_id}:")
        self._grow = grow
        self._grow_async = grow_async

    def enqueue(self) -> list[int]:
        """Add the nodes in one transaction. Returns the ids of their jobs.

        Raises `LeaseLost` if the lease is lost, and `Cancel` if an operator has asked this job to
        stop; then nothing is added.
        """
        return self._grow(self._new())

    async def enqueue_async(self) -> list[int]:
        """Add the nodes in one transaction. Returns the ids of their jobs.

        Raises `LeaseLost` if the lease is lost, and `Cancel` if an operator has asked this job to
        stop; then nothing is added.
        """
        return await self._grow_async(self._new())

    def _new(self) -> list[GrowingNode]:
        drafts = list(self._drafts.values())
        names = [draft.name for draft in drafts]
        spots = {name: n for n, name in enumerate(names)}
        parents = [[spots[name] for name in draft.after if name in spots] for draft in drafts]
        for n, draft in enumerate(drafts):
            for name in draft.before:
                if name in spots:
                    parents[spots[name]].append(n)
        order = in_order(names, parents)
        moved = {n: place for place, n in enumerate(order)}
        return [
            GrowingNode(
                name=drafts[n].name, job=drafts[n].job, when=drafts[n].when,
                after=tuple(moved[parent] for parent in dict.fromkeys(parents[n])),
                after_names=tuple(name for name in drafts[n].after if name not in spots),
                before_names=tuple(name for name in drafts[n].before if name not in spots),
            )
            for n in order
        ]  # fmt: skip


# --- an enqueued workflow -------------------------------------------------------------------------


class _At(NamedTuple):
    """A workflow, and the store that has it."""

    runner: Runner
    id: int

    async def run(
        self,
        operation: Operation[Concatenate[int, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run an operation whose first argument is the id of the workflow."""
        return await run_on(self.runner, operation, self.id, *args, **kwargs)


async def _status(at: _At) -> WorkflowSeen:
    """The workflow, and how many of its nodes are in each state."""
    return await at.run(workflow_look.get_workflow)


async def _wait(at: _At, *, timeout_seconds: Timeout = None) -> WorkflowSeen:
    """The workflow, once it has succeeded. Raises `WorkflowFailed` or `WaitTimeout`."""
    if timeout_seconds is not None:
        timeout_seconds = seconds_of(timeout_seconds)

    async def late() -> str:
        seen = await _status(at)
        return (
            f"workflow {at.id} is not finished after {timeout_seconds:g} s: {seen.state}, "
            f"{seen.finished} of {seen.total} nodes have finished"
        )

    await wait_until(
        at.runner, lambda: at.run(workflow_look.has_ended), bool,
        rests=RESTS, timeout_seconds=timeout_seconds, late=late,
    )  # fmt: skip
    seen = await _status(at)
    if seen.outcome is not None and seen.outcome is not Outcome.SUCCEEDED:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(seen.counts.items()))
        raise WorkflowFailed(
            f"workflow {at.id} of {seen.name} {seen.outcome}: {counts}", outcome=str(seen.outcome)
        )
    return seen


async def _nodes(at: _At) -> list[NodeSeen]:
    """All nodes with their states and parents, in the order of their ids."""
    nodes: list[NodeSeen] = []
    after: int | None = 0
    while after is not None:
        page = await at.run(workflow_look.list_nodes, after=after)
        nodes += page.nodes
        after = page.next
    return nodes


async def _draw(at: _At) -> str:
    """The workflow as text."""
    return draw(await _status(at), await _nodes(at))


async def _cancel(at: _At, *, reason: str = "cancelled") -> bool:
    """Cancel all jobs that have not started, and ask running jobs to stop.

    Returns False if the workflow had already finished. The finaliser still runs; to cancel it too,
    cancel again when only the finaliser is left.
    """
    return await at.run(act.cancel_workflow, reason=reason)


async def _pause(at: _At, *, reason: str = act.PAUSED) -> bool:
    """Hold all nodes that have not started, until `resume`.

    Returns False if the workflow was already paused or has finished.
    """
    return await at.run(act.pause_workflow, reason=reason)


async def _resume(at: _At) -> bool:
    """Continue a paused workflow. Returns False if it was not paused."""
    return await at.run(act.resume_workflow)


async def _replay(at: _At, node: "Node[Any] | str") -> bool:
    """Run a finished node again, with the nodes below it that were skipped or cancelled.

    Returns False if the node is not finished. The workflow is open again, and its finaliser will
    run once more.
    """
    return await run_on(at.runner, replay_job, await _job_id(at, node))


async def _job_id(at: _At, node: "Node[Any] | str") -> int:
    """The id of the job of this node."""
    name = node.name if isinstance(node, Node) else node
    return await at.run(workflow_look.node_named, name)


class WorkflowRun:
    """An enqueued workflow. `created` is False when this workflow already held the key."""

    __slots__ = ("_app", "created", "id")

    def __init__(self, app: App, added: WorkflowAdded) -> None:
        self._app = app
        self.id = added.id
        self.created = added.created

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id}>"

    status, status_async = both(_status)
    wait, wait_async = both(_wait)
    nodes, nodes_async = both(_nodes)
    draw, draw_async = both(_draw)
    cancel, cancel_async = both(_cancel)
    pause, pause_async = both(_pause)
    resume, resume_async = both(_resume)
    replay, replay_async = both(_replay)
    job_id, job_id_async = both(_job_id)

    def _run(
        self,
        procedure: Callable[Concatenate[_At, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        return drive(procedure(_At(self._app.store, self.id), *args, **kwargs))

    async def _run_async(
        self,
        procedure: Callable[Concatenate[_At, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        return await procedure(_At(self._app.async_store, self.id), *args, **kwargs)

    def result(self, node: Node[R], *, timeout_seconds: Timeout = None) -> R:
        """The typed result of a node, once the node is finished. Raises `JobFailed`."""
        handle = self._app.handle(node.task, self.job_id(node))
        return handle.wait(timeout_seconds=timeout_seconds)

    async def result_async(self, node: Node[R], *, timeout_seconds: Timeout = None) -> R:
        """The typed result of a node, once the node is finished. Raises `JobFailed`."""
        handle = self._app.handle(node.task, await self.job_id_async(node))
        return await handle.wait_async(timeout_seconds=timeout_seconds)
