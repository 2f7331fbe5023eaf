"""``chorale-coordinator``: the daemon."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from ops.cli.envelope import Format, command_line, run_app
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["app", "main"]

HEAPS: Final = 2
"""With 200 silos they take less memory than glibc's eight for each core: docs/protocol.md."""

app = command_line(
    name="chorale-coordinator",
    help_text="The coordinator: relays messages, learns one sum, publishes the next adapter.",
)


@app.command()
def serve(
    data: Data = DEFAULT_DATA,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait while another process serves this directory; take over when it ends.",
        ),
    ] = False,
) -> None:
    """Serve until SIGTERM. A run that was active goes on from its last signed record.

    One process serves a data directory; a second is refused, or waits as a standby.

    Logs are on stderr: for people on a terminal, JSON lines elsewhere (CHORALE_LOG_FORMAT,
    CHORALE_LOG_LEVEL). Probes and metrics are at probes_listen of coordinator.toml.
    """
    with answering(Format.TEXT):
        # gRPC writes a line of its own for every failed handshake; strangers are summed up instead.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        from ops.heap import share_heaps
        from ops.logs.setup import daemon_logs
        from ops.tracing.spans import tracing
        from server.config import CoordinatorConfig
        from server.daemon import serve as serve_daemon

        share_heaps(HEAPS)
        config = CoordinatorConfig.load(data)
        with daemon_logs(), tracing("chorale-coordinator"):
            serve_daemon(config, standby=standby)


def main() -> None:
    """Run the command line."""
    run_app(app)


if __name__ == "__main__":
    main()
