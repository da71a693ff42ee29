"""One worker process of a supervisor.

    python -m tenure.worker.supervisor.supervised FD

It receives its orders through a socket from its supervisor, and ends when the supervisor is gone.
"""

import logging
import socket
import sys
import threading

import msgspec

from tenure.errors import ConfigError
from tenure.passwords import remember
from tenure.worker.children.app_ref import REFUSED
from tenure.worker.supervisor.supervisor import MAX_JOBS_REACHED, Orders
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.worker")


def main() -> None:
    """Work as ordered, until told to stop or the supervisor is gone."""
    supervisor = socket.socket(fileno=int(sys.argv[1]))
    orders = _orders(supervisor)
    if orders is None:
        return
    remember(orders.app.url)
    orders.logs.before_import()
    try:
        _work(supervisor, orders)
    except ConfigError as error:
        log.critical("this worker process refuses to start: %s", error)
        sys.exit(REFUSED)
    except Exception as error:
        log.critical("this worker process cannot start: %s", type(error).__name__, exc_info=True)
        sys.exit(1)


def _work(supervisor: socket.socket, orders: Orders) -> None:
    app = orders.app.load()
    orders.logs.after_import()
    settings = dict(orders.settings)
    worker = Worker(app, settings.pop("queues"), **settings)
    threading.Thread(target=_stop_when_alone, args=(supervisor, worker), daemon=True).start()
    worker.run()
    if worker.reached_max_jobs:
        sys.exit(MAX_JOBS_REACHED)


def _orders(supervisor: socket.socket) -> Orders | None:
    data = b""
    while not data.endswith(b"\n"):
        part = supervisor.recv(65536)
        if not part:
            return None
        data += part
    return msgspec.json.decode(data, type=Orders)


def _stop_when_alone(supervisor: socket.socket, worker: Worker) -> None:
    while supervisor.recv(1):
        pass
    log.error("the supervisor is gone; this worker drains and ends")
    worker.stop()


if __name__ == "__main__":
    main()
