"""``chorale audit``: what happened, and whether the log is whole."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from server.cli.envelope import DEFAULT_DATA, Data, Format, Output, answering, say, succeed

__all__ = ["app"]

app = typer.Typer(help="Who did what, and when.", no_args_is_help=True)


@app.command("tail")
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many.", min=1, max=1000)] = 20,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """The newest records, oldest first."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            answer = stub.TailAudit(admin_pb2.TailAuditRequest(lines=lines), timeout=CALL_TIMEOUT_S)
        records = [json.loads(record) for record in answer.records]
        for record in records:
            facts = "  ".join(f"{key}={value}" for key, value in record["details"].items())
            say(f"{record['index']:>5}  {record['at']}  {record['event']:<20} {facts}")
        succeed(output, {"records": records})


@app.command("verify")
def verify(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Check the whole chain of the data directory's log; names the first bad record."""
    with answering(output):
        from server.audit import AuditLog
        from server.config import CoordinatorConfig

        records = AuditLog.verify_file(CoordinatorConfig.load(data).paths.audit)
        say(f"{records} records, every one in place")
        succeed(output, {"records": records})
