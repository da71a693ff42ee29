"""The stop after a failed node.

The transaction that settles the node notes that its workflow is to be stopped. The next transaction
stops it. If the worker dies between the two, another worker does it: `heal_workflows`.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from tenure.errors import RowsLocked, StoreError, StoreUnavailable, TenureError
from tenure.rules.job import State, When
from tenure.store.moves import add_events, finish, free_children
from tenure.store.records import JobToken
from tenure.store.rows import Finish, NewEvent
from tenure.store.session import (
    Mode,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
)
from tenure.store.workflows.end import STOPPED, end_workflows
from tenure.store.workflows.nodes import (
    PAGE,
    begin_work,
    lock_live_nodes,
    take_node_tickets,
)
from tenure.store.workflows.records import LockedNode, WorkflowRow

_NEEDS_SUCCESS = frozenset({When.ALL_SUCCEEDED, When.ANY_SUCCEEDED})


async def stop_workflows(scope: Scope, ids: Sequence[int], now: datetime | None) -> None:
    """Stop these workflows, each in a transaction of its own."""
    for id in ids:
        with suppress(StoreError):  # `heal_workflows` does it later
            await scope.transact(partial(stop_workflow, id=id, now=now))


async def stop_workflow(tx: Tx, id: int, now: datetime | None) -> None:
    """A node has failed: cancel nodes that need success and have not started; stop running ones.

    Nodes that run after any end, or after a failure, are for clean-up and stay. Waits for no lock
    for long, because workers settle and claim on the same connection: `heal_workflows` does the
    rest.
    """
    tx.at(now)
    await tx.wait_briefly()
    workflow = await begin_work(tx, id)
    if not workflow.stopping:
        return
    nodes = await lock_live_nodes(tx, id)
    await tx.fetch("cancel_workflow", id=id, reason=STOPPED, asked=False)
    needy = [node for node in nodes if node.rule in _NEEDS_SUCCESS]
    await cancel_nodes(tx, workflow, nodes, needy, STOPPED)


async def heal_workflows(scope: Scope, *, now: datetime | None = None) -> int:
    """Stop failed workflows that a dead worker has left unstopped. Returns how many.

    If another transaction has locked rows of a workflow, it is skipped until the next call and
    delays no other. An error of one workflow is raised after all were tried.
    """
    for_all_tenants("heal_workflows", scope.tenant)

    async def look(tx: Tx) -> list[int]:
        tx.at(now)
        return await tx.fetch_column("stopping_workflows", most=PAGE)

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


async def cancel_nodes(
    tx: Tx,
    workflow: WorkflowRow,
    live: Sequence[LockedNode],
    nodes: Sequence[LockedNode],
    reason: str,
) -> None:
    """Cancel these of the live nodes. The end of the workflow waits for the nodes that are left."""
    taken = await take_node_tickets(tx, nodes)
    waits = {node.id: node.token for node in nodes if node.id in taken or node.parked is not None}
    running = [node.id for node in nodes if node.id not in waits]
    final = workflow.finaliser_id
    left = [node.id for node in live if node.id not in waits and node.id != final]
    if left:
        parked = {node.id for node in live if node.parked == "parents"} - waits.keys()
        end = final if final in parked else -workflow.id
        await tx.fetch("add_ends", child=end, ids=to_json(left))
    if running:
        await _ask_to_stop(tx, running, reason)
    finishes = [
        Finish(id, token, State.CANCELLED, reason=reason) for id, token in sorted(waits.items())
    ]
    children: set[int] = set()
    for start in range(0, len(finishes), PAGE):  # all of them before any child is looked at
        _, told = await finish(tx, finishes[start : start + PAGE])
        children.update(told)
    await free_children(tx, sorted(children))
    await end_workflows(tx)


async def _ask_to_stop(tx: Tx, ids: Sequence[int], reason: str) -> None:
    asked = await tx.fetch_as(JobToken, "request_cancels", ids=to_json(ids), reason=reason)
    await tx.cancels_requested([job.id for job in asked])
    detail: dict[str, object] = {"reason": reason}
    await add_events(
        tx, [NewEvent(id, token, "cancel requested", None, detail) for id, token in asked]
    )
