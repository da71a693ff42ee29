"""Tasks: named functions, typed calls of them, and sets of tasks.

    tasks = TaskSet()                      # in a module without a database

    @tasks.task(queue="mail", max_attempts=8)
    async def send(to: str, subject: str, *, urgent: bool = False) -> str: ...

    app = Tenure("sqlite:///jobs.db")      # in another module
    app.include(tasks)
    send.enqueue("user@example.org", subject="hi")

A call is checked twice before anything is written: by the type checker, because `enqueue` has the
function's parameters, and at run time, because the encoded arguments are decoded against its
annotations. A first parameter annotated `Running` is left out: the worker fills it in.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from tenure.batches import Batch, Item, single
from tenure.control import Instead
from tenure.errors import InvalidInput, NoSuchMethod, TenantMismatch
from tenure.handle import Handle
from tenure.rules.claim import NEEDS, Kind
from tenure.rules.codec import encode
from tenure.rules.ends import FailedJob, NewHook
from tenure.rules.gates import Gate, Limits
from tenure.rules.job import Json, NewJob, Replace, Unique
from tenure.rules.limits import (
    MAX_ATTEMPTS_LIMIT,
    MAX_PRIORITY,
    MIN_PRIORITY,
    check_int,
    check_name,
    check_seconds,
    seconds_of,
    take_lengths,
)
from tenure.rules.retention import stored_keep, take_keeps
from tenure.rules.retry import CustomPolicy, Policy, dump_policy
from tenure.rules.ticks import CatchUp, Overlap, ScheduleTiming, check_timing
from tenure.running import Running, current
from tenure.signature import Signature
from tenure.store.schedules.records import NewSchedule
from tenure.store.templates import TRACE

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
J = TypeVar("J", bound=Running)

Isolation = Literal["none", "process"]


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task. They are resolved at enqueue and stored with the job."""

    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    retry: Policy | CustomPolicy | None = None
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    fail_on: tuple[type[BaseException], ...] = ()
    isolation: Isolation = "none"
    gate: Gate | None = None
    at_most_once: bool = False
    keep_succeeded_seconds: float | None = None
    keep_other_seconds: float | None = None
    start_within_seconds: float | None = None
    finish_within_seconds: float | None = None
    batch: Batch | None = None
    on_failed: "Task[..., Any] | None" = None

    def __post_init__(self) -> None:
        take_keeps(self)
        check_name("queue", self.queue)
        check_int("priority", self.priority, MIN_PRIORITY, MAX_PRIORITY)
        check_int("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS_LIMIT)
        if self.timeout_seconds is not None:
            check_seconds("timeout_seconds", self.timeout_seconds, least=0.001)
        for name in ("start_within_seconds", "finish_within_seconds"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        if not (self.retry is None or isinstance(self.retry, Policy) or callable(self.retry)):
            raise InvalidInput(
                "retry must be a policy such as Exponential() or Fixed(60), or a function of the "
                f"attempts so far, not {self.retry!r:.60}; to limit attempts, use max_attempts"
            )
        if self.isolation not in ("none", "process"):
            raise InvalidInput(f'isolation must be "none" or "process", not {self.isolation!r}')
        if not isinstance(self.at_most_once, bool):
            raise InvalidInput(f"at_most_once must be a bool, not {self.at_most_once!r:.60}")
        if not (self.gate is None or isinstance(self.gate, Gate)):
            raise InvalidInput(f"gate must be a Gate(name, ...), not {self.gate!r:.60}")
        if self.batch is not None:
            self._check_batch()
        for name in ("retry_on", "fail_on"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(_is_error(kind) for kind in kinds):
                raise InvalidInput(
                    f"{name} must be a tuple of exception classes, not {kinds!r:.60}"
                )

    def _check_batch(self) -> None:
        if not isinstance(self.batch, Batch):
            raise InvalidInput(f"batch must be a Batch(max_size=...), not {self.batch!r:.60}")
        if self.gate is not None:
            raise InvalidInput("a batch task cannot have a gate; limit it by the slots of a queue")
        if self.isolation != "none":
            raise InvalidInput(
                'a batch task cannot have isolation="process"; leave one of them out'
            )

    def retries(self, error: BaseException) -> bool:
        """Does the task try again after this error?"""
        return isinstance(error, self.retry_on) and not isinstance(error, self.fail_on)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call. An option that is given overrides that of the task."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float | None = None
    due_at: datetime | None = None
    key: str | None = None
    unique: Unique | None = None
    replace: Replace | bool = False
    tenant: str | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    metadata: Mapping[str, object] | None = None
    parents: Iterable[int | Handle[Any]] = ()
    expires_at: datetime | None = None
    start_within_seconds: float | None = None
    finish_by: datetime | None = None
    finish_within_seconds: float | None = None
    on: object | None = None
    keep_succeeded_seconds: float | None = None
    keep_other_seconds: float | None = None

    def __post_init__(self) -> None:
        take_lengths(
            self, "delay_seconds", "timeout_seconds", "start_within_seconds",
            "finish_within_seconds",
        )  # fmt: skip
        take_keeps(self)


_NO_OPTIONS = CallOptions()


class _CallOptions(TypedDict, total=False):
    """`CallOptions` for type checkers."""

    queue: str
    priority: int
    delay_seconds: float | timedelta
    due_at: datetime
    key: str
    unique: Unique
    replace: Replace | bool
    tenant: str
    max_attempts: int
    timeout_seconds: float | timedelta
    metadata: Mapping[str, object]
    parents: "Iterable[int | Handle[Any]]"  # as text, which the reference shows
    expires_at: datetime
    start_within_seconds: float | timedelta
    finish_by: datetime
    finish_within_seconds: float | timedelta
    on: object
    keep_succeeded_seconds: float | timedelta
    keep_other_seconds: float | timedelta


class TimingOptions(TypedDict, total=False):
    """The fields of `ScheduleTiming`, for type checkers."""

    cron: str
    every_seconds: float | timedelta
    tz: str
    catch_up: CatchUp
    catch_up_limit: int
    overlap: Overlap
    jitter_seconds: float | timedelta


def timing_of(given: TimingOptions) -> ScheduleTiming:
    """Check the options of a schedule. The error for an unknown option lists the known ones."""
    if unknown := set(given) - set(ScheduleTiming.__struct_fields__):
        known = ", ".join(ScheduleTiming.__struct_fields__)
        raise InvalidInput(f"a schedule has no option {min(unknown)!r}; its options are {known}")
    timing = ScheduleTiming(**given)  # type: ignore[arg-type]
    check_timing(timing)
    return timing


class Call(msgspec.Struct, Generic[R_co], frozen=True):
    """One call of a task, checked and encoded, ready to be enqueued."""

    task: "Task[..., R_co]"
    job: NewJob


class Client(Protocol):
    """The part of an application that a task uses."""

    def _enqueue(self, call: Call[R], on: object | None) -> Handle[R]: ...
    async def _enqueue_async(self, call: Call[R], on: object | None) -> Handle[R]: ...


class Task(Generic[P, R]):
    """A function registered under a name. `fn` is the function itself."""

    def __init__(self, fn: Callable[..., Any], name: str, options: TaskOptions) -> None:
        check_name("task", name)
        self.fn = fn
        self.name = name
        self.options_of_task = options
        self.kind: Kind = _kind(fn, options)
        """How the worker runs it."""
        self.needs = NEEDS[self.kind]
        """The slots that its jobs need."""
        self._clients: list[Client] = []

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves

        def __call__(self, *_args: object, **_kwargs: object) -> object:
            raise TypeError(
                f"{self.name} is a task: use .enqueue(...) to have a worker run it, or .fn(...) to "
                "run the function here"
            )

        def __getattr__(self, name: str) -> object:
            raise _no_method(self, name, lambda: self.name)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `app.enqueue_many`, a workflow or a schedule."""
        return self._call(args, kwargs, _NO_OPTIONS)

    def options(self, **options: Unpack[_CallOptions]) -> "TaskWithOptions[P, R]":
        """The task with options for its next calls, such as priority, key, tenant or on."""
        try:
            chosen = CallOptions(**options)  # type: ignore[arg-type]
        except TypeError as error:
            known = ", ".join(CallOptions.__struct_fields__)
            raise InvalidInput(f"{error}; the options of a call are {known}") from None
        return TaskWithOptions(self, chosen)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one job and return its handle."""
        return self._client()._enqueue(self._call(args, kwargs, _NO_OPTIONS), None)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one job from async code and return its handle."""
        call = self._call(args, kwargs, _NO_OPTIONS)
        return await self._client()._enqueue_async(call, None)

    def bind(self, client: Client) -> None:
        """Let `enqueue` use this application."""
        if client not in self._clients:
            self._clients.append(client)

    @cached_property
    def signature(self) -> Signature:
        """Its parameters and result. Raises `InvalidInput` if an annotation cannot be used.

        Read late, because annotations may name things that are defined further down.
        """
        batch = self.options_of_task.batch
        fn = self.fn if batch is None else single(self.name, self.fn)
        return Signature(self.name, fn, CallOptions.__struct_fields__)

    @cached_property
    def stored_retry(self) -> Json | None:
        """The retry policy that is stored with each job. A user's function stays in the code."""
        retry = self.options_of_task.retry
        return dump_policy(retry) if isinstance(retry, Policy) else None

    def _call(self, args: Any, kwargs: Any, chosen: CallOptions) -> Call[R]:
        job = _new_job(self, self.signature.pack(args, kwargs), chosen)
        gate = self.options_of_task.gate
        if gate is not None:
            line = gate.line_of(self.signature.arguments(args, kwargs))
            job = msgspec.structs.replace(job, gate=gate.name, gate_key=line)
        return Call(self, job)

    def _client(self) -> Client:
        if len(self._clients) != 1:
            what = "no application" if not self._clients else "several applications"
            raise InvalidInput(
                f"task {self.name} belongs to {what}; use app.include(tasks) once, or "
                "app.enqueue_many([task.call(...)])"
            )
        return self._clients[0]


def _kind(fn: Callable[..., Any], options: TaskOptions) -> Kind:
    if options.isolation == "process":
        return "process"
    return "async" if inspect.iscoroutinefunction(fn) else "thread"


class TaskWithOptions(Generic[P, R]):
    """A task with options for its next calls."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self._task = task
        self._options = options

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise _no_method(self, name, lambda: f"{self._task.name}.options(...)")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `app.enqueue_many`, a workflow or a schedule. Give `on` to `enqueue_many`."""
        if self._options.on is not None:
            raise InvalidInput("give on= to app.enqueue_many, not to one of its calls")
        return self._task._call(args, kwargs, self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one job and return its handle."""
        call = self._task._call(args, kwargs, self._options)
        return self._task._client()._enqueue(call, self._options.on)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one job from async code and return its handle."""
        call = self._task._call(args, kwargs, self._options)
        return await self._task._client()._enqueue_async(call, self._options.on)


_BLOCKING = (
    "apply", "apply_async", "defer", "delay", "delay_on_commit", "push", "queue", "schedule",
    "send", "send_with_options", "submit",
)  # fmt: skip
_ENQUEUE = dict.fromkeys(_BLOCKING, "enqueue") | {
    "run": "enqueue",
    "s": "enqueue",
    "si": "enqueue",
    "retry": "enqueue",
    "defer_async": "enqueue_async",
    "delay_async": "enqueue_async",
    "kiq": "enqueue_async",
}
"""What other job queues call it."""
_CALL = "For a workflow or enqueue_many, write .call(...)"
_HINTS = {
    "s": _CALL,
    "si": _CALL,
    "run": "To run the function here, write .fn(...)",
    "retry": "In a handler, raise Retry(...); for a finished job, use app.replay(id)",
}


def _no_method(thing: object, name: str, shown: Callable[[], str]) -> AttributeError:
    """The error for an attribute that does not exist. It names `enqueue` if that is meant."""
    if name == "configure":
        return NoSuchMethod(f"a task has no method 'configure'; write {shown()}.options(...)")
    method = _ENQUEUE.get(name)
    if method is None:
        return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}")
    hint = _HINTS.get(name, f"Options go before it: .options(delay_seconds=5).{method}(...)")
    return NoSuchMethod(f"a task has no method {name!r}; write {shown()}.{method}(...). {hint}")


def job_of(what: object) -> NewJob:
    """The job of a call, or of a task without arguments."""
    if isinstance(what, Task):
        try:
            what = what.call()
        except InvalidInput as error:
            raise InvalidInput(f"{error}; to give arguments, schedule task.call(...)") from error
    if not isinstance(what, Call):
        raise InvalidInput(f"a schedule takes a call such as task.call(...), not {what!r:.60}")
    return what.job


def _scheduled(name: str, timing: ScheduleTiming, what: object) -> NewSchedule:
    """A schedule as it is stored. Refuses a task that cannot be called without arguments."""
    try:
        return NewSchedule(name=name, timing=timing, job=job_of(what))
    except InvalidInput as error:
        raise InvalidInput(f"schedule {name}: {error}") from error


def _can_be_read(task: Task[..., Any]) -> bool:
    """Can its annotations be read now? They may name things that are defined further down."""
    try:
        return task.signature is not None
    except InvalidInput:
        return False


def _hook(task: str | None, hook: Task[..., Any]) -> NewHook:
    """A failure hook as it is stored. Refuses a task that cannot receive a `FailedJob`."""
    parameter = hook.signature.lone_parameter()
    if parameter is None:
        raise InvalidInput(
            f"hook {hook.name} must take one argument, the failed job: write "
            "def hook(failed: FailedJob)"
        )
    hook.signature.unpack(Json(encode({parameter: _A_FAILED_JOB})))
    options = hook.options_of_task
    if options.gate is not None and options.gate.limits.keyed:
        raise InvalidInput(f"hook {hook.name} cannot have a gate with a key; leave the key out")
    job = _new_job(hook, Json(b"{}"), _NO_OPTIONS)
    if options.gate is not None:
        job = msgspec.structs.replace(job, gate=options.gate.name)
    return NewHook(task=task, parameter=parameter, job=job)


_A_FAILED_JOB = FailedJob(
    id=1, token=1, task="a", args={}, queue="default", tenant="", attempts=1, max_attempts=1,
    crashes=0, finished_at=datetime(2000, 1, 1, tzinfo=UTC),
)  # fmt: skip


W = TypeVar("W", bound="Task[..., Any] | Call[Any]")
H = TypeVar("H", bound="Task[..., Any] | Callable[..., Any]")


class TaskSet:
    """Tasks by name, and schedules that call them, independent of any database."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self.declared_gates: dict[str, Limits] = {}
        """The limits that its tasks declare, by gate."""
        self._declared: dict[str, tuple[ScheduleTiming, Task[..., Any] | Call[Any]]] = {}
        self._on_failed: list[Task[..., Any]] = []

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def find(self, name: str) -> Task[..., Any] | None:
        """The task of this name, if there is one."""
        return self._tasks.get(name)

    def task(
        self,
        *bare: Never,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 5,
        timeout_seconds: float | timedelta | None = None,
        retry: Policy | CustomPolicy | None = None,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        fail_on: tuple[type[BaseException], ...] = (),
        isolation: Isolation = "none",
        gate: Gate | None = None,
        at_most_once: bool = False,
        keep_succeeded_seconds: float | timedelta | None = None,
        keep_other_seconds: float | timedelta | None = None,
        start_within_seconds: float | timedelta | None = None,
        finish_within_seconds: float | timedelta | None = None,
        batch: Batch | None = None,
        on_failed: "Task[..., Any] | Callable[..., Any] | None" = None,
        **unknown: Never,
    ) -> "_Decorator":
        """Register the decorated function as a task: `@app.task()`, `@app.task(queue="mail")`.

        Its jobs are kept for `keep_succeeded_seconds` after they have succeeded, and otherwise for
        `keep_other_seconds`: 0 means not at all, `math.inf` for ever. When a job of it has failed
        for good, a job of the task `on_failed` gets the `FailedJob`.
        """
        if bare:
            raise InvalidInput("write @app.task() with parentheses; its options go between them")
        if unknown:
            known = ", ".join(["name", *TaskOptions.__struct_fields__])
            raise InvalidInput(f"a task has no option {min(unknown)!r}; its options are {known}")
        options = TaskOptions(
            queue=queue, priority=priority, max_attempts=max_attempts,
            timeout_seconds=_seconds(timeout_seconds), retry=retry, retry_on=retry_on,
            fail_on=fail_on, isolation=isolation, gate=gate, at_most_once=at_most_once,
            keep_succeeded_seconds=stored_keep("keep_succeeded_seconds", keep_succeeded_seconds),
            keep_other_seconds=stored_keep("keep_other_seconds", keep_other_seconds),
            start_within_seconds=_seconds(start_within_seconds),
            finish_within_seconds=_seconds(finish_within_seconds), batch=batch,
            on_failed=None if on_failed is None else self._hook_of(on_failed),
        )  # fmt: skip
        return _Decorator(self, name, options)

    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        **timing: Unpack[TimingOptions],
    ) -> Callable[[W], W]:
        """Declare a schedule, above the task: `@app.schedule("0 3 * * *", tz="Europe/Berlin")`.

        Or for a call: `app.schedule("0 3 * * *", name="eu")(report.call("eu"))`. A worker stores it
        when it starts. Without `name` it has the name of its task.
        """
        if callable(cron):
            raise InvalidInput("write @app.schedule(...) with a cron expression or every_seconds=")
        if cron is not None:
            timing["cron"] = cron
        return partial(self._declare, name, timing_of(timing))

    def _declare(self, name: str | None, timing: ScheduleTiming, what: W) -> W:
        if not isinstance(what, Task | Call):
            raise InvalidInput(
                "write @app.schedule(...) above @app.task(), or give it a call of a task, not "
                f"{what!r:.60}"
            )
        task: Task[..., Any] = what if isinstance(what, Task) else what.task
        name = task.name if name is None else name
        check_name("schedule", name)
        if name in self._declared:
            raise InvalidInput(f"two schedules are named {name}; give one of them another name=")
        if isinstance(what, Call) or _can_be_read(what):
            _scheduled(name, timing, what)
        self._declared[name] = (timing, what)
        return what

    def on_failed(self, hook: H) -> H:
        """Call a task when a job of any task has failed for good. It receives a `FailedJob`.

        `@app.on_failed` stands above `@app.task(...)`, or above a function, which becomes a task.
        The call is a job of its own, enqueued in the transaction of the failure; a worker or a
        claimer stores the hook when it starts. The failure of a hook calls no hook.
        """
        task = self._hook_of(hook)
        if task not in self._on_failed:
            self._on_failed.append(task)
        return hook

    def _hook_of(self, hook: object) -> Task[..., Any]:
        """The task of a hook. A function becomes a task."""
        if isinstance(hook, Task):
            return hook
        if not callable(hook):
            raise InvalidInput(f"on_failed takes a task or a function, not {hook!r:.60}")
        for task in self:
            if task.fn is hook:
                return task
        made: Task[..., Any] = _Decorator(self, None, TaskOptions())(hook)
        return made

    def declared_hooks(self) -> list[NewHook]:
        """The declared failure hooks. Refuses a task that cannot receive a `FailedJob`."""
        of_all = [_hook(None, hook) for hook in self._on_failed]
        return of_all + [
            _hook(task.name, task.options_of_task.on_failed)
            for task in self
            if task.options_of_task.on_failed is not None
        ]

    def declared_schedules(self) -> list[NewSchedule]:
        """The declared schedules. Refuses a task that cannot be called without arguments."""
        return [_scheduled(name, timing, what) for name, (timing, what) in self._declared.items()]

    def _take_in(self, other: "TaskSet") -> None:
        for task in other:
            self.add(task)
        for hook in other._on_failed:
            self.on_failed(hook)
        for name, declared in other._declared.items():
            if self._declared.setdefault(name, declared) is not declared:
                raise InvalidInput(
                    f"two schedules are named {name}; give one of them another name="
                )

    def add(self, task: Task[..., Any]) -> None:
        """Register a task. Refuses a second task of the same name."""
        known = self._tasks.get(task.name)
        if known is not None and known is not task:
            raise InvalidInput(f"two tasks are named {task.name}; give one of them another name=")
        gate = task.options_of_task.gate
        if (
            gate is not None
            and self.declared_gates.setdefault(gate.name, gate.limits) != gate.limits
        ):
            raise InvalidInput(
                f"task {task.name} gives gate {gate.name} other limits than another task; use one "
                "Gate for both"
            )
        self._tasks[task.name] = task
        hook = task.options_of_task.on_failed
        if hook is not None and hook.name not in self._tasks:
            self.add(hook)


def _seconds(length: float | timedelta | None) -> float | None:
    return None if length is None else seconds_of(length)


class _Decorator:
    """`@app.task(...)`, typed: drops the injected `Running` from the parameters."""

    def __init__(self, tasks: TaskSet, name: str | None, options: TaskOptions) -> None:
        self._tasks = tasks
        self._name = name
        self._options = options

    # A first parameter that accepts anything accepts a Running too: such a task is not checked.
    @overload
    def __call__(
        self, fn: Callable[Concatenate[object, ...], Awaitable[R | Instead]]
    ) -> Task[..., R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[object, ...], R | Instead]) -> Task[..., R]: ...
    # A batch handler: a call has one argument, that of one item.
    @overload
    def __call__(
        self, fn: Callable[[list[Item[A]]], Awaitable[Sequence[R | Exception | Instead]]]
    ) -> Task[[A], R]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Item[A]]], Sequence[R | Exception | Instead]]
    ) -> Task[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[J, P], Awaitable[R | Instead]]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[J, P], R | Instead]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R | Instead]]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R | Instead]) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Task[..., Any]:
        _check_function(fn)
        if self._name is None and fn.__name__ == "<lambda>":
            raise InvalidInput('a lambda has no name: write task(name="shop.send")(...), or a def')
        name = task_name(fn) if self._name is None else self._name
        task: Task[..., Any] = Task(fn, name, self._options)
        self._tasks.add(task)
        return task


def _check_function(fn: Any) -> None:
    if not callable(fn) or inspect.isclass(fn) or not hasattr(fn, "__qualname__"):
        raise InvalidInput(f"a task must be a function, not {fn!r:.60}; write a def that calls it")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidInput(
            f"{fn.__qualname__} is a generator, and nothing consumes its items; return a list, or "
            "enqueue a job for each item"
        )
    _check_first_parameter(fn)


def _check_first_parameter(fn: Callable[..., Any]) -> None:
    """Refuse a first parameter that no caller has a value for.

    Only if it has no annotation: a caller's first argument would take its place.
    """
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None or first.annotation is not first.empty or fn.__name__ == "<lambda>":
        return
    in_class = "." in fn.__qualname__.rpartition("<locals>.")[2]
    if first.name in ("self", "cls") and in_class:
        raise InvalidInput(
            f"{fn.__qualname__} is a method, which cannot be a task: nothing gives it its "
            f"{first.name}; write a function"
        )
    if first.name in ("self", "cls", "job", "ctx"):
        raise InvalidInput(
            f"the first parameter of {fn.__qualname__} has no annotation: if {first.name} is the "
            f"running job, write {first.name}: Running; if callers give it, annotate its type"
        )


def task_name(fn: Callable[..., Any]) -> str:
    """`module.function`, the same name whether the module is imported or run.

    `python -m shop.jobs` gives `shop.jobs`; `python jobs.py` gives `jobs`.
    """
    module = fn.__module__
    if module in ("__main__", "__mp_main__"):
        # Where it is defined: while multiprocessing loads a script, __main__ is another module.
        main = getattr(inspect.unwrap(fn), "__globals__", vars(sys.modules["__main__"]))
        spec, file = main.get("__spec__"), main.get("__file__")
        if spec is not None and spec.name != "__mp_main__":
            module = spec.name
        else:  # "<stdin>" is no file
            module = Path(file).stem if file and not file.startswith("<") else "main"
    return f"{module}.{fn.__qualname__}"


def _new_job(task: Task[..., Any], args: Json, chosen: CallOptions) -> NewJob:
    options = task.options_of_task
    parent = current()
    if parent is None and chosen is _NO_OPTIONS:  # the usual case
        return NewJob(
            task=task.name, args=args, queue=options.queue, priority=options.priority,
            max_attempts=options.max_attempts, timeout_seconds=options.timeout_seconds,
            retry=task.stored_retry, needs=task.needs, at_most_once=options.at_most_once,
            keep_succeeded_seconds=options.keep_succeeded_seconds,
            keep_other_seconds=options.keep_other_seconds,
            start_within_seconds=options.start_within_seconds,
            finish_within_seconds=options.finish_within_seconds,
        )  # fmt: skip
    metadata = _metadata(parent, chosen.metadata)
    return NewJob(
        task=task.name,
        args=args,
        queue=options.queue if chosen.queue is None else chosen.queue,
        priority=options.priority if chosen.priority is None else chosen.priority,
        delay_seconds=chosen.delay_seconds,
        due_at=chosen.due_at,
        tenant=_tenant(parent, chosen.tenant),
        unique=_unique(chosen),
        max_attempts=options.max_attempts if chosen.max_attempts is None else chosen.max_attempts,
        timeout_seconds=(
            options.timeout_seconds if chosen.timeout_seconds is None else chosen.timeout_seconds
        ),
        retry=task.stored_retry,
        metadata=encode(metadata, what="metadata") if metadata else None,
        parents=_parents(chosen.parents),
        needs=task.needs,
        at_most_once=options.at_most_once,
        keep_succeeded_seconds=(
            options.keep_succeeded_seconds
            if chosen.keep_succeeded_seconds is None
            else chosen.keep_succeeded_seconds
        ),
        keep_other_seconds=(
            options.keep_other_seconds
            if chosen.keep_other_seconds is None
            else chosen.keep_other_seconds
        ),
        expires_at=chosen.expires_at,
        start_within_seconds=_within(
            chosen.expires_at, chosen.start_within_seconds, options.start_within_seconds
        ),
        finish_by=chosen.finish_by,
        finish_within_seconds=_within(
            chosen.finish_by, chosen.finish_within_seconds, options.finish_within_seconds
        ),
    )


def _within(at: datetime | None, chosen: float | None, of_task: float | None) -> float | None:
    """The seconds until a deadline: of the call, or of its task if the call names no time."""
    return of_task if at is None and chosen is None else chosen


def _unique(chosen: CallOptions) -> Unique | None:
    unique: object = chosen.unique
    if not (unique is None or isinstance(unique, Unique)):
        raise InvalidInput(
            f"unique must be a Unique(key=...), not {unique!r:.60}; give a string as key="
        )
    replace = _replacement(chosen.replace)
    if chosen.key is None:
        if replace is not None:
            raise InvalidInput("replace= needs key=; with unique=, give Unique(on_conflict=...)")
        return unique
    if unique is not None:
        raise InvalidInput("give key= or unique=, not both")
    return Unique(key=chosen.key, on_conflict=replace)


def _replacement(given: object) -> Replace | None:
    if isinstance(given, bool):
        return Replace() if given else None
    if isinstance(given, Replace):
        return given
    raise InvalidInput(f"replace must be True or a Replace(...), not {given!r:.60}")


def _parents(given: object) -> tuple[int, ...]:
    """Job ids from handles, jobs or ints; `NewJob` validates the rest."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InvalidInput(f"parents takes a list of handles or ids: write parents=[{given!r:.60}]")
    ids: list[Any] = [getattr(parent, "id", parent) for parent in given]
    return tuple(ids)


def _tenant(parent: Running | None, chosen: str | None) -> str:
    """A job that a handler enqueues belongs to the handler's tenant."""
    if parent is None or not parent.tenant:
        return chosen or ""
    if chosen is not None and chosen != parent.tenant:
        raise TenantMismatch(
            f"a job of tenant {parent.tenant!r} cannot enqueue for tenant {chosen!r}"
        )
    return parent.tenant


def _metadata(
    parent: Running | None, chosen: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """A job that a handler enqueues inherits the handler's trace."""
    if not (chosen is None or isinstance(chosen, Mapping)):
        raise InvalidInput(f"metadata must be a mapping from names to values, not {chosen!r:.60}")
    trace = None if parent is None else parent.metadata.get(TRACE)
    return chosen if trace is None else {TRACE: trace} | dict(chosen or {})
