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
from tests.support.proxy import SIDES, Fault, Side, Way
from tests.wire.bench import Bench, worth_a_fault
from tests.wire.conftest import Share
from tests.wire.deeds import DEEDS

pytestmark = pytest.mark.slow

FEWEST = 5
"""Every deed has more messages than this."""
IN_STEPS = {"claim", "sweep"}
"""Several transactions: when one of them is never answered, earlier ones are kept."""

NOTHING = object()

every_deed = pytest.mark.parametrize("name", DEEDS)
every_side = pytest.mark.parametrize("side", SIDES)
every_way = pytest.mark.parametrize("way", ["before", "after"])


@every_way
@every_side
@every_deed
def test_every_message_is_cut_once(
    bench: Bench, share: Share, name: str, side: Side, way: Way
) -> None:
    kinds = bench.listen(DEEDS[name])[side]
    numbers = list(worth_a_fault(kinds))
    assert len(numbers) > FEWEST
    for number in share(numbers):
        fault = Fault(side, number, way)
        try:
            bench.do(DEEDS[name], fault)
            assert fault.times == 1
        except BaseException as error:
            error.add_note(f"{name}: cut {way} message {number} of the {side}: {kinds}")
            raise


@every_way
@every_side
@every_deed
def test_who_is_cut_every_time_is_told_the_truth(
    bench: Bench, share: Share, name: str, side: Side, way: Way
) -> None:
    """`StoreUnavailable` means that nothing was kept. Only `OutcomeUnknown` leaves it open."""
    kinds = bench.listen(DEEDS[name])[side]
    for number in share(worth_a_fault(kinds), rarer=2):
        try:
            cut_every_time(bench, name, Fault(side, number, way, again=True))
        except BaseException as error:
            error.add_note(f"{name}: always cut {way} message {number} of the {side}: {kinds}")
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
