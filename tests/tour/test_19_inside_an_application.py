"""A worker beside a web application: start it in the lifespan, on the same event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tenure import Tenure, Worker

Message = dict[str, Any]


class Web:
    """As much of an ASGI framework as this needs: a lifespan, and one endpoint."""

    def __init__(self, tenure: Tenure, endpoint: Callable[[], Awaitable[str]]) -> None:
        self._tenure = tenure
        self._endpoint = endpoint

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with self._tenure, Worker(self._tenure):
            yield

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "http":
            body = (await self._endpoint()).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return
        await receive()
        async with self.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def test_a_worker_in_the_lifespan_of_an_asgi_application(app: Tenure) -> None:
    @app.task()
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def endpoint() -> str:
        handle = await greet.enqueue_async("Ada")
        return await handle.wait_async(timeout_seconds=30)

    assert asyncio.run(serve_one_request(Web(app, endpoint))) == b"hello Ada"


async def serve_one_request(web: Web) -> bytes:
    """What a server such as uvicorn does: start up, serve, shut down."""
    orders: asyncio.Queue[Message] = asyncio.Queue()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    life = asyncio.create_task(web({"type": "lifespan"}, orders.get, answers.put))
    await orders.put({"type": "lifespan.startup"})
    assert (await answers.get())["type"] == "lifespan.startup.complete"

    response: list[Message] = []

    async def send(message: Message) -> None:
        response.append(message)

    await web({"type": "http"}, orders.get, send)
    await orders.put({"type": "lifespan.shutdown"})
    assert (await answers.get())["type"] == "lifespan.shutdown.complete"
    await life
    body: bytes = response[-1]["body"]
    return body
