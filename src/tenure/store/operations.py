"""The table of operations: what can be done with a store, each named once.

`Store` and `AsyncStore` inherit it; see `colours.py` for how an entry becomes a method.
"""

from tenure.store.colours import operation
from tenure.store.gates import limits
from tenure.store.gates import look as gate_look
from tenure.store.jobs import operate
from tenure.store.jobs import sweep as leases
from tenure.store.jobs.claim import claim
from tenure.store.jobs.enqueue import enqueue
from tenure.store.jobs.notes import report_progress, save_checkpoint
from tenure.store.jobs.replay import replay as replay_job
from tenure.store.jobs.settle import settle
from tenure.store.jobs.steps import record_step
from tenure.store.look import facts
from tenure.store.look import jobs as look
from tenure.store.look import workers as presence
from tenure.store.prune import prune as prune_store
from tenure.store.schedules import change as schedules
from tenure.store.schedules.fire import fire
from tenure.store.session import Scope
from tenure.store.workflows import act
from tenure.store.workflows import look as workflow_look
from tenure.store.workflows.add import enqueue_workflow
from tenure.store.workflows.grow import grow_workflow
from tenure.store.workflows.stop import heal_workflows


async def _migrate(scope: Scope) -> int:
    """Bring the schema up to date, one process at a time. Returns its version."""
    return await scope.session.migrate()


class Operations:
    """What `Store` and `AsyncStore` can do."""

    enqueue = operation(enqueue)
    claim = operation(claim)
    extend = operation(leases.extend)
    settle = operation(settle)
    report_progress = operation(report_progress)
    save_checkpoint = operation(save_checkpoint)
    record_step = operation(record_step)
    peek = operation(leases.peek, reads=True)
    promote = operation(leases.promote)
    sweep = operation(leases.sweep)

    cancel = operation(operate.cancel)
    hold = operation(operate.hold)
    unhold = operation(operate.unhold)
    move = operation(operate.move)
    replay = operation(replay_job)
    delete = operation(operate.delete)
    pause = operation(operate.pause)
    resume = operation(operate.resume)
    prune = operation(prune_store)

    get = operation(look.get, reads=True)
    list_jobs = operation(look.list_jobs, reads=True)
    timeline = operation(look.timeline, reads=True)
    progress = operation(look.progress, reads=True)
    steps = operation(look.steps, reads=True)
    count_live = operation(look.count_live, reads=True)
    count_finished = operation(look.count_finished, reads=True)
    oldest_ready = operation(look.oldest_ready, reads=True)
    paused_queues = operation(look.paused_queues, reads=True)
    about = operation(look.about, reads=True)
    why = operation(facts.why, reads=True)
    gate_wait = operation(facts.gate_wait, reads=True)

    announce = operation(presence.announce)
    retire = operation(presence.retire)
    workers = operation(presence.workers, reads=True)

    declare_gates = operation(limits.declare_gates)
    set_gate = operation(limits.set_gate)
    reset_gate = operation(limits.reset_gate)
    gates = operation(gate_look.gates, reads=True)
    gate_lines = operation(gate_look.gate_lines, reads=True)
    heal_gates = operation(limits.heal_gates)

    fire = operation(fire)
    declare_schedules = operation(schedules.declare_schedules)
    add_schedule = operation(schedules.add_schedule)
    edit_schedule = operation(schedules.edit_schedule)
    pause_schedule = operation(schedules.pause_schedule)
    resume_schedule = operation(schedules.resume_schedule)
    trigger_schedule = operation(schedules.trigger_schedule)
    remove_schedule = operation(schedules.remove_schedule)
    get_schedule = operation(schedules.get_schedule, reads=True)
    list_schedules = operation(schedules.list_schedules, reads=True)
    schedule_runs = operation(schedules.schedule_runs, reads=True)

    enqueue_workflow = operation(enqueue_workflow)
    grow_workflow = operation(grow_workflow)
    get_workflow = operation(workflow_look.get_workflow, reads=True)
    list_workflows = operation(workflow_look.list_workflows, reads=True)
    list_nodes = operation(workflow_look.list_nodes, reads=True)
    node_named = operation(workflow_look.node_named, reads=True)
    parent_ends = operation(workflow_look.parent_ends, reads=True)
    workflow_of = operation(workflow_look.workflow_of, reads=True)
    cancel_workflow = operation(act.cancel_workflow)
    pause_workflow = operation(act.pause_workflow)
    resume_workflow = operation(act.resume_workflow)
    heal_workflows = operation(heal_workflows)

    migrate = operation(_migrate)


READERS = frozenset(
    each.body for each in vars(Operations).values() if isinstance(each, operation) and each.reads
) | {workflow_look.has_ended}
"""The operations that write nothing."""
