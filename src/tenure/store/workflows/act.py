"""What operators do to workflows: cancel, pause, resume, replay; and the stop after a failure.

One such act at a time per workflow; settlements of its nodes go on meanwhile. Live jobs are locked
in id order, then their tickets are taken, as for a single job. A running node that adds others has
its own row locked while it does: whoever has locked all live jobs, and looked again until there was
no new one, has them all.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial

from tenure.errors import (
    InvalidInput,
    KeyTaken,
    StoreUnavailable,
    TenureError,
    WorkflowNotFound,
)
from tenure.rules.graph import OnFailure
from tenure.rules.job import State, When, check_reason, is_id
from tenure.store.gates.passing import put_in_line
from tenure.store.jobs.replay import ended_before, retake_key
from tenure.store.jobs.settle import add_events, finish, free_children
from tenure.store.rows import Ending, Happening, Ticket
from tenure.store.session import (
    Mode,
    Row,
    RowsLocked,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)
from tenure.store.workflows.end import STOPPED, end_workflows

PAGE = 1000
PAUSED = "the workflow is paused"
_NEEDS_SUCCESS = frozenset({When.ALL_SUCCEEDED, When.ANY_SUCCEEDED})

# Of a row of `workflow_row`, and of one of `lock_nodes`.
_ENDED, _PAUSED, _FINALISER = 6, 8, 10
_ID, _TOKEN, _DUE, _PARKED, _HELD, _GATE, _RULE, _BY_PAUSE = 0, 1, 5, 6, 7, 9, 11, 12


@transaction(Mode.WRITE)
async def cancel_workflow(
    tx: Tx, id: int, *, reason: str = "cancelled", now: datetime | None = None
) -> bool:
    """Cancel what has not started, and ask what runs to stop. Answers False when it had ended.

    The finaliser still runs, once all others have ended; if it alone is left, it is cancelled, too.
    """
    check_reason(reason)
    tx.at(now)
    flow = await _begin(tx, id)
    if flow[_ENDED] is not None:
        return False
    rows = await _lock_live(tx, id)
    others = [row for row in rows if row[_ID] != flow[_FINALISER]]
    await tx.fetch("cancel_workflow", id=id, reason=reason, asked=True)
    await _cancel(tx, flow, rows, others or rows, reason)
    return True


async def stop_workflow(tx: Tx, id: int, now: datetime | None) -> None:
    """A node has failed: cancel what needs successes, and has not started; ask what runs to stop.

    What runs whatever the ends, or after a failure, is a clean-up, and stays. Waits for no lock for
    long: workers settle and claim on the same connection, and `heal_workflows` comes back.
    """
    tx.at(now)
    await tx.wait_briefly()
    flow = await _begin(tx, id)
    if not flow[13]:
        return
    rows = await _lock_live(tx, id)
    await tx.fetch("cancel_workflow", id=id, reason=STOPPED, asked=False)
    await _cancel(tx, flow, rows, [row for row in rows if row[_RULE] in _NEEDS_SUCCESS], STOPPED)


async def heal_workflows(scope: Scope, *, now: datetime | None = None) -> int:
    """Do what a worker that died has left: stops after a failure. Answers how many.

    One whose rows are locked by somebody is passed over until the next time, and holds up no other.
    What another one raises is raised when all were tried.
    """
    for_all_tenants("heal_workflows", scope.tenant)

    async def look(tx: Tx) -> list[int]:
        tx.at(now)
        return [row[0] for row in await tx.fetch("stopping_workflows", most=PAGE)]

    healed, trouble = 0, None
    for id in await scope.transact(look, Mode.READ):
        try:
            await scope.transact(partial(stop_workflow, id=id, now=now))
            healed += 1
        except RowsLocked:
            continue
        except StoreUnavailable:  # all others would wait as long
            raise
        except TenureError as error:
            trouble = error
    if trouble is not None:
        raise trouble
    return healed


async def _cancel(tx: Tx, flow: Row, live: Sequence[Row], rows: Sequence[Row], reason: str) -> None:
    """Cancel these of the live jobs. What is left may have nobody who outlasts it any more."""
    taken = await _take_tickets(tx, rows)
    waits = {row[_ID]: row[_TOKEN] for row in rows if row[_ID] in taken or row[_PARKED] is not None}
    flagged = [row[_ID] for row in rows if row[_ID] not in waits]
    final = flow[_FINALISER]
    left = [row[_ID] for row in live if row[_ID] not in waits and row[_ID] != final]
    if left:
        parked = {row[_ID] for row in live if row[_PARKED] == "parents"} - waits.keys()
        await tx.fetch("add_ends", child=final if final in parked else -flow[0], ids=to_json(left))
    if flagged:
        await _ask_to_stop(tx, flagged, reason)
    endings = [
        Ending(id, token, State.CANCELLED, reason=reason) for id, token in sorted(waits.items())
    ]
    children: set[int] = set()
    for start in range(0, len(endings), PAGE):  # all of them before any child is looked at
        children.update((await finish(tx, endings[start : start + PAGE]))[1])
    await free_children(tx, sorted(children))
    await end_workflows(tx)


async def _ask_to_stop(tx: Tx, ids: Sequence[int], reason: str) -> None:
    flagged = await tx.fetch("flag_jobs", ids=to_json(ids), reason=reason)
    detail: dict[str, object] = {"reason": reason}
    await add_events(
        tx, [Happening(id, token, "cancel requested", None, detail) for id, token in flagged]
    )


async def before_waiting_node_ends(tx: Tx, id: int) -> None:
    """cancel: a node that waits, and is about to end, outlasts its parents no more.

    They are locked, so that none can end before the end of the workflow waits for it.
    """
    [(workflow, *_)] = await tx.fetch("node_of", id=id)
    [flow] = await tx.fetch("workflow_row", id=workflow, tenant=None)
    parents = to_json([row[0] for row in await tx.fetch("unfinished_parents", id=id)])
    live = [row[0] for row in await tx.fetch("lock_jobs", ids=parents)]
    if live:
        child = -workflow if flow[_FINALISER] == id else await end_of(tx, flow)
        await tx.fetch("add_ends", child=child, ids=to_json(live))


async def end_of(tx: Tx, flow: Row) -> int:
    """What waits for the last nodes: the finaliser, if there is one and it waits, or the end."""
    final, end = flow[_FINALISER], -int(flow[0])
    if final is None:
        return end
    return int(final) if await tx.fetch("lock_waiting", id=final) else end


@transaction(Mode.WRITE)
async def pause_workflow(
    tx: Tx, id: int, *, reason: str = PAUSED, now: datetime | None = None
) -> bool:
    """Hold all nodes that have not started, until `resume_workflow`. What runs goes on.

    Answers False when it was paused already, or has ended.
    """
    check_reason(reason)
    tx.at(now)
    flow = await _begin(tx, id)
    if flow[_ENDED] is not None or flow[_PAUSED] is not None:
        return tx.repeat and flow[_ENDED] is None
    await _hold(tx, [row for row in await _lock_live(tx, id) if not row[_HELD]], reason)
    await tx.fetch("pause_workflow", id=id, paused=True, reason=reason, stopped=STOPPED)
    return True


async def hold_nodes(tx: Tx, id: int, nodes: Collection[int]) -> None:
    """enqueue, replay: nodes that come into a paused workflow are held."""
    await _hold(tx, [row for row in await _lock_live(tx, id) if row[_ID] in nodes], PAUSED)


async def _hold(tx: Tx, rows: Sequence[Row], reason: str) -> None:
    taken = await _take_tickets(tx, rows)
    for start in range(0, len(rows), PAGE):
        ids = [row[_ID] for row in rows[start : start + PAGE]]
        part = [id for id in ids if id in taken]
        await tx.fetch("hold_nodes", ids=to_json(ids), taken=to_json(part), reason=reason)


@transaction(Mode.WRITE)
async def resume_workflow(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Let a paused workflow go on. What was held before the pause stays held.

    Answers False when it was not paused.
    """
    tx.at(now)
    flow = await _begin(tx, id)
    if flow[_PAUSED] is None:
        return tx.repeat
    rows = [row for row in await _lock_live(tx, id) if row[_BY_PAUSE]]
    for start in range(0, len(rows), PAGE):
        part = rows[start : start + PAGE]
        await tx.fetch("unhold_nodes", ids=to_json([row[_ID] for row in part]))
        tickets = [
            Ticket(row[_ID], row[_TOKEN], due_at=tx.time(tx.when_or_none(row[_DUE])),
                   reason="resumed")
            for row in part if row[_PARKED] == "held"
        ]  # fmt: skip
        if tickets:
            await put_in_line(tx, tickets)
    await tx.fetch("pause_workflow", id=id, paused=False, reason=None, stopped=STOPPED)
    return True


async def replay_node(tx: Tx, row: Row) -> bool:
    """replay: the node goes back in line, and its workflow is open again.

    What was skipped or cancelled below it waits once more, and so does the finaliser; after a stop,
    all that this has cancelled. Other nodes that have failed stay as they are. While the finaliser
    runs, this is refused: it may have told the world that all is over. It is replayed alone.
    """
    id = row[0]
    [(workflow, *_)] = await tx.fetch("node_of", id=id)
    flow = await _begin(tx, workflow)
    if flow[_FINALISER] not in (None, id):
        await _call_back(tx, flow[_FINALISER])
    rows = {each[0]: each for each in await _to_reopen(tx, flow, id)}
    if id not in rows:  # another replay was faster
        return False
    if flow[_ENDED] is not None:
        await _retake_workflow_key(tx, flow)
    for each in rows.values():
        await retake_key(tx, each)
    ids = to_json(sorted(rows))
    await tx.fetch("reopen_nodes", ids=ids)
    children = [child for (child,) in await tx.fetch("waiting_children", ids=ids)]
    await tx.fetch("reopen_ends", ids=ids, children=to_json(children))
    final = flow[_FINALISER]
    nodes = set(rows)
    if final in rows and final != id:
        nodes |= {each[_ID] for each in await _lock_live(tx, workflow)}
        await tx.fetch("add_ends", child=-workflow, ids=to_json([final]))
    end = -workflow if final == id else await end_of(tx, flow)
    await tx.fetch("add_ends", child=end, ids=to_json(sorted(nodes - {end})))
    await tx.fetch("lock_workflows", ids=to_json([workflow]))
    await tx.fetch("reopen_workflow", id=workflow)
    events = [ended_before(tx, each) for each in rows.values()]
    events += [Happening(each[0], each[1] + 1, "replayed", call=tx.call) for each in rows.values()]
    await add_events(tx, events)
    await put_in_line(tx, [Ticket(id, row[1] + 1, reason="replayed")])
    await free_children(tx, sorted(rows.keys() - {id}))
    if flow[_PAUSED] is not None:
        await hold_nodes(tx, workflow, set(rows))
    await end_workflows(tx)
    return True


async def _call_back(tx: Tx, final: int) -> None:
    """replay: a finaliser that stands in line waits again."""
    rows = await tx.fetch("lock_job", id=final, tenant=None)
    if not rows or rows[0][_PARKED] == "parents":
        return
    if rows[0][_PARKED] is None and not await _take_tickets(tx, rows):
        raise InvalidInput(
            f"job {final}, the finaliser of the workflow, is running; replay when it has ended"
        )
    await tx.fetch("wait_again", id=final)


async def _to_reopen(tx: Tx, flow: Row, id: int) -> list[Row]:
    """The rows of history that go back, locked."""
    if id == flow[_FINALISER]:
        return await tx.fetch("finished_nodes", ids=to_json([id]))
    seeds = {id}
    if flow[4] == OnFailure.STOP and flow[12]:
        stopped = await tx.fetch("nodes_in_state", id=flow[0], state=str(State.CANCELLED))
        seeds.update(row[0] for row in stopped)
    found = await tx.fetch("nodes_to_reopen", id=flow[0], ids=to_json(sorted(seeds)))
    ids = {row[0] for row in found}
    if flow[_FINALISER] is not None:
        ids.add(flow[_FINALISER])
    return await tx.fetch("finished_nodes", ids=to_json(sorted(ids)))


async def _retake_workflow_key(tx: Tx, flow: Row) -> None:
    if flow[2] is None:
        return
    for (holder,) in await tx.fetch("keyed_workflow", tenant=flow[3], name=flow[1], key=flow[2]):
        raise KeyTaken(
            f"workflow {holder} holds the key {flow[2]!r}; cancel it or wait for its end"
        )


async def _begin(tx: Tx, id: int) -> Row:
    """Nobody else acts on this workflow from here on."""
    if is_id(id):
        await tx.fetch("begin_work", id=id)
    rows = await tx.fetch("workflow_row", id=id, tenant=tx.tenant) if is_id(id) else []
    if not rows:
        raise WorkflowNotFound(f"there is no workflow {id}")
    return rows[0]


async def _lock_live(tx: Tx, id: int) -> list[Row]:
    """All live jobs of a workflow, locked. What was added meanwhile is found by looking again."""
    found: dict[int, Row] = {}
    more = True
    while more:
        more, after = False, 0
        while page := await tx.fetch("lock_nodes", id=id, after=after, most=PAGE):
            more = more or any(row[_ID] not in found for row in page)
            found.update((row[_ID], row) for row in page)
            after = page[-1][_ID]
    return [found[job] for job in sorted(found)]


async def _take_tickets(tx: Tx, rows: Sequence[Row]) -> set[int]:
    """Take the live tickets of these jobs, from `due` first and then, in later statements, from
    `ready` and from gates."""
    names = ("id", "token", "queue", "priority", "place", "due_at")
    tickets = [
        dict(zip(names, row, strict=False)) | {"gate": row[_GATE], "gate_key": row[_GATE + 1]}
        for row in rows if row[_PARKED] is None
    ]  # fmt: skip
    taken: set[int] = set()
    for statement, those in (
        ("take_due_tickets", [t for t in tickets if t["due_at"] is not None]),
        ("take_ready_tickets", [t for t in tickets if t["place"] is not None and not t["gate"]]),
        ("take_gated_tickets", [t for t in tickets if t["place"] is not None and t["gate"]]),
    ):
        for start in range(0, len(those), PAGE):
            part = [t for t in those[start : start + PAGE] if t["id"] not in taken]
            taken.update(row[0] for row in await tx.fetch(statement, rows=to_json(part)))
    return taken


# --- a part of `prune` ----------------------------------------------------------------------------


async def forget_workflows(
    scope: Scope, succeeded_before: datetime, other_before: datetime, *, now: datetime | None
) -> int:
    """Remove workflows that ended before these moments, with all of their jobs; answers how many
    jobs. In batches: one that is half gone goes on being due."""

    async def due(tx: Tx) -> list[int]:
        tx.at(now)
        rows = await tx.fetch(
            "due_workflows", succeeded_before=tx.time(succeeded_before),
            other_before=tx.time(other_before), most=PAGE,
        )  # fmt: skip
        return [row[0] for row in rows]

    async def some(tx: Tx, id: int) -> int:
        tx.at(now)
        await tx.fetch("begin_work", id=id)
        gone = [row[0] for row in await tx.fetch("prune_nodes", id=id, most=PAGE)]
        if gone:
            await tx.fetch("forget_jobs", ids=to_json(gone))
        else:
            await tx.fetch("drop_workflow", id=id)
        return len(gone)

    removed = 0
    while ids := await scope.transact(due, Mode.READ):
        for id in ids:
            while gone := await scope.transact(partial(some, id=id)):
                removed += gone
    return removed


async def oldest_workflow(tx: Tx, before: datetime) -> datetime:
    """The earlier of this moment and the beginning of the oldest workflow that is kept."""
    [(oldest,)] = await tx.fetch("oldest_workflow")
    return before if oldest is None else min(before, tx.when(oldest))
