"""When to try again: retry policies, stored as JSON with their job.

    Exponential    1 s, 2 s, 4 s ... up to a cap, each a random part of it (full jitter); default
    Fixed          always the same delay
    Delays         an explicit list; the last delay repeats

The jitter spreads the retries of jobs that failed together. The policy is chosen at enqueue and
stored with the job. A function `(attempts) -> seconds` may be used instead; it is code, so the
worker has it and it is never stored. Pure: the caller supplies the randomness.
"""

import math
import sys
from collections.abc import Callable
from typing import TypeAlias, assert_never

import msgspec

from tenure.errors import InvalidInput, OutOfRange, PayloadInvalid
from tenure.rules.job import Json
from tenure.rules.limits import MAX_ATTEMPTS_LIMIT, MAX_SECONDS, check_seconds


class Exponential(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="exponential"):
    """Wait at most `base_seconds * factor**attempts`, and never more than `cap_seconds`."""

    base_seconds: float = 1.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        check_seconds("base_seconds", self.base_seconds)
        check_seconds("cap_seconds", self.cap_seconds)
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float):
            raise OutOfRange(f"factor must be a number, not a {type(self.factor).__name__}")
        if not 1 <= self.factor <= sys.float_info.max:  # also refuses NaN
            raise OutOfRange(
                "factor must be finite and at least 1: use 1 for equal delays, 2 to double them"
            )
        if type(self.jitter) is not bool:
            raise OutOfRange("jitter must be True or False")


class Fixed(msgspec.Struct, frozen=True, tag_field="kind", tag="fixed"):
    """Wait the same time before every retry."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("seconds", self.seconds)


class Delays(msgspec.Struct, frozen=True, tag_field="kind", tag="delays"):
    """Wait `seconds[0]` before the first retry, and so on; the last delay repeats."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if type(self.seconds) is not tuple or not self.seconds:
            raise OutOfRange("seconds must be a tuple of at least one delay, such as (10, 60, 300)")
        if len(self.seconds) > MAX_ATTEMPTS_LIMIT:
            raise OutOfRange(
                f"seconds has {len(self.seconds):,} delays, but a job has at most "
                f"{MAX_ATTEMPTS_LIMIT:,} attempts; remove the rest, the last delay repeats"
            )
        for index, wait in enumerate(self.seconds):
            check_seconds(f"seconds[{index}]", wait)


Policy: TypeAlias = Exponential | Fixed | Delays
"""What can be stored with a job."""

CustomPolicy: TypeAlias = Callable[[int], float]
"""A function in the worker's code: attempts -> seconds."""

DEFAULT_POLICY = Exponential()


def delay_seconds(
    policy: Policy | CustomPolicy, attempts: int, random: Callable[[], float]
) -> float:
    """How long to wait before the next attempt: finite, from 0 to the limit of the policy.

    `attempts` is the job's count at the claim, as `lifecycle` uses it: charged attempts without the
    one that just failed, so 0 before the first retry. Any number is accepted. `random` returns
    numbers from 0 to 1.
    """
    retry = max(0, attempts)
    match policy:
        case Exponential():
            limit = _exponential_limit(policy, retry)
            return limit * min(1.0, max(0.0, random())) if policy.jitter else limit
        case Fixed():
            return float(policy.seconds)
        case Delays():
            return float(policy.seconds[min(retry, len(policy.seconds) - 1)])
        case _ if callable(policy):
            return _custom_delay(policy, attempts)
        case _:
            assert_never(policy)


def dump_policy(policy: Policy) -> Json:
    """The policy as JSON, which `load_policy` of this and later versions can read."""
    if not isinstance(policy, Policy):
        raise InvalidInput(
            "only Exponential, Fixed and Delays can be stored with a job; "
            "to use a function, pass it to the task as retry="
        )
    return Json(_encoder.encode(policy))


def load_policy(data: str | bytes | None) -> Policy:
    """The stored policy, checked again; the default policy for None."""
    if data is None:
        return DEFAULT_POLICY
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(
            f"the stored retry policy cannot be read: {error}; enqueue the job again, or update "
            "the worker if a newer version stored the policy"
        ) from error


def _exponential_limit(policy: Exponential, retry: int) -> float:
    if not policy.base_seconds:
        return 0.0
    try:
        # Bounded, because an exponent beyond 10**308 cannot be converted to a float.
        wait = policy.base_seconds * float(policy.factor) ** min(retry, 10**9)
    except OverflowError:
        return float(policy.cap_seconds)
    return float(min(policy.cap_seconds, wait))


def _custom_delay(policy: CustomPolicy, attempts: int) -> float:
    wait: object = policy(attempts)
    is_nan = isinstance(wait, float) and math.isnan(wait)
    if is_nan or isinstance(wait, bool) or not isinstance(wait, int | float):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        shown = "NaN" if is_nan else f"a value of type {type(wait).__name__}"
        raise OutOfRange(
            f"retry policy {name} returned {shown} for attempts={attempts}; "
            "return the number of seconds to wait, as an int or a float"
        )
    return float(min(MAX_SECONDS, max(0, wait)))


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Policy] = msgspec.json.Decoder(Policy)
