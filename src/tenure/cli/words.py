"""How the words of a command line are read: global options in any place, and guesses of commands.

`--url`, `--tenant`, `--give-up-seconds` and `--json` may stand before or after the command.
"""

import sys
from collections.abc import Sequence

import click

GLOBAL = ("--url", "--tenant", "--give-up-seconds")
"""Options of `tenure` itself. Each takes a value."""

MEANT = {
    "abort": "cancel", "add": "enqueue", "beat": "worker", "check": "doctor", "count": "stats",
    "del": "rm",
    "delete": "rm", "deploy": "db migrate", "discard": "cancel", "events": "timeline",
    "failed": "errors", "failures": "errors", "find": "ls", "flower": "top",
    "flows": "workflow list",
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


ELSEWHERE = {"shell": "Use `python -i -m MODULE`, with the module of your application"}
"""What users look for here, and where it is."""


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

    if word in ELSEWHERE:
        return f". {ELSEWHERE[word]}"
    near = get_close_matches(word, commands, n=1, cutoff=0.5)
    meant = MEANT.get(word.lower()) or (near[0] if near else None)
    return "" if meant is None else f". Did you mean `tenure {meant}`?"


_SLOTS = "write --async-slots, --thread-slots or --process-slots"
_APP = "write the application without an option, as in `tenure worker shop.jobs:app`"
MEANT_OPTIONS = {
    "worker": {"--concurrency": _SLOTS, "-c": _SLOTS, "--threads": _SLOTS, "-A": _APP,
               "--app": _APP, "-Q": "write -q", "--queues": "write -q", "-l": "write --log-level",
               "--loglevel": "write --log-level"},
}  # fmt: skip
MEANT_OPTIONS["dev"] = MEANT_OPTIONS["worker"]
"""The options of other tools, by command, and how to write them here."""


def option_meant(command: click.Command, option: str) -> str | None:
    """How to write an option that a command does not have."""
    hint = MEANT_OPTIONS.get(command.name or "", {}).get(option)
    if hint is not None:
        return hint
    from tenure.rules.filters.fields import FIELDS

    takes_filter = any(param.name == "filter" for param in command.params)
    name = option.lstrip("-").replace("-", "_")
    if not takes_filter or name not in FIELDS:
        return None
    words = (
        " ".join(sys.argv).replace(f"{option}=", f"{option} ").partition(f"{option} ")[2].split()
    )
    return f"write `tenure {command.name} {name}={words[0] if words else '...'}`"


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
