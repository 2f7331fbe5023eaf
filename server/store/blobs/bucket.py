"""The way to a bucket: ``adapters_url``, and what AWS's environment variables say beside it.

Invariants:

1. The URL names a bucket and a prefix and nothing else. Credentials come from the environment,
   from the file that ``AWS_SHARED_CREDENTIALS_FILE`` names, or from the platform; they are in no
   message.
2. Without TLS only a loopback endpoint is spoken to.
3. A request is tried again for a bounded time.

Covered: AWS and what speaks its protocol. Not covered: whether the bucket exists; the first call
says it.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from ops.address import is_loopback
from server.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import S3Config

__all__ = ["connect", "parse_url"]

RETRY_S = 20
CONNECT_TIMEOUT_S: Final = 5
REQUEST_TIMEOUT_S: Final = 120
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CREDENTIALS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def parse_url(url: str) -> tuple[str, str]:
    """Split ``s3://bucket/prefix`` into bucket and prefix; the latter may be empty.

    Raises:
        ConfigurationError: It is not of that form.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    fits = _BUCKET.fullmatch(bucket) and (not prefix or _PREFIX.fullmatch(prefix))
    if scheme != "s3" or not fits or ".." in prefix.split("/"):
        # It may hold a credential that does not belong there: it is not repeated.
        raise ConfigurationError(
            "adapters_url is s3://bucket/prefix; endpoint and credentials come from AWS_* variables"
        )
    return bucket, prefix


def connect(bucket: str, prefix: str, *, retries: int) -> S3Store:
    """Make a client; nothing is sent yet.

    Raises:
        ConfigurationError: The environment's endpoint or credentials cannot be used.
    """
    named = {name: os.environ[name] for name in _ENDPOINTS if os.environ.get(name)}
    endpoint = next(iter(named.values()), None)
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=_config(endpoint),
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
                "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
                "allow_http": _may_be_plain(endpoint),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
    except (BaseError, ValueError) as error:
        raise ConfigurationError("the AWS_* variables for adapters_url cannot be used") from error


def _config(endpoint: str | None) -> S3Config:
    given = _from_file(os.environ)
    if endpoint is not None:
        given["endpoint"] = endpoint
    return cast("S3Config", given)


def _may_be_plain(endpoint: str | None) -> bool:
    parts = urlsplit(endpoint or "https://")
    if parts.scheme == "https":
        return False
    if not is_loopback(parts.hostname or ""):
        raise ConfigurationError("the S3 endpoint must begin with https://")
    return True


def _from_file(environment: Mapping[str, str]) -> dict[str, str]:
    """The profile of AWS's credentials file, where one is named and the environment has no key."""
    path = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    if path is None or environment.get("AWS_ACCESS_KEY_ID"):
        return {}
    profile = environment.get("AWS_PROFILE", "default")
    parser = configparser.RawConfigParser()
    try:
        with Path(path).open(encoding="utf-8") as file:
            parser.read_file(file)
        section = parser[profile]
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
        # The cause may quote the file.
        raise ConfigurationError(f"{path} has no readable profile {profile!r}") from None
    return {ours: section[theirs] for theirs, ours in _CREDENTIALS.items() if theirs in section}
