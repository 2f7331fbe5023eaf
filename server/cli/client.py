"""The admin's line to the coordinator, and its messages as plain values.

Covered: mutual TLS with the certificate in ``DATA_DIR/admin``, deadlines, an expired certificate
told apart from an absent coordinator, and so is a wrong clock. Not covered: admins on other
machines; copy the data directory's ``coordinator.toml``, ``admin`` and nothing else.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from google.protobuf.message import Message

from chorale.v1 import admin_pb2, admin_pb2_grpc
from ops.address import split_address
from ops.cli.envelope import CommandError, Exit
from ops.tracing.calls import with_spans
from ops.tracing.spans import tracing
from server.config import CoordinatorConfig

__all__ = ["CALL_TIMEOUT_S", "connect", "plain", "start_parts"]

CALL_TIMEOUT_S: Final = 30.0
MAX_MESSAGE_BYTES: Final = 4 << 20
CHUNK_BYTES: Final = 1 << 20


def start_parts(
    *, plan: bytes, adapter: bytes, submit_token: str, federation: str = "", suite: int = 0
) -> Iterator[admin_pb2.StartRunRequest]:
    """The messages of StartRun: an opening, then the adapter in chunks.

    The same submit token starts the same run once; an empty ``federation`` stands for the
    coordinator's only one, and ``suite`` 0 for the newest.
    """
    # Made now, not when gRPC asks: an argument that is no text is refused where it was given.
    opening = admin_pb2.StartRunOpening(
        plan=plan,
        submit_token=submit_token,
        adapter_bytes=len(adapter),
        federation=federation,
        suite=suite,
    )
    chunks = (
        admin_pb2.StartRunRequest(adapter_chunk=adapter[start : start + CHUNK_BYTES])
        for start in range(0, len(adapter), CHUNK_BYTES)
    )
    return chain((admin_pb2.StartRunRequest(opening=opening),), chunks)


@contextmanager
def connect(data_dir: Path) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    """Open the admin's channel.

    Raises:
        CommandError: There is no valid admin certificate.
        ConfigurationError: The configuration cannot be read.
    """
    config = CoordinatorConfig.load(data_dir)
    directory = config.paths.admin
    try:
        ca, key, leaf = (
            (directory / name).read_bytes() for name in ("ca.pem", "admin.key", "admin.pem")
        )
        certificate = x509.load_pem_x509_certificate(leaf)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"the admin certificate in {directory} cannot be read: {error}",
            code="certificate_unreadable",
            exit_code=Exit.CONNECT,
            next_step="chorale admin renew, on the coordinator's host",
        ) from error
    address, options = _target(config)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=ca, private_key=key, certificate_chain=leaf
    )
    with (
        tracing("chorale"),
        grpc.secure_channel(address, credentials, options=options) as channel,
    ):
        try:
            yield admin_pb2_grpc.AdminServiceStub(with_spans(channel))
        except grpc.RpcError as error:
            # A server that refuses an expired certificate only ever looks unreachable.
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                _require_valid_now(certificate)
            raise


def _require_valid_now(certificate: x509.Certificate) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = dt.datetime.now(dt.UTC)
    if now >= ends:
        raise CommandError(
            f"the admin certificate ended at {ends.isoformat()}",
            code="certificate_expired",
            exit_code=Exit.CONNECT,
            next_step="chorale admin renew, on the coordinator's host",
        )
    if now < begins:
        raise CommandError(
            f"the admin certificate is valid from {begins.isoformat()}, and this machine's clock "
            f"says {now.isoformat(timespec='seconds')}",
            code="wrong_clock",
            exit_code=Exit.CONNECT,
            next_step="set this machine's clock: timedatectl set-ntp true",
        )


def _target(config: CoordinatorConfig) -> tuple[str, list[tuple[str, Any]]]:
    """Dial loopback where the coordinator listens there; its public name need not resolve here."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    host, port = split_address(config.listen)
    try:
        listening = ipaddress.ip_address(host)
    except ValueError:
        return config.dial_coordinator, options
    if listening.is_unspecified or listening.is_loopback:
        options.append(("grpc.ssl_target_name_override", "localhost"))
        return (f"[::1]:{port}" if listening.version == 6 else f"127.0.0.1:{port}"), options
    return config.dial_coordinator, options


def plain(message: Message) -> dict[str, Any]:
    """Turn a message without maps into JSON's types.

    Every scalar field stands under its own name; bytes as hex, not-a-number as null, infinity as
    the text inf, absent sub-messages left out.
    """
    content: dict[str, Any] = {}
    for descriptor in message.DESCRIPTOR.fields:
        value = getattr(message, descriptor.name)
        if isinstance(value, Message):
            if message.HasField(descriptor.name):
                content[descriptor.name] = plain(value)
        elif isinstance(value, str | bytes | int | float):
            content[descriptor.name] = _scalar(value)
        else:
            content[descriptor.name] = [
                plain(item) if isinstance(item, Message) else _scalar(item) for item in value
            ]
    return content


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
