"""The ends of workflows, written by the transaction that ends their last node.

A workflow is over when its last nodes are: see graph.py. The settlement that ends a last node locks
the row of the workflow, after jobs and leases, as the lock order wants, and decides in a later
statement: of two that end the last two nodes together, one sees both. So the end comes once, and
not never. A node that fails says so on the same row; settlements of other nodes do not touch it.

When a node has failed and the rest is to be stopped, that is noted in the same transaction, and
done in the next one; should the worker die between the two, any other one does it.
"""

from tenure.rules.job import State
from tenure.store.session import Tx, to_json
from tenure.store.workflows.records import StoppingWorkflow

STOPPED = "the workflow was stopped"


async def end_workflows(tx: Tx) -> list[int]:
    """Write what became of the workflows whose nodes this transaction has ended.

    Called last, when all jobs and leases are locked. Returns the workflows to be stopped.
    """
    news = tx.workflow_news
    if news is None:
        return []
    tx.workflow_news = None
    losses = await _losses(tx, news.unsuccessful)
    ids = to_json(sorted(news.ended | losses.keys()))
    locked = await tx.fetch_as(StoppingWorkflow, "lock_workflows", ids=ids)
    stopping: set[int] = set()
    if losses:
        rows = [
            {"id": id, "failed": State.FAILED in states, "cancelled": State.CANCELLED in states}
            for id, states in sorted(losses.items())
        ]
        marked = await tx.fetch_as(
            StoppingWorkflow, "mark_workflows", rows=to_json(rows), stopped=STOPPED
        )
        before = {each.id for each in locked if each.stopping}  # another transaction stops these
        stopping = {each.id for each in marked if each.stopping} - before
    if news.ended:
        stopping -= set(await tx.fetch_column("end_workflows", ids=to_json(sorted(news.ended))))
    return sorted(stopping)


async def _losses(tx: Tx, lost: dict[int, State]) -> dict[int, set[State]]:
    """What became of nodes that did not end well, by workflow."""
    losses: dict[int, set[State]] = {}
    for state in sorted(set(lost.values())):
        ids = to_json(sorted(id for id, became in lost.items() if became is state))
        for workflow in await tx.fetch_column("workflows_of", ids=ids):
            losses.setdefault(workflow, set()).add(state)
    return losses
