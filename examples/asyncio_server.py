"""A web server on asyncio that takes orders, and a runtime behind it that works on them.

The server is asyncio's own, and knows nothing of trio: it awaits the methods of a handle, and the runtime works in a
thread of its own. An order that was answered with 202 is safe: kill the server and start it again, and it is worked on.

    python examples/asyncio_server.py [--port 8080] [--file FILE]
    curl -d '{"id": "order-1", "item": "tea"}' localhost:8080/orders
    curl localhost:8080/orders

It understands as much of HTTP as the example needs.
"""

import argparse
import asyncio
import json
from typing import TypedDict

from naviscope_ingest import Delivery, Ingest, InvalidMessage, Message
from naviscope_ingest.interop import AsyncioEpoch, AsyncioIntake
from naviscope_ingest.sinks import Insert, SqliteSink, SqlOp

SCHEMA = "CREATE TABLE shipment (id TEXT PRIMARY KEY, item TEXT NOT NULL)"
MOST_BYTES = 64 * 1024


class Order(TypedDict):
    id: str
    item: str


def make_app(file: str) -> Ingest:
    app = Ingest(f"sqlite:///{file}")
    app.sink(SqliteSink(schema=SCHEMA))

    @app.handler("order", derives=[])
    async def ship(order: Order, message: Delivery[Order]) -> SqlOp:
        return Insert("shipment", {"id": message.id, "item": order["item"]})

    return app


async def answer(method: str, path: str, body: bytes, epoch: AsyncioEpoch[Order]) -> tuple[str, object]:
    """Do what a request asks for; return status and answer."""
    if path != "/orders":
        return "404 Not Found", {"error": f"there is no {path}"}
    if method == "GET":
        report = await epoch.report()
        return "200 OK", {"accepted": report.submitted, "shipped": report.committed}
    try:
        order = json.loads(body)
        receipt = await epoch.submit(Message(order["id"], order, kind="order"))
    except (InvalidMessage, ValueError, KeyError, TypeError) as error:
        return "400 Bad Request", {"error": str(error)}
    return "202 Accepted", {"accepted": receipt.accepted, "known already": receipt.duplicates}


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, epoch: AsyncioEpoch[Order]) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        length = int(fields.get("content-length", "0"))
        body = await reader.readexactly(length) if length <= MOST_BYTES else b""
        status, content = await answer(method, path, body, epoch)
        data = json.dumps(content).encode() + b"\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        pass  # Whoever it was has gone, or speaks something else.
    finally:
        writer.close()


async def main(port: int, file: str) -> None:
    async with make_app(file).running_for_asyncio() as intake:
        await serve(intake, port)


async def serve(intake: AsyncioIntake[Order], port: int) -> None:
    epoch: AsyncioEpoch[Order] = await intake.new_epoch("orders")  # Never sealed: orders keep coming.
    server = await asyncio.start_server(lambda reader, writer: serve_one(reader, writer, epoch), "127.0.0.1", port)
    async with server:
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/orders", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A web server on asyncio with a runtime behind it.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--file", default="asyncio-server.sqlite3")
    arguments = parser.parse_args()
    try:
        asyncio.run(main(arguments.port, arguments.file))
    except KeyboardInterrupt:
        print("stopped")
