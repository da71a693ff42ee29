"""Commands that show, cancel, pause, resume and replay workflows."""

import click

from tenure.cli.context import CliContext, confirm, json_option, with_context, yes_option
from tenure.cli.output import clean, echo
from tenure.cli.show import write_json, write_table
from tenure.drawing import draw
from tenure.rules.graph import WorkflowSeen
from tenure.workflow import WorkflowRun


@click.group()
def workflow() -> None:
    """Show workflows; cancel, pause, resume and replay them."""


@workflow.command("list")
@click.option("--name", help="Only workflows of this name.")
@click.option("--open", "only_open", is_flag=True, help="Only workflows that have not ended.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@json_option
@with_context
def list_(
    context: CliContext, *, name: str | None, only_open: bool, limit: int, as_json: bool
) -> None:
    """List workflows, newest first."""
    found = context.client.workflows(name=name, open=only_open, limit=limit)
    if as_json:
        for each in found:
            write_json(_as_json(each))
        return
    tenants = ("tenant",) if any(each.tenant for each in found) else ()
    head = (*tenants, "id", "name", "key", "state", "created", "ended")
    rows = (
        [*([each.tenant] if tenants else []), each.id, each.name, each.key, each.state,
         each.created_at, each.ended_at]
        for each in found
    )  # fmt: skip
    write_table(head, rows, empty="no workflows; app.workflow(...) starts one")


@workflow.command()
@click.argument("id", type=int)
@json_option
@with_context
def show(context: CliContext, *, id: int, as_json: bool) -> None:
    """Draw one workflow: its nodes in order, their states, and the parents of each."""
    run = context.client.workflow_run(id)
    seen, nodes = run.status(), run.nodes()
    if as_json:
        write_json({**_as_json(seen), "nodes": [node.as_dict() for node in nodes]})
        return
    for line in draw(seen, nodes).splitlines():
        echo(clean(line))


@workflow.command()
@click.argument("id", type=int)
@click.option("--reason", default="cancelled", show_default=True, help="Recorded with the jobs.")
@yes_option
@json_option
@with_context
def cancel(context: CliContext, *, id: int, reason: str, yes: bool, as_json: bool) -> None:
    """Cancel the nodes that have not started and ask running nodes to stop.

    The finaliser still runs.
    """
    run = context.client.workflow_run(id)
    seen = run.status()
    if seen.outcome is None:
        left = seen.total - seen.finished
        confirm(f"cancel workflow {id} of {seen.name}, {left} nodes?", yes=yes)
    _tell(run, run.cancel(reason=reason), "is cancelled", "has already ended", as_json=as_json)


@workflow.command()
@click.argument("id", type=int)
@click.option("--reason", default="the workflow is paused", show_default=True)
@json_option
@with_context
def pause(context: CliContext, *, id: int, reason: str, as_json: bool) -> None:
    """Hold all nodes that have not started. Running nodes go on."""
    run = context.client.workflow_run(id)
    done = run.pause(reason=reason)
    _tell(run, done, "is paused", "is already paused or has ended", as_json=as_json)


@workflow.command()
@click.argument("id", type=int)
@json_option
@with_context
def resume(context: CliContext, *, id: int, as_json: bool) -> None:
    """Resume a paused workflow."""
    run = context.client.workflow_run(id)
    _tell(run, run.resume(), "is resumed", "was not paused", as_json=as_json)


@workflow.command()
@click.argument("id", type=int)
@click.argument("node")
@json_option
@with_context
def replay(context: CliContext, *, id: int, node: str, as_json: bool) -> None:
    """Run the finished node NODE again, and the skipped and cancelled nodes below it."""
    run = context.client.workflow_run(id)
    done = run.replay(node)
    _tell(run, done, f"runs {clean(node)} again", f"has not finished {clean(node)}",
          as_json=as_json)  # fmt: skip


def _tell(run: WorkflowRun, done: bool, yes: str, no: str, *, as_json: bool) -> None:
    if as_json:
        write_json({**_as_json(run.status()), "changed": done})
    else:
        echo(f"workflow {run.id} {yes if done else no}")


def _as_json(seen: WorkflowSeen) -> dict[str, object]:
    plain: dict[str, object] = seen.as_dict()
    return {**plain, "state": seen.state, "finished": seen.finished, "total": seen.total}
