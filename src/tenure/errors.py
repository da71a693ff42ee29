"""Everything Tenure raises on purpose. Each message says what is wrong and names the fix.

Three families: what the caller got wrong (`InvalidInput`), what the store cannot do right now
(`StoreError`), and what the life cycle forbids (`LeaseLost`, `KeyTaken`, `JobNotFound`).
"""


class TenureError(Exception):
    """The root of all errors of this library."""


class InvalidInput(TenureError, ValueError):
    """The caller passed something that can never be accepted. Nothing was written."""


class InvalidName(InvalidInput):
    """A queue, task, worker, tenant or key name is empty, too long or has forbidden characters."""


class OutOfRange(InvalidInput):
    """A number or a time lies outside its documented range, or a datetime has no time zone."""


class PayloadInvalid(InvalidInput):
    """A value cannot be stored as strict JSON, or stored JSON does not fit the expected type."""


class PayloadTooLarge(InvalidInput):
    """The encoded value is larger than the limit."""


class ValueRefused(InvalidInput):
    """The database refused a value, by its type or by a constraint. Nothing was written."""


class ConfigError(InvalidInput):
    """A URL or a setting is wrong."""


class InvalidCron(InvalidInput):
    """A cron expression cannot be read, or names a day that never comes."""


class UnknownZone(InvalidInput):
    """This machine does not know the time zone."""


class InvalidWorkflow(InvalidInput):
    """The nodes of a workflow do not fit together: a circle, a name used twice, no such parent."""


class TenantMismatch(InvalidInput):
    """A store of one tenant was handed a job of another, or asked for what concerns all of them."""


class StoreError(TenureError):
    """The database could not do what was asked. Nothing was kept, except with `OutcomeUnknown`."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away and did not come back in time."""


class OutcomeUnknown(StoreUnavailable):
    """The answer to a COMMIT did not come, or not in time: it may have been kept, or not."""


class StoreBusy(StoreUnavailable):
    """Somebody else held a lock for longer than this operation may wait."""


class StoreReadOnly(StoreError):
    """The database, or this role, does not allow writing."""


class StoreFull(StoreError):
    """The disk, or the size limit of the database, is used up."""


class UnsafeSQLite(StoreError):
    """Opening this file this way could lose committed data."""


class SchemaError(StoreError):
    """The tables in the database do not fit this version of the code."""


class SchemaMissing(SchemaError):
    """There is no Tenure schema in this database yet."""


class SchemaTooOld(SchemaError):
    """The schema must be migrated before this code can use it."""


class SchemaTooNew(SchemaError):
    """The schema has moved on; this code is too old to use it."""


class LeaseLost(TenureError):
    """The job is no longer ours: its token moved on or our lease is gone. Nothing was written."""


class StepConflict(TenureError):
    """The name of a step stands for another one of the same job. Nothing was recorded."""


class TooManySteps(TenureError):
    """The job has recorded as many steps as it may, or as much in them. Nothing was recorded."""


class JobNotFound(TenureError, LookupError):
    """No such job, or not one that this tenant may touch."""


class ScheduleNotFound(TenureError, LookupError):
    """No schedule of this name, or not one that this tenant may touch."""


class ScheduleExists(TenureError):
    """A schedule of this name is there already. Nothing was changed."""


class GateNotFound(TenureError, LookupError):
    """No gate of this name. Nothing was changed."""


class WorkflowNotFound(TenureError, LookupError):
    """No such workflow, or not one that this tenant may touch."""


class KeyTaken(TenureError):
    """Refused: another live job holds a unique key that a replay or a workflow needs."""


class StillInUse(TenureError):
    """A copy was refused: a worker is alive, or a job is running. Nothing was copied."""


class CopyConflict(TenureError):
    """Source and target of a copy differ where they must not. Nothing was overwritten."""


class MeasurementFailed(TenureError):
    """A benchmark did something else than it says, so there are no figures."""


class WaitTimeout(TenureError, TimeoutError):
    """The job was not finished when the waiting time was over. The job goes on."""


class JobFailed(TenureError):
    """The job that was waited for ended without a result: failed, cancelled or skipped."""

    def __init__(self, message: str, *, state: str, error: str | None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error


class WorkflowFailed(TenureError):
    """The workflow that was waited for ended without success: failed or cancelled."""

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class AttemptTimedOut(TenureError):
    """An attempt ran longer than its job allows. Recorded with the job, not raised to callers."""


class NotCommitted(TenureError):
    """A handler completed its job in a transaction that did not commit. Recorded with the job."""


class ChildDied(TenureError):
    """The child process that ran an attempt ended before its handler did. Recorded with the job."""
