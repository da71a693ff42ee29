"""The task of the Django adapter; Django finds it by its import path, when it is set up."""

from __future__ import annotations

from django_tasks import task

from bench.peers.adapters.django_tasks_db import board


@task()
def noop(number: int, **_: object) -> None:
    """Mark the job."""
    board[0].ran(number)
