"""``chorale ca``: replacing the issuing CA while everybody stays connected."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.envelope import Format, Output, say, show_result, succeed
from server.cli.moment import duration_s, shown
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["app"]

app = typer.Typer(help="The CA that issues every certificate here.", no_args_is_help=True)


@app.command("rotate")
def rotate(
    overlap: Annotated[
        str, typer.Option(help="How long the present CA is trusted too: 1h to 90d.")
    ] = "30d",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make a new issuing CA; the one before is trusted until the overlap ends.

    Silos that are up learn of it within a minute and renew by themselves. A silo that stays away
    for longer than the overlap has to join again with a new invite.
    """
    with answering(output):
        overlap_s = duration_s(overlap, "--overlap")
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            made = stub.RotateCa(
                admin_pb2.RotateCaRequest(overlap_s=overlap_s), timeout=CALL_TIMEOUT_S
            )
        until = shown(made.overlap_until_unix_s)
        show_result(output, f"a new CA issues from now on: SHA-256 {made.ca_sha256.hex()}")
        show_result(
            output,
            f"the one before is trusted until {until}; the server's certificate changes then",
        )
        say("next: chorale admin renew, so that your own certificate is of the new CA")
        say("watch that every silo renews: chorale silo list")
        succeed(
            output,
            {
                "ca_sha256": made.ca_sha256.hex(),
                "overlap_until_unix_s": made.overlap_until_unix_s,
            },
        )


@app.command("show")
def show(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Which CAs are trusted now. Reads the data directory; nothing needs to run."""
    with answering(output):
        from server.config import CoordinatorConfig
        from server.pki.authority import not_after_unix_s
        from server.pki.trust import Trust

        config = CoordinatorConfig.load(data)
        trust = Trust.load(config.paths.pki, passphrase=config.ca_passphrase())
        issuing, retiring = trust.issuing, trust.retiring
        expiry = not_after_unix_s(issuing.certificate)
        show_result(output, f"issuing   {issuing.sha256.hex()} until {shown(expiry)}")
        answer: dict[str, object] = {
            "issuing": {"sha256": issuing.sha256.hex(), "expiry_unix_s": expiry},
            "retiring": None,
        }
        if retiring is not None:
            digest = retiring.authority.sha256.hex()
            show_result(output, f"retiring  {digest} trusted until {shown(retiring.until_unix_s)}")
            answer["retiring"] = {"sha256": digest, "trusted_until_unix_s": retiring.until_unix_s}
        succeed(output, answer)
