"""`config show|schema`."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from naviscope_ingest.cli.commands import Call, Group, command
from naviscope_ingest.cli.screen import Column
from naviscope_ingest.cli.targets import environment, load_app
from naviscope_ingest.settings import json_schema, load_settings

__all__ = ["config"]

_COLUMNS: Final = (Column("key", is_wide=True), Column("value", is_wide=True), Column("from"))


@click.group(cls=Group)
def config() -> None:
    """Settings: what they are, and where they come from."""


@command(config, "show", mode="none")
@click.argument("key", required=False)
@click.option("--app", "-a", metavar="MODULE:APP", help="With what an app says itself.")
@click.option("--config", metavar="FILE", help="The configuration.  [env: NAVISCOPE_CONFIG]")
@click.option("--all", "is_all", is_flag=True, help="Defaults too.")
async def show_config(call: Call, key: str | None, is_all: bool) -> None:
    """Show settings with where each comes from: a keyword, a variable, a line of a file, or the default.

    Without --all only what is not as the defaults have it; with KEY what begins so.
    """
    if call.target.app is not None:
        settings = load_app(call.target.app, config=call.target.config).settings
    else:
        settings = load_settings(call.target.config, environ=environment())
    assert settings is not None
    found = [
        each
        for each in settings.entries
        if (is_all or key is not None or each.origin.source != "default") and each.key.startswith(key or "")
    ]
    if call.screen.is_json:
        rows = [
            {"key": each.key, "value": each.value, "from": str(each.origin), "variable": each.variable}
            for each in found
        ]
        call.screen.data(rows)
        return
    call.screen.table(
        _COLUMNS, [(each.key, each.shown, str(each.origin)) for each in found], empty="everything is as by default"
    )


@command(config, "schema", mode="none")
async def show_schema(call: Call) -> None:
    """Print the JSON Schema of configuration files."""
    call.screen.text(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
