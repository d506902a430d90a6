"""The control of a runtime from outside its process.

Operations take and answer plain data: those on epochs and messages (`batches`), on dead letters (`repairs`), and on
limits, kinds and the store (`controls`). A `desk` finds them by name. `serve_control` offers them over a Unix socket,
`connect_control` is the other end; a program that has opened a store itself uses a `LocalDesk`. Nothing is served
unless it is asked for.
"""

from naviscope_ingest.console import batches as _batches
from naviscope_ingest.console import controls as _controls
from naviscope_ingest.console import repairs as _repairs
from naviscope_ingest.console.client import RemoteDesk, connect_control, is_served
from naviscope_ingest.console.desk import OPERATIONS, Desk, LocalDesk
from naviscope_ingest.console.place import control_path, is_supported
from naviscope_ingest.console.protocol import Refused
from naviscope_ingest.console.server import ControlUnavailable, serve_control

# Each of them declares its operations.
del _batches, _controls, _repairs

__all__ = [
    "OPERATIONS",
    "ControlUnavailable",
    "Desk",
    "LocalDesk",
    "Refused",
    "RemoteDesk",
    "connect_control",
    "control_path",
    "is_served",
    "is_supported",
    "serve_control",
]
