"""`store info|verify|backup|prune`."""

from __future__ import annotations

from pathlib import Path

import click

from naviscope_ingest.cli.commands import Call, Duration, Group, command
from naviscope_ingest.cli.failures import Exit
from naviscope_ingest.cli.screen import some, span

__all__ = ["store"]


@click.group(cls=Group)
def store() -> None:
    """The file that keeps everything."""


def size(count: int) -> str:
    """Return a number of bytes in few words."""
    number = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if number < 1024 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return ""


@command(store, "info", mode="ask")
async def store_info(call: Call) -> None:
    """Say what the store is, who works on it, and what it holds."""
    found = await call.desk.ask("store.info")
    process = await call.desk.ask("process.status") if call.is_running else None
    file = call.target.file if call.target.socket is None else None
    length = file.stat().st_size if file is not None else None
    log = _log_size(file)
    if call.screen.is_json:
        place = None if file is None else str(file.resolve())
        call.screen.data(found | {"file": place, "bytes": length, "log_bytes": log, "process": process})
        return
    call.screen.facts(
        [
            ("store", str(file or call.target.socket)),
            ("size", None if length is None else size(length) + (f", and a log of {size(log)}" if log else "")),
            ("id", found["store_id"]),
            ("type", f"{found['type']}, a commit survives: {found['durability']}"),
            ("process", "none" if process is None else f"{process['pid']}, {process['statistics']['state']}"),
            ("epochs", f"{found['epochs']:,}, of which {found['unfinished_epochs']:,} unfinished"),
            ("left to do", some(found["unfinished"], "message")),
            ("in trouble", f"{some(found['epochs_with_dead_letters'], 'epoch')} with dead letters, now or before"),
            ("keeps", None if found["retain"] is None else f"completed epochs for {span(found['retain'])}"),
        ]
    )


def _log_size(file: Path | None) -> int:
    log = None if file is None else file.with_name(f"{file.name}-wal")
    return log.stat().st_size if log is not None and log.exists() else 0


@command(store, "verify", mode="ask")
async def verify_store(call: Call) -> Exit:
    """Check the hash of every row and the sum of every table."""
    findings = (await call.desk.ask("store.verify"))["findings"]
    if call.screen.is_json:
        call.screen.data({"findings": findings})
    else:
        for each in findings:
            call.screen.say(each, "red")
        call.screen.say(
            f"{len(findings)} findings: restore a backup" if findings else "sound", "" if findings else "green"
        )
    return Exit.BAD_NEWS if findings else Exit.DONE


@command(store, "backup", mode="ask")
@click.argument("path", type=click.Path(dir_okay=False))
async def backup_store(call: Call, path: str) -> None:
    """Write a consistent copy to a file that does not exist yet, while work goes on."""
    place = str(Path(path).absolute())  # noqa: ASYNC240 - it only makes a name
    answer = await call.desk.ask("store.backup", path=place)
    if call.screen.is_json:
        call.screen.data(answer)
    else:
        call.screen.say(f"the copy is {place}")


@command(store, "prune", mode="change")
@click.option(
    "--older-than", type=Duration(), help="Completed epochs older than this.  [default: what the store keeps]"
)
async def prune_store(call: Call, older_than: float | None) -> None:
    """Forget epochs that completed long ago. Those with dead letters stay. A process that runs does so by itself."""
    answer = await call.desk.ask("store.prune", older_than=older_than)
    if call.screen.is_json:
        call.screen.data(answer)
    else:
        call.screen.say(f"{some(answer['removed'], 'row')} removed")
