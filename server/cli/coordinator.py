"""``chorale-coordinator``: the daemon."""

from __future__ import annotations

import typer

from server.cli.envelope import DEFAULT_DATA, Data, Format, answering, run_app, say

__all__ = ["app", "main"]

app = typer.Typer(
    name="chorale-coordinator",
    help="The coordinator: relays messages, learns one sum, publishes the next adapter.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def coordinator() -> None:
    """The coordinator: relays messages, learns one sum, publishes the next adapter."""


@app.command()
def serve(data: Data = DEFAULT_DATA) -> None:
    """Serve until SIGTERM. A run that was active goes on from its last signed record.

    Logs are JSON lines on stderr. Probes and metrics are at probes_listen of coordinator.toml.
    """
    with answering(Format.TEXT):
        from server.config import CoordinatorConfig
        from server.daemon import serve as serve_daemon
        from server.logs import configure_logs

        config = CoordinatorConfig.load(data)
        say(f"serving on {config.listen}, joining on {config.enrol_listen}")
        configure_logs()
        serve_daemon(config)


def main() -> None:
    """Run the command line."""
    run_app(app)


if __name__ == "__main__":
    main()
