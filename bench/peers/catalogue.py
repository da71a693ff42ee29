"""Who competes."""

from __future__ import annotations

from importlib import import_module

from bench.peers.adapter import Adapter

OURS = {
    "tenure-postgres": "ours:Postgres",
    "tenure-sqlite": "ours:Sqlite",
    "tenure-sqlite-thread": "ours:SqliteThread",
}
PEERS = {
    "pgqueuer": "pgqueuer:Pgqueuer",
    "awa": "awa:Awa",
    "oban": "oban:Oban",
    "procrastinate": "procrastinate:Procrastinate",
    "huey": "huey:Huey",
    "litequeue": "litequeue:Litequeue",
    "chancy": "chancy:Chancy",
    "absurd": "absurd:Absurd",
    "saq": "saq:Saq",
    "dbos": "dbos:Dbos",
    "dramatiq-pg": "dramatiq_pg:DramatiqPg",
    "django-tasks-db": "django_tasks_db:DjangoTasksDb",
}
RECOVERING = {"procrastinate-recipe": "procrastinate:WithRecipe"}
"""With what its documentation says about workers that die."""
USUAL = ("pgqueuer", "awa", "oban", "procrastinate", "huey", "litequeue")
"""In every full run; the others on request."""
ON_POSTGRES = tuple(name for name in PEERS if name not in {"huey", "litequeue"})


def load(name: str) -> type[Adapter]:
    """The adapter of this name."""
    module, _, attribute = {**OURS, **PEERS, **RECOVERING}[name].partition(":")
    adapter: type[Adapter] = getattr(import_module(f"bench.peers.adapters.{module}"), attribute)
    return adapter


def peers_named(words: str | None) -> tuple[str, ...]:
    """The peers that `--peers` names: a list with commas, `all`, or nothing for the usual ones."""
    if words is None:
        return USUAL
    if words == "all":
        return tuple(PEERS)
    names = tuple(word.strip() for word in words.split(","))
    for name in names:
        if name not in PEERS:
            raise ValueError(f"there is no peer {name!r}; known are {', '.join(PEERS)}, and `all`")
    return names
