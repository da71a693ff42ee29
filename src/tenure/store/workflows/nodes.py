"""The rows of a workflow and of its live nodes, locked: what every act on a workflow begins with.

One act at a time per workflow; settlements of its nodes go on meanwhile. Live jobs are locked in id
order, then their tickets are taken, as for a single job. A running node that adds nodes has its own
row locked while it does. So an act that has locked all live jobs, and has looked again until it
found no new one, has them all.
"""

from collections.abc import Sequence

from tenure.errors import WorkflowNotFound
from tenure.rules.limits import is_id
from tenure.store.session import Row, Tx, to_json

PAGE = 1000
# Of a row of `workflow_row`, and of one of `lock_nodes`.
ENDED_, PAUSED_, FINALISER_ = 6, 8, 10
ID_, TOKEN_, DUE_, PARKED_, HELD_, GATE_, RULE_, BY_PAUSE_ = 0, 1, 5, 6, 7, 9, 11, 12


async def begin_work(tx: Tx, id: int) -> Row:
    """Nobody else acts on this workflow from here on."""
    if is_id(id):
        await tx.fetch("begin_work", id=id)
    rows = await tx.fetch("workflow_row", id=id, tenant=tx.tenant) if is_id(id) else []
    if not rows:
        raise WorkflowNotFound(f"there is no workflow {id}")
    return rows[0]


async def lock_live_nodes(tx: Tx, id: int) -> list[Row]:
    """All live jobs of a workflow, locked. What was added meanwhile is found by looking again."""
    found: dict[int, Row] = {}
    more = True
    while more:
        more, after = False, 0
        while page := await tx.fetch("lock_nodes", id=id, after=after, most=PAGE):
            more = more or any(row[ID_] not in found for row in page)
            found.update((row[ID_], row) for row in page)
            after = page[-1][ID_]
    return [found[job] for job in sorted(found)]


async def take_node_tickets(tx: Tx, rows: Sequence[Row]) -> set[int]:
    """Take the live tickets of these jobs, from `due` first and then, in later statements, from
    `ready` and from gates."""
    names = ("id", "token", "queue", "priority", "position", "due_at")
    tickets = [
        dict(zip(names, row, strict=False)) | {"gate": row[GATE_], "gate_key": row[GATE_ + 1]}
        for row in rows if row[PARKED_] is None
    ]  # fmt: skip
    taken: set[int] = set()
    for statement, those in (
        ("take_due_tickets", [t for t in tickets if t["due_at"] is not None]),
        ("take_ready_tickets", [t for t in tickets if t["position"] is not None and not t["gate"]]),
        ("take_gated_tickets", [t for t in tickets if t["position"] is not None and t["gate"]]),
    ):
        for start in range(0, len(those), PAGE):
            part = [t for t in those[start : start + PAGE] if t["id"] not in taken]
            taken.update(row[0] for row in await tx.fetch(statement, rows=to_json(part)))
    return taken


async def end_of(tx: Tx, flow: Row) -> int:
    """What waits for the last nodes: the finaliser, if there is one and it waits, or the end."""
    final, end = flow[FINALISER_], -int(flow[0])
    if final is None:
        return end
    return int(final) if await tx.fetch("lock_waiting", id=final) else end
