"""The real coordinator, which answers each poll with a few KB that inflate to 128 MiB."""

# ruff: noqa: N802 - a method of the service has the RPC's name

from typing import Any

import grpc

from server import daemon
from server.rpc.rounds import RoundService

INFLATED_BYTES = 128 << 20


def install() -> None:
    """Compress, and send what an honest coordinator's own limit would keep back."""
    sending = {
        "grpc.max_send_message_length": -1,
        "grpc.default_compression_algorithm": grpc.Compression.Gzip.value,
    }
    honest = daemon.rounds_options
    daemon.rounds_options = lambda open_files: tuple(
        {**dict(honest(open_files)), **sending}.items()
    )

    async def Poll(self: Any, request: Any, context: Any) -> bytes:
        return bytes(INFLATED_BYTES)

    RoundService.Poll = Poll  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    from server.cli.coordinator import main

    install()
    main()
