"""The connection is cut at every single message of an operation, in both directions.

Before message n: it is the first that does not arrive. After message n: it is the last that does.
One deed begins with the connect, so that the handshake is cut as well. The store tries again by itself; its caller sees no error, the answer of an undisturbed
call, and a database that agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy import SIDES, Fault, Side, Way
from tests.wire.bench import Bench
from tests.wire.deeds import DEEDS

FEWEST = 5
"""Every deed has more messages than this."""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["before", "after"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", DEEDS)
def test_every_message_is_cut_once(bench: Bench, name: str, side: Side, way: Way) -> None:
    kinds = bench.listen(DEEDS[name])[side]
    numbers = list(worth_cutting(kinds))
    assert len(numbers) > FEWEST
    for number in numbers:
        fault = Fault(side, number, way)
        try:
            bench.do(DEEDS[name], fault)
            assert fault.times == 1
        except BaseException as error:
            error.add_note(f"{name}: cut {way} message {number} of the {side}: {kinds}")
            raise


def worth_cutting(kinds: str) -> Iterator[int]:
    """All of them, except in the middle of many alike: libpq has no row until all are there."""
    for number in range(1, len(kinds) + 1):
        around = kinds[max(0, number - 3) : number + 2]
        if len(around) < 5 or len(set(around)) > 1:
            yield number
