"""How the words of a command line are read: global options in any place, and guesses of commands.

`--url`, `--tenant`, `--give-up-seconds` and `--json` may stand before or after the command.
"""

from collections.abc import Sequence

import click

GLOBAL = ("--url", "--tenant", "--give-up-seconds")
"""Options of `tenure` itself. Each takes a value."""

MEANT = {
    "abort": "cancel", "add": "enqueue", "beat": "worker", "check": "doctor", "count": "stats",
    "del": "rm",
    "delete": "rm", "deploy": "db migrate", "discard": "cancel", "events": "timeline",
    "failed": "errors", "failures": "errors", "find": "ls", "flows": "workflow list",
    "gates": "gate list", "history": "timeline", "info": "get", "init": "db init",
    "inspect": "get", "job": "get", "jobs": "ls", "keys": "key get", "kill": "cancel",
    "limits": "gate list",
    "list": "ls", "log": "timeline", "logs": "timeline", "migrate": "db migrate",
    "monitor": "top", "pause": "queues pause", "ping": "health", "ps": "workers",
    "purge": "prune", "push": "enqueue", "queue": "queues", "release": "unhold",
    "remove": "rm", "requeue": "replay", "rerun": "replay", "restart": "replay",
    "resume": "queues resume", "retry": "replay", "revoke": "cancel", "run": "worker",
    "schedules": "schedule list", "schema": "db status", "send": "enqueue", "show": "get",
    "start": "worker", "status": "get", "stop": "cancel", "submit": "enqueue",
    "tail": "timeline", "unpause": "queues resume", "upgrade": "db migrate", "version": "--version",
    "view": "get", "watch": "top", "work": "worker", "workflows": "workflow list",
}  # fmt: skip
"""What users of other tools type, and the command that does it here."""


MEANT_IN = {
    "db": {"create": "init", "setup": "init", "update": "migrate", "upgrade": "migrate",
           "version": "status", "current": "status", "show": "status"},
}  # fmt: skip
"""The same for the commands of a group."""


class GuessingGroup(click.Group):
    """A group that says which of its commands a wrong word may mean."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = self.name or ""
        meant = MEANT_IN.get(name, {}).get(args[0])
        if meant is not None and args[0] not in self.commands:
            ctx.fail(f"no command '{name} {args[0]}'. Did you mean `tenure {name} {meant}`?")
        return super().resolve_command(ctx, args)


def did_you_mean(word: str, commands: Sequence[str]) -> str:
    """The end of the message for an unknown command."""
    from difflib import get_close_matches

    near = get_close_matches(word, commands, n=1, cutoff=0.5)
    meant = MEANT.get(word.lower()) or (near[0] if near else None)
    return "" if meant is None else f". Did you mean `tenure {meant}`?"


def in_order(words: Sequence[str]) -> list[str]:
    """The words with global options before the command, and `--json` after it."""
    front: list[str] = []
    rest: list[str] = []
    has_command = wants_json = False
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += [word, *left]
            break
        if name in GLOBAL:
            front.append(word)
            if not equals:
                if not left:
                    raise click.UsageError(f"Option {name!r} requires an argument.")
                front.append(left.pop(0))
        elif word == "--json" and not has_command:
            wants_json = True
        else:
            has_command = has_command or not word.startswith("-")
            rest.append(word)
    if wants_json and has_command:
        place = rest.index("--") if "--" in rest else len(rest)
        rest.insert(place, "--json")
    return [*front, *rest]
