"""Failure hooks: the jobs that are enqueued when other jobs fail.

Code declares its hooks when a worker starts. `finish` reads them, and enqueues their jobs in the
transaction of the failure: see `jobs_of_hooks`.
"""

from collections.abc import Sequence
from datetime import datetime

from tenure.errors import InvalidInput
from tenure.rules.ends import NewHook
from tenure.rules.limits import check_name, not_this
from tenure.store.feed.records import HookRow
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json, transaction
from tenure.store.templates import dump


async def declare_hooks(
    scope: Scope,
    hooks: Sequence[NewHook],
    *,
    tasks: Sequence[str] = (),
    now: datetime | None = None,
) -> bool:
    """Declare the failure hooks of code. Returns whether that changed any.

    `tasks` are those the code has: of these, only the declared ones are hooks from now on. Hooks of
    other code stay.
    """
    for_all_tenants("declare_hooks", scope.tenant)
    for hook in hooks:
        if not isinstance(hook, NewHook):
            raise InvalidInput(f"declare_hooks takes NewHook records, {not_this(hook)}")
    for task in tasks:
        check_name("task", task)
    wanted = {(hook.task or "", hook.job.task): hook for hook in hooks}
    ours = {hook.job.task for hook in hooks} | set(tasks)

    async def look(tx: Tx) -> set[HookRow]:
        tx.at(now)
        return {row for row in await tx.fetch_as(HookRow, "read_hooks") if row.hook in ours}

    rows = {
        HookRow(task, name, hook.parameter, dump(hook.job)) for (task, name), hook in wanted.items()
    }

    async def write(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("drop_hooks", hooks=to_json(sorted(ours)))
        if rows:
            await tx.fetch("add_hooks", rows=to_json([row._asdict() for row in sorted(rows)]))

    if await scope.transact(look, Mode.READ) == rows:
        return False
    await scope.transact(write)
    return True


@transaction(Mode.READ)
async def failure_hooks(tx: Tx, *, now: datetime | None = None) -> list[tuple[str | None, str]]:
    """The declared failure hooks: the task whose failures each is for (None: all), and its own."""
    for_all_tenants("failure_hooks", tx.tenant)
    tx.at(now)
    return [(row.task or None, row.hook) for row in await tx.fetch_as(HookRow, "read_hooks")]


@transaction(Mode.WRITE)
async def remove_hook(tx: Tx, name: str, *, now: datetime | None = None) -> bool:
    """Stop calling a task for failures. Returns whether it was a hook.

    For a hook whose code is gone: a worker whose code declares it adds it again.
    """
    for_all_tenants("remove_hook", tx.tenant)
    check_name("hook", name)
    tx.at(now)
    return bool(await tx.fetch("drop_hooks", hooks=to_json([name]))) or tx.repeat
