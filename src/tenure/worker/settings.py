"""The settings of a worker, and their validation."""

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, get_args

import msgspec

from tenure.errors import ConfigError
from tenure.rules.limits import check_int, check_name, check_seconds
from tenure.rules.retention import Keep, stored_keep, take_keeps

MAX_SLOTS = 100_000
MAX_JOBS = 10**9
LogErrors = Literal["type", "message", "traceback"]


def _cpus() -> int:
    return os.cpu_count() or 1


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker process."""

    queues: Mapping[str, int] = msgspec.field(default_factory=lambda: {"default": 0})
    """The slots of each queue, which are also its weight; 0 means as many as the worker has."""
    async_slots: int = 100
    thread_slots: int = 8
    process_slots: int = msgspec.field(default_factory=_cpus)
    lease_seconds: float = 30.0
    queue_lease_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Lease lengths for single queues."""
    heartbeat_seconds: float = 10.0
    promote_seconds: float = 0.25
    sweep_seconds: float = 1.0
    schedule_seconds: float = 10.0
    """How soon a new or changed schedule is noticed, or a changed clock."""
    prune_seconds: float = 3600.0
    """How long the last prune of the database, by any worker, must be ago for the next one."""
    keep_succeeded_seconds: float | None = None
    """How long jobs that succeed here are kept, unless their task says it: 0 not at all, `math.inf`
    for ever. None: as `prune` does by default, for 7 days."""
    keep_other_seconds: float | None = None
    """The same for jobs that finish otherwise. None: for 30 days."""
    queue_keep_succeeded_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The same for single queues."""
    queue_keep_other_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    unknown_task_seconds: float = 7 * 86_400.0
    """A job fails after no worker has had its task for this long."""
    busy_poll_seconds: float = 0.005
    idle_poll_seconds: float = 1.0
    drain_seconds: float = 25.0
    kill_seconds: float = 5.0
    """How long a handler that was told to stop may take before it is killed or counts as stuck."""

    max_jobs: int | None = None
    """After it has started this many jobs, the worker claims no more, finishes them and ends."""
    max_jobs_per_child: int | None = None
    """After this many jobs, a new child process replaces one of `isolation="process"`."""
    until_idle: bool = False
    """Whether the worker ends when its queues have no work left."""
    idle_seconds: float = 1.0
    """With `until_idle`: jobs that are due within this time count as work."""

    log_errors: LogErrors | None = None
    """How much of a handler's error is logged. None: the traceback in a terminal, else the type."""
    log_successes: bool | None = None
    """Whether a job that succeeds gets a line. None: in a terminal."""
    health_file: str | PathLike[str] | None = None
    """A file that the worker touches while claims work, for probes."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigError("queues must not be empty; use queues={'default': 0}")
        for name, slots in self.queues.items():
            check_name("queue", name)
            check_int(f"slots of queue {name}", slots, 0, MAX_SLOTS)
        for name in ("async_slots", "thread_slots", "process_slots"):
            check_int(name, getattr(self, name), 1, MAX_SLOTS)
        for name in ("lease_seconds", "heartbeat_seconds", "promote_seconds", "sweep_seconds",
                     "schedule_seconds", "busy_poll_seconds", "idle_poll_seconds"):  # fmt: skip
            check_seconds(name, getattr(self, name), least=0.001)
        for name in ("drain_seconds", "kill_seconds", "prune_seconds", "unknown_task_seconds",
                     "idle_seconds"):  # fmt: skip
            check_seconds(name, getattr(self, name))
        for name in ("max_jobs", "max_jobs_per_child"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1, MAX_JOBS)
        if type(self.until_idle) is not bool:
            raise ConfigError(f"until_idle must be True or False, not {self.until_idle!r:.60}")
        _check_choice("log_errors", self.log_errors, get_args(LogErrors))
        _check_choice("log_successes", self.log_successes, (True, False))
        take_keeps(self)
        for name in ("queue_keep_succeeded_seconds", "queue_keep_other_seconds"):
            self._take_keeps_of_queues(name)
        self._check_leases()

    @property
    def keep(self) -> dict[str, Keep] | None:
        """How long finished jobs are kept, by queue; None: nothing is said about it."""
        keep = {
            queue: Keep(
                self.queue_keep_succeeded_seconds.get(queue, self.keep_succeeded_seconds),
                self.queue_keep_other_seconds.get(queue, self.keep_other_seconds),
            )
            for queue in self.queues
        }
        return None if all(each == Keep() for each in keep.values()) else keep

    def _take_keeps_of_queues(self, name: str) -> None:
        """Check lengths for single queues, and bring them into the stored form."""
        lengths = getattr(self, name)
        if not isinstance(lengths, Mapping):
            raise ConfigError(
                f"{name} must be a mapping such as {{'gpu': 600.0}}, not {lengths!r:.60}"
            )
        for queue in lengths:
            if queue not in self.queues:
                raise ConfigError(f"{name} names {queue}, which is not in queues")
        stored = {queue: stored_keep(f"{name} of {queue}", each) for queue, each in lengths.items()}
        msgspec.structs.force_setattr(self, name, stored)

    def _check_leases(self) -> None:
        if not isinstance(self.queue_lease_seconds, Mapping):
            raise ConfigError(
                "queue_lease_seconds must be a mapping such as {'gpu': 600.0}, not "
                f"{self.queue_lease_seconds!r:.60}"
            )
        for queue, seconds in self.queue_lease_seconds.items():
            check_seconds(f"the lease of queue {queue}", seconds, least=0.001)
            if queue not in self.queues:
                raise ConfigError(f"queue_lease_seconds names {queue}, which is not in queues")
        if self.health_file is not None and not isinstance(self.health_file, str | PathLike):
            raise ConfigError(f"health_file must be a path, not {self.health_file!r:.60}")
        shortest = min([self.lease_seconds, *self.queue_lease_seconds.values()])
        if not 2 * self.heartbeat_seconds < shortest:
            raise ConfigError(
                f"two heartbeats ({self.heartbeat_seconds:g} s each) must fit into one lease "
                f"({shortest:g} s); make the lease longer or the heartbeat shorter"
            )

    def lease_of(self, queue: str) -> float:
        """How long a lease on jobs of this queue lasts."""
        return self.queue_lease_seconds.get(queue, self.lease_seconds)


def check_health_file(file: Path) -> None:
    """Refuse a health file that the worker cannot touch. Leaves no new file."""
    if not file.parent.is_dir():
        raise ConfigError(f"health_file: there is no folder {file.parent}; create it first")
    if file.is_dir():
        raise ConfigError(f"health_file: {file} is a folder; name a file in it")
    is_new = not file.exists()
    try:
        with file.open("ab"):
            pass
        if is_new:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"health_file: {file} cannot be written ({error.strerror}); give this user write access"
        ) from error


class Settings(TypedDict, total=False):
    """The settings as keyword arguments, without `queues`, for type checkers."""

    async_slots: int
    thread_slots: int
    process_slots: int
    lease_seconds: float
    queue_lease_seconds: Mapping[str, float]
    heartbeat_seconds: float
    promote_seconds: float
    sweep_seconds: float
    schedule_seconds: float
    prune_seconds: float
    keep_succeeded_seconds: float | None
    keep_other_seconds: float | None
    queue_keep_succeeded_seconds: Mapping[str, float]
    queue_keep_other_seconds: Mapping[str, float]
    unknown_task_seconds: float
    busy_poll_seconds: float
    idle_poll_seconds: float
    drain_seconds: float
    kill_seconds: float
    max_jobs: int | None
    max_jobs_per_child: int | None
    until_idle: bool
    idle_seconds: float
    log_errors: LogErrors | None
    log_successes: bool | None
    health_file: str | PathLike[str] | None


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value is not None and (type(value), value) not in [
        (type(choice), choice) for choice in choices
    ]:
        raise ConfigError(
            f"{name} must be one of {', '.join(map(str, choices))}, not {value!r:.60}"
        )


def settings_of(queues: Mapping[str, int] | None, given: Settings) -> WorkerSettings:
    """Check the settings. Raises ConfigError; for an unknown setting it lists the known ones."""
    if queues is not None and not isinstance(queues, Mapping):
        raise ConfigError(f"queues must be a mapping such as {{'default': 0}}, not {queues!r:.60}")
    values = dict(given) if queues is None else {**given, "queues": dict(queues)}
    known = WorkerSettings.__struct_fields__
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(
            f"unknown worker setting {unknown[0]!r}; known settings: {', '.join(known)}"
        )
    return WorkerSettings(**values)  # type: ignore[arg-type]
