"""The stop after a failed node.

The transaction that settles the node notes that its workflow is to be stopped. The next transaction
stops it. If the worker dies between the two, another worker does it: `heal_workflows`.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from tenure.errors import StoreError, StoreUnavailable, TenureError
from tenure.rules.job import State, When
from tenure.store.moves import add_events, finish, free_children
from tenure.store.rows import Ending, Happening
from tenure.store.session import (
    Mode,
    Operation,
    R,
    Row,
    RowsLocked,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
)
from tenure.store.workflows.end import STOPPED, end_workflows
from tenure.store.workflows.nodes import (
    FINALISER_,
    ID_,
    PAGE,
    PARKED_,
    RULE_,
    TOKEN_,
    begin_work,
    lock_live_nodes,
    take_node_tickets,
)

_NEEDS_SUCCESS = frozenset({When.ALL_SUCCEEDED, When.ANY_SUCCEEDED})


async def ending(scope: Scope, op: Operation[R], now: datetime | None) -> R:
    """Run what may end jobs, and all that follows for workflows."""
    stops: list[int] = []

    async def run(tx: Tx) -> R:
        answer = await op(tx)
        stops[:] = await end_workflows(tx)
        return answer

    answer = await scope.transact(run)
    if stops:
        for id in stops:
            with suppress(StoreError):  # `heal_workflows` does it later
                await scope.transact(partial(stop_workflow, id=id, now=now))
    return answer


async def stop_workflow(tx: Tx, id: int, now: datetime | None) -> None:
    """A node has failed: cancel what needs successes, and has not started; ask what runs to stop.

    What runs whatever the ends, or after a failure, is a clean-up, and stays. Waits for no lock for
    long: workers settle and claim on the same connection, and `heal_workflows` comes back.
    """
    tx.at(now)
    await tx.wait_briefly()
    flow = await begin_work(tx, id)
    if not flow[13]:
        return
    rows = await lock_live_nodes(tx, id)
    await tx.fetch("cancel_workflow", id=id, reason=STOPPED, asked=False)
    await cancel_nodes(
        tx, flow, rows, [row for row in rows if row[RULE_] in _NEEDS_SUCCESS], STOPPED
    )


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


async def cancel_nodes(
    tx: Tx, flow: Row, live: Sequence[Row], rows: Sequence[Row], reason: str
) -> None:
    """Cancel these of the live jobs. What is left may have nobody who outlasts it any more."""
    taken = await take_node_tickets(tx, rows)
    waits = {row[ID_]: row[TOKEN_] for row in rows if row[ID_] in taken or row[PARKED_] is not None}
    flagged = [row[ID_] for row in rows if row[ID_] not in waits]
    final = flow[FINALISER_]
    left = [row[ID_] for row in live if row[ID_] not in waits and row[ID_] != final]
    if left:
        parked = {row[ID_] for row in live if row[PARKED_] == "parents"} - waits.keys()
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
