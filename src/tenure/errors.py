"""Every error that Tenure raises. Each message says what is wrong and names the fix.

Three families: the caller passed a wrong value (`InvalidInput`), the store cannot do it right now
(`StoreError`), or the life cycle forbids it (`LeaseLost`, `KeyTaken`, `JobNotFound`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.rules.job import ErrorInfo


class TenureError(Exception):
    """The base class of all errors of this library."""


class InvalidInput(TenureError, ValueError):
    """The caller passed a value that is never accepted. Nothing was written."""


class InvalidName(InvalidInput):
    """A queue, task, worker, tenant or key name is empty, too long or has forbidden characters."""


class NoSuchMethod(InvalidInput, AttributeError):
    """A task has no method of this name; other job queues have it."""


class OutOfRange(InvalidInput):
    """A number or a time is outside its documented range, or a datetime has no time zone."""


class PayloadInvalid(InvalidInput):
    """A value cannot be stored as strict JSON, or stored JSON does not fit the expected type."""


class PayloadTooLarge(InvalidInput):
    """The encoded value is larger than the limit."""


class ValueRefused(InvalidInput):
    """The database refused a value because of its type or a constraint. Nothing was written."""


class ConfigError(InvalidInput):
    """A URL or a setting is wrong, or the database that the URL names has another encoding."""


class InvalidCron(InvalidInput):
    """A cron expression cannot be read, or names a date that does not exist."""


class UnknownZone(InvalidInput):
    """This machine does not know the time zone."""


class InvalidFilter(InvalidInput):
    """A filter cannot be read: an unknown field, a bad value, a missing quote, a wrong cursor."""

    def __init__(self, message: str, *, position: int = 0) -> None:
        super().__init__(message)
        self.position = position
        """Where in the text of the filter, counted from 0."""


class InvalidWorkflow(InvalidInput):
    """The graph of a workflow is invalid: a cycle, a name used twice, a missing parent."""


class TenantMismatch(InvalidInput):
    """A store of one tenant received a job of another tenant, or an operation on all tenants."""


class StoreError(TenureError):
    """The database refused or failed. Nothing was written, except perhaps with `OutcomeUnknown`."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or was lost and did not come back in time."""


class OutcomeUnknown(StoreUnavailable):
    """The reply to a COMMIT did not arrive in time: the transaction may be committed or not."""


class StoreBusy(StoreUnavailable):
    """Another transaction had a lock for longer than this operation may wait."""


class RowsLocked(StoreBusy):
    """Another transaction has locked rows that this operation needs. Other operations continue."""


class StoreReadOnly(StoreError):
    """The database, or this role, does not allow writing."""


class StoreFull(StoreError):
    """The disk is full, or the database has reached its size limit."""


class UnsafeSQLite(StoreError):
    """Opening this file this way could lose committed data."""


class SchemaError(StoreError):
    """The tables in the database do not fit this version of the code."""


class SchemaMissing(SchemaError):
    """There is no Tenure schema in this database yet."""


class SchemaTooOld(SchemaError):
    """The schema must be migrated before this code can use it."""


class SchemaTooNew(SchemaError):
    """The schema is newer than this code can use."""


class LeaseLost(TenureError):
    """The attempt no longer owns its job: its token or lease is outdated. Nothing was written."""


class WorkerStopping(TenureError):
    """The worker shuts down and has told the attempt to stop. The job is put back, uncharged."""


class LoopMisused(TenureError, RuntimeError):
    """A handler tried to stop or close the event loop of its worker, or to cancel its tasks."""


class StepConflict(TenureError):
    """Another step of the same job already has this name. Nothing was recorded."""


class TooManySteps(TenureError):
    """The job has too many steps, or their results are too large together. Nothing was recorded."""


class JobNotFound(TenureError, LookupError):
    """No such job, or it belongs to another tenant."""


class JobGone(JobNotFound):
    """The job has existed, and is no longer stored: finished jobs of its task are not kept, or it
    was pruned or deleted."""


class ClockDoubted(TenureError):
    """The clock has jumped ahead, so prune does not delete jobs by it. Nothing was deleted."""


class ScheduleNotFound(TenureError, LookupError):
    """No schedule of this name, or it belongs to another tenant."""


class ScheduleExists(TenureError):
    """A schedule of this name already exists. Nothing was changed."""


class GateNotFound(TenureError, LookupError):
    """No gate of this name. Nothing was changed."""


class ReaderNotFound(TenureError, LookupError):
    """No reader of the feed has this name."""


class FeedMissed(TenureError):
    """A reader of the feed was away for too long: ends that it has not read are gone."""


class WorkflowNotFound(TenureError, LookupError):
    """No such workflow, or it belongs to another tenant."""


class KeyTaken(TenureError):
    """Another live job has the unique key that a replay or a workflow needs. Nothing changed."""


class StillInUse(TenureError):
    """A copy was refused because a worker is alive or a job is running. Nothing was copied."""


class CopyConflict(TenureError):
    """The target of a copy has rows that differ from the source. Nothing was overwritten."""


class MeasurementFailed(TenureError):
    """A benchmark did not run as planned, so there are no figures."""


class WaitTimeout(TenureError, TimeoutError):
    """The job did not finish within the waiting time. The job is not affected."""


class BlockingWait(InvalidInput):
    """A blocking `wait` would stop the event loop of a worker, and with it the job it waits for."""


class JobFailed(TenureError):
    """The awaited job finished without a result: failed, cancelled or skipped."""

    def __init__(self, message: str, *, state: str, error: "ErrorInfo | None") -> None:
        super().__init__(message)
        self.state = state
        self.error = error


class WorkflowFailed(TenureError):
    """The awaited workflow ended without success: failed or cancelled."""

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class AttemptTimedOut(TenureError):
    """An attempt ran longer than its timeout. Recorded with the job, not raised to callers."""


class UnknownTask(TenureError):
    """No worker has had the task of a job for too long. Recorded with the job."""


class NotCommitted(TenureError):
    """A transaction did not commit: that in which a handler ended its job, or `transaction()`."""


class ChildDied(TenureError):
    """The child process that ran an attempt ended before its handler did. Recorded with the job."""
