"""django-tasks-db: one job at a time per worker process; results are kept."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from bench.peers.adapter import Adapter, chunks, payload
from bench.peers.board import Board

INTERVAL_SECONDS = 0.01
board: list[Board] = []
"""Where the task in django_task.py marks its jobs."""


class DjangoTasksDb(Adapter):
    """With a connection that stays open."""

    name = "django-tasks-db"
    store = "postgres"
    packages = (
        "django-tasks-db==0.13.0",
        "django-tasks==0.12.0",
        "django==5.2.19",
        "psycopg[binary]==3.3.8",
    )
    settings = f"db_worker, interval={INTERVAL_SECONDS:g} (default 1), CONN_MAX_AGE=None, kept"
    on_loop = False
    stored = "select count(*) from django_tasks_database_dbtaskresult"
    unfinished = (
        "select exists (select from django_tasks_database_dbtaskresult "
        "where status in ('READY', 'RUNNING'))"
    )
    finished = "select count(*) from django_tasks_database_dbtaskresult where status = 'SUCCESSFUL'"
    drain_jobs = 800
    enqueue_jobs = 3_000

    def install(self) -> None:
        self._set_up()
        self._command("migrate", verbosity=0)

    async def open(self) -> None:
        self._task = self._set_up()

    async def enqueue_many(self, first: int, end: int) -> None:
        from django.db import transaction

        for some in chunks(first, end):  # it has no call for many: one transaction of many calls
            with transaction.atomic():
                for job in some:
                    self._task.enqueue(**payload(job))

    async def enqueue(self, job: int) -> None:
        self._task.enqueue(**payload(job))

    def work(self, worker: int) -> None:
        self._set_up()
        self.board.wait_for_go(worker)
        self._command(
            "db_worker",
            interval=INTERVAL_SECONDS,
            verbosity=0,
            startup_delay=False,
            reload=False,
        )

    @staticmethod
    def _command(name: str, **options: object) -> None:
        from django.core.management import call_command

        call_command(name, **options)

    def _set_up(self) -> Any:
        import django
        from django.conf import settings

        board.append(self.board)
        parts = urlsplit(self.url)
        settings.configure(
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": parts.path.removeprefix("/"),
                    "USER": parts.username,
                    "HOST": parts.hostname,
                    "PORT": parts.port,
                    "CONN_MAX_AGE": None,
                }
            },
            USE_TZ=True,
            INSTALLED_APPS=["django_tasks", "django_tasks_db"],
            TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
            LOGGING_CONFIG=None,
            SECRET_KEY="bench",
        )
        django.setup()
        return import_module("bench.peers.adapters.django_task").noop
