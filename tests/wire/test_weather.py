"""A wire that is slow, that brings every byte by itself, or that swallows what it is given."""

from __future__ import annotations

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tests.conftest import Count
from tests.support.proxy import SIDES, Fault, Side
from tests.wire.bench import Bench
from tests.wire.conftest import Share
from tests.wire.deeds import DEEDS, Settle

RARER = 4
"""Each takes a third of a second and more; a connect takes two seconds before it is given up."""

every_deed = pytest.mark.parametrize("name", DEEDS)
every_side = pytest.mark.parametrize("side", SIDES)


@every_deed
def test_every_byte_comes_by_itself(bench: Bench, name: str) -> None:
    bench.proxy.split = True
    bench.do(DEEDS[name], None)


@pytest.mark.slow
@every_deed
def test_every_message_takes_its_time(bench: Bench, name: str) -> None:
    bench.proxy.slow_seconds = 0.002
    bench.do(DEEDS[name], None)


@pytest.mark.slow
@every_deed
def test_from_some_message_on_all_is_swallowed(
    bench: Bench, share: Share, name: str, count: Count
) -> None:
    """Half-open: nothing arrives, and nothing is closed. The store goes on by another connection.

    Silence that lasts a third of a second is long enough here. Should the machine be that slow, it
    only tries once more.
    """
    chosen = share(bench.faults(DEEDS[name], "swallow")[::RARER], 1)
    count("half-open wires", len(chosen))
    for fault in chosen:
        try:
            bench.do(DEEDS[name], fault, silence_seconds=0.3)
            assert fault.times == 1
        except BaseException as error:
            error.add_note(f"{name}: {fault}")
            raise


@pytest.mark.slow
@every_side
def test_an_operation_gives_up_on_a_wire_that_swallows_everything(bench: Bench, side: Side) -> None:
    deed = bench.lay(Settle)
    before = bench.rows()
    with bench.far(give_up_seconds=0.2) as store:
        bench.warm(store, Settle)
        fault = Fault(side, 4, "swallow", again=True)
        with (
            pytest.raises(StoreUnavailable, match=r"no answer for 0\.3 s|timeout expired"),
            bench.struck(store, fault, silence_seconds=0.3),
        ):
            deed.do(store)
        assert bench.rows() == before
    with bench.far() as store:
        deed.check(deed.do(store), store)


@pytest.mark.slow
def test_an_answer_to_commit_that_was_swallowed_may_mean_anything(bench: Bench) -> None:
    commit = len(bench.listen(Settle)["client"])
    deed = bench.lay(Settle)
    with bench.far(give_up_seconds=0.2) as store:
        bench.warm(store, Settle)
        with (
            pytest.raises(OutcomeUnknown, match="it may have been kept"),
            bench.struck(store, Fault("client", commit, "swallow"), silence_seconds=0.3),
        ):
            deed.do(store)
    with bench.far() as store:
        deed.check(deed.do(store), store)
