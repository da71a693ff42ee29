"""Run a server that never outlives the process that asked for it.

Run as a script: `watchdog.py DIRECTORY LOG UID:GID COMMAND...` (or `-` for UID:GID: keep the user).
The watchdog starts the command and reads orders from its standard input:

    "fast" or "immediate"   stop the server in that PostgreSQL mode; the directory stays
    end of file             the owner is gone: stop the server at once, remove the directory

The owner holds the other end of that pipe, so its death is an end of file, however it died. A fork
of the owner may still hold the pipe: therefore the parent id is looked at once a second as well.

The watchdog ends when every process of the server has ended, not only the first one. It knows from
a second pipe that all of them inherit. If the watchdog itself is killed, the kernel stops the
server (Linux only).
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
STDIN = 0
PR_SET_PDEATHSIG = 1
LAST_CHANCE_SECONDS = 60.0


def stop_when_parent_dies() -> None:
    """Runs in the child after the change of user, which would have cleared the setting."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def start(log: Path, account: str, command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server; also return a descriptor that ends with the server's last process."""
    all_gone, held_by_server = os.pipe()
    uid, gid = (None, None) if account == "-" else map(int, account.split(":"))
    with log.open("ab") as output:
        # The only thread of this process is this one, so a preexec_fn is safe.
        server = subprocess.Popen(
            command,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[held_by_server],
            start_new_session=True,
            preexec_fn=stop_when_parent_dies,  # noqa: PLW1509
        )
    os.close(held_by_server)
    return server, all_gone


def obey_until_end(server: subprocess.Popen[bytes], all_gone: int, owner: int) -> bool:
    """Obey orders. True if the owner is gone, False if the server is."""
    while True:
        ready, _, _ = select.select([STDIN, all_gone], [], [], 1.0)
        if all_gone in ready:
            return False
        if STDIN in ready:
            order = os.read(STDIN, 64).decode().strip()
            if not order:
                return True
            server.send_signal(SIGNALS[order])
        elif os.getppid() != owner:
            return True


def end(server: subprocess.Popen[bytes], all_gone: int) -> None:
    """Stop the server: asked first, killed if it does not listen."""
    server.send_signal(signal.SIGQUIT)
    if not select.select([all_gone], [], [], LAST_CHANCE_SECONDS)[0]:
        server.kill()
        select.select([all_gone], [], [], LAST_CHANCE_SECONDS)


def leave(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(1)


def main(directory: Path, log: Path, account: str, command: list[str]) -> int:
    owner = os.getppid()
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, leave)
    # A shell that starts the tests in the background lets them ignore it, and the server as well.
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    server, all_gone = start(log, account, command)
    owner_is_gone = True
    try:
        owner_is_gone = obey_until_end(server, all_gone, owner)
    finally:
        if owner_is_gone:
            end(server, all_gone)
            shutil.rmtree(directory, ignore_errors=True)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
