"""A warning for synchronous calls that block an event loop: once for each line of code."""

import logging
import sys
from types import FrameType

MAX_PLACES = 1000

log = logging.getLogger("tenure.client")
_told: set[tuple[str, int]] = set()


def warn_of_blocking() -> None:
    """A synchronous operation is about to run in a thread with a running event loop.

    In a notebook every line runs on such a loop, and blocks nothing.
    """
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tenure."):
        name = _method(frame)
        frame = frame.f_back
    if frame is None or "ipykernel" in sys.modules:
        return
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place not in _told and len(_told) < MAX_PLACES:
        _told.add(place)
        log.warning(
            "%s() blocks the event loop; use 'await ...%s_async()' (%s, line %d)",
            name, name, *place,
        )  # fmt: skip


def _method(frame: FrameType) -> str:
    """The name of the method that runs here; `both` makes several from one function."""
    body, owner = frame.f_locals.get("body"), frame.f_locals.get("self")
    for kind in type(owner).__mro__ if body is not None else ():
        for name, method in vars(kind).items():
            if getattr(method, "__wrapped__", None) is body:  # the one that blocks comes first
                return name
    return frame.f_code.co_name
