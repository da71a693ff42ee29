"""Follow the feed of finished jobs: read a page, hand it out, move on; rest if there is none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

from tenure.errors import ReaderNotFound
from tenure.rules.ends import Ended
from tenure.store import AsyncStore, Store

FIRST_REST_SECONDS = 0.01
LONGEST_REST_SECONDS = 0.5


def follow_feed(
    store: Callable[[], Store],
    reader: str,
    *,
    wait: bool,
    limit: int,
    rest: Callable[[float], object] = time.sleep,
) -> Iterator[Ended]:
    """The ends for this reader. A page is done when the consumer asks for what comes after it.

    `rest` waits for some seconds; it ends the loop by returning True.
    """
    seconds = FIRST_REST_SECONDS
    while True:
        try:
            page = store().read_feed(reader, limit=limit)
        except ReaderNotFound:
            store().add_reader(reader)
            page = store().read_feed(reader, limit=limit)
        yield from page.ends
        if page.position > page.since:
            store().move_reader(reader, page.position)
            seconds = FIRST_REST_SECONDS
            continue
        if not wait or rest(seconds) is True:
            return
        seconds = min(2 * seconds, LONGEST_REST_SECONDS)


async def follow_feed_async(
    store: Callable[[], AsyncStore], reader: str, *, wait: bool, limit: int
) -> AsyncIterator[Ended]:
    """The same for callers on an event loop."""
    seconds = FIRST_REST_SECONDS
    while True:
        try:
            page = await store().read_feed(reader, limit=limit)
        except ReaderNotFound:
            await store().add_reader(reader)
            page = await store().read_feed(reader, limit=limit)
        for end in page.ends:
            yield end
        if page.position > page.since:
            await store().move_reader(reader, page.position)
            seconds = FIRST_REST_SECONDS
            continue
        if not wait:
            return
        await asyncio.sleep(seconds)
        seconds = min(2 * seconds, LONGEST_REST_SECONDS)
