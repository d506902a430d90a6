"""A small HTTP endpoint for those who watch a runtime: `/healthz`, `/readyz` and `/metrics`. With the extra `endpoint`.

`progress` decides whether a runtime gets on; `server` answers.

It speaks HTTP/1.1 by h11 on trio's own sockets, one request for each connection: a hundred lines, bounded in size, time
and number, in the loop of the runtime. So an answer also shows that this loop turns.

Rejected: hypercorn and starlette, which bring six packages, a router and a lifespan for three paths; the server within
the client library of Prometheus, whose thread answers also when the loop hangs; and parsing requests here, which h11
does, and which others have got wrong often enough.
"""

from naviscope_ingest.endpoint.progress import Health, Progress
from naviscope_ingest.endpoint.server import Exposes, serve_endpoint

__all__ = ["Exposes", "Health", "Progress", "serve_endpoint"]
