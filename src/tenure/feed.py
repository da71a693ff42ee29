"""Follow the feed of finished jobs: read a page, hand it out, move on; rest if there is none."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

from tenure.errors import FeedMissed, InvalidInput, ReaderNotFound, TenureError
from tenure.rules.ends import Ended
from tenure.rules.limits import not_this
from tenure.store import AsyncStore, Store

FIRST_REST_SECONDS = 0.01
LONGEST_REST_SECONDS = 0.5
LISTENER_SECONDS = 600.0
"""The feed waits this long for a listener without a name, whose process may have died."""
PAGE = 100

log = logging.getLogger("tenure.feed")
Stores = Callable[[], Store]


def follow_feed(store: Stores, name: str, *, wait: bool, limit: int) -> Iterator[Ended]:
    """The ends for this reader. A page is done when the consumer asks for what comes after it."""
    seconds = FIRST_REST_SECONDS
    while True:
        try:
            page = store().read_feed(name, limit=limit)
        except ReaderNotFound:
            store().add_reader(name)
            page = store().read_feed(name, limit=limit)
        yield from page.ends
        if page.position > page.since:
            store().move_reader(name, page.position)
            seconds = FIRST_REST_SECONDS
        elif wait:
            time.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_REST_SECONDS)
        else:
            return


async def follow_feed_async(
    store: Callable[[], AsyncStore], name: str, *, wait: bool, limit: int
) -> AsyncIterator[Ended]:
    """The same for callers on an event loop."""
    seconds = FIRST_REST_SECONDS
    while True:
        try:
            page = await store().read_feed(name, limit=limit)
        except ReaderNotFound:
            await store().add_reader(name)
            page = await store().read_feed(name, limit=limit)
        for end in page.ends:
            yield end
        if page.position > page.since:
            await store().move_reader(name, page.position)
            seconds = FIRST_REST_SECONDS
        elif wait:
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_REST_SECONDS)
        else:
            return


class Listening:
    """A function is called with each end, from a thread, until `stop`."""

    def __init__(
        self, store: Stores, call: Callable[[Ended], object], reader: str | None = None
    ) -> None:
        """`reader`: the name of a reader that outlives this process."""
        if not callable(call):
            raise InvalidInput(f"listen_everywhere takes a function, {not_this(call)}")
        self._store = store
        self._call = call
        self._is_lasting = reader is not None
        self._name = reader or f"listener-{secrets.token_hex(8)}"
        self._stopping = threading.Event()
        self._add()
        self._thread = threading.Thread(target=self._run, name="tenure-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the last call has ended: none comes after that."""
        self._stopping.set()
        if threading.current_thread() is self._thread:
            return
        self._thread.join()
        if not self._is_lasting:
            self._store().remove_reader(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _add(self) -> None:
        if self._is_lasting:
            self._store().add_reader(self._name)
        else:
            self._store().add_reader(self._name, kept_seconds=LISTENER_SECONDS)

    def _run(self) -> None:
        seconds, failing = FIRST_REST_SECONDS, False
        while not self._stopping.is_set():
            try:
                moved = self._read_page()
                failing = False
            except TenureError as error:
                if not failing:  # logged once: an outage must not fill the disk
                    log.warning("a listener cannot read the feed, trying again: %s", error)
                moved, failing = False, True
            seconds = FIRST_REST_SECONDS if moved else min(2 * seconds, LONGEST_REST_SECONDS)
            if not moved:
                self._stopping.wait(seconds)

    def _read_page(self) -> bool:
        """Make the calls of one page. Returns whether there were any ends."""
        store = self._store()
        try:
            page = store.read_feed(self._name, limit=PAGE)
        except (FeedMissed, ReaderNotFound) as error:
            log.warning("a listener has missed ends, and goes on from now: %s", error)
            store.remove_reader(self._name)
            self._add()
            return False
        position = page.since
        for end in page.ends:
            if self._stopping.is_set():
                break
            try:
                self._call(end)
            except Exception:
                log.exception("a listener failed for job %d of %s", end.id, end.task)
            position = end.place
        else:
            position = page.position
        if position > page.since:
            store.move_reader(self._name, position)
        return position > page.since
