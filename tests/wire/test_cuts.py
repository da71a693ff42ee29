"""The connection is cut at every single message of an operation, in both directions.

Before message n: it is the first that does not arrive. After message n: it is the last that does.
One deed begins with the connect, so that the handshake is cut as well. The store tries again by
itself; its caller sees no error, the answer of an undisturbed call, and a database that agrees with
it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tests.conftest import Count
from tests.support.proxy import Fault
from tests.wire.bench import Bench
from tests.wire.conftest import Share
from tests.wire.deeds import DEEDS

pytestmark = pytest.mark.slow

FEWEST = 30
"""Every deed has more places for a cut than this."""
IN_STEPS = {
    "sweep", "prune what was kept for a time", "expire", "expire with a reader", "count live jobs",
}  # fmt: skip
"""Several transactions: when one of them is never answered, earlier ones are kept."""

NOTHING = object()

every_deed = pytest.mark.parametrize("name", DEEDS)


@every_deed
def test_every_message_is_cut_once(bench: Bench, share: Share, name: str, count: Count) -> None:
    faults = bench.faults(DEEDS[name], "before", "after")
    assert len(faults) > FEWEST
    chosen = share(faults, 1)
    if bench.colour == "postgres-sync":  # the other one sends as many
        count("messages at which a wire may be cut", len(faults) // 2)
    count("single cuts", len(chosen))
    for fault in chosen:
        try:
            bench.do(DEEDS[name], fault)
            assert fault.times == 1
        except BaseException as error:
            error.add_note(f"{name}: {fault}")
            raise


@every_deed
def test_who_is_cut_every_time_is_told_the_truth(
    bench: Bench, share: Share, name: str, count: Count
) -> None:
    """`StoreUnavailable` means that nothing was kept. Only `OutcomeUnknown` leaves it open."""
    chosen = share(bench.faults(DEEDS[name], "before", "after", again=True), 3)
    count("cuts at every try", len(chosen))
    for fault in chosen:
        try:
            cut_every_time(bench, name, fault)
        except BaseException as error:
            error.add_note(f"{name}: {fault}")
            raise


def cut_every_time(bench: Bench, name: str, fault: Fault) -> None:
    deed = bench.lay(DEEDS[name])
    before = bench.rows()
    answer: Any = NOTHING
    with bench.far(give_up_seconds=0.05) as store:
        bench.warm(store, DEEDS[name])
        try:
            with bench.struck(store, fault):
                answer = deed.do(store)
        except OutcomeUnknown:
            bench.rows()
        except StoreUnavailable:
            assert bench.rows() == before or name in IN_STEPS
    if answer is not NOTHING:  # the cut came after the last message
        with bench.far() as store:
            deed.check(answer, store)
    assert fault.times
    bench.forget()
