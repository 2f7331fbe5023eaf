"""``coordinator.toml``: what the coordinator is called, where it listens, where it keeps things.

Unknown keys are errors. ``CHORALE_COORDINATOR_<KEY>`` in the environment overrides the file. Every
path inside the data directory is fixed by :class:`DataPaths`, so that tools agree without options.

Covered: types, addresses, host names, unknown keys. Not covered: whether a port is free.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from federation.errors import TomlError
from federation.membership.invite import FEDERATION_NAME
from federation.plan.toml import parse_toml
from ops.address import split_address
from ops.files import replace_file
from server.errors import ConfigurationError, NoCoordinatorError

__all__ = ["CoordinatorConfig", "DataPaths", "read_passphrase", "require_host", "write_config"]

CONFIG_NAME: Final = "coordinator.toml"
ENV_PREFIX: Final = "CHORALE_COORDINATOR_"
_PAGES: Final = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~%!$&()*+,;=:@-]*)*"
)
"""The address of a folder of web pages: no credentials, query or fragment."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""What an invite can name, too."""


def _address(address: str) -> str:
    split_address(address)
    return address


def require_host(name: str) -> str:
    """Take what a server certificate can name and silos can dial.

    Raises:
        ValueError: It is neither a DNS name nor an IP address.
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if _HOST_NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name[:253]!r} is neither a DNS name nor an IP address: it is the host alone, "
                "without https://, port, path or brackets"
            ) from None
    return name


def _federation(name: str) -> str:
    if FEDERATION_NAME.fullmatch(name) is None:
        raise ValueError("a federation's name has lower-case letters, digits, dots and dashes")
    return name


def _pages(url: str) -> str:
    if _PAGES.fullmatch(url) is None:
        raise ValueError(
            "the folder that the pages are in, as https://host/path or http://host/path"
        )
    return url.rstrip("/")


def _endpoint(url: str) -> str:
    """The base address of an API: no credentials, query or fragment."""
    found = _pages(url)
    parts = urlsplit(found)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise ValueError("what the advisor is asked goes over TLS, unless it is on this machine")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(require_host)]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPaths:
    """Where everything in the data directory is."""

    data_dir: Path

    @property
    def config(self) -> Path:
        """The TOML file."""
        return self.data_dir / CONFIG_NAME

    @property
    def pki(self) -> Path:
        """CA and server certificate with their keys."""
        return self.data_dir / "pki"

    @property
    def trusted_cas(self) -> Path:
        """PEM of every CA that client certificates may be of."""
        return self.pki / "ca.pem"

    @property
    def admin(self) -> Path:
        """The admin's client certificate."""
        return self.data_dir / "admin"

    @property
    def protocol_key(self) -> Path:
        """The Ed25519 key that signs tasks, descriptors and records."""
        return self.data_dir / "protocol.key"

    @property
    def root_public_key(self) -> Path:
        """The consortium root's public key. Its private key is never in this directory."""
        return self.data_dir / "root.pub"

    @property
    def audit(self) -> Path:
        """The audit log."""
        return self.data_dir / "audit.jsonl"

    @property
    def adapters_cache(self) -> Path:
        """The newest adapters and sums, where ``adapters_url`` keeps them all."""
        return self.data_dir / "adapters-cache"

    @property
    def scratch(self) -> Path:
        """Accumulators and upload spools of the open attempt."""
        return self.data_dir / "scratch"


class CoordinatorConfig(BaseSettings):
    """The coordinator's settings, read once at the start."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        nested_model_default_partial_update=False,
    )

    host_names: tuple[Host, ...] = Field(min_length=1)
    """DNS names and IP addresses in the server certificate; silos dial the first."""
    federation: Annotated[str, AfterValidator(_federation)] | None = None
    """Created at the start with the default terms, if there is none yet."""
    listen: Address = "0.0.0.0:7443"
    """Mutual TLS: silos and admins."""
    enrol_listen: Address = "0.0.0.0:7444"
    """Server TLS only: enrolment."""
    probes_listen: Address = "127.0.0.1:7445"
    """/livez, /readyz, /metrics and the status page; plain HTTP unless there is a certificate."""
    probes_certificate: Path | None = None
    """PEM: TLS for the probes; a relative path is below the data directory."""
    probes_key: Path | None = None
    """PEM: the key of ``probes_certificate``."""
    runbooks_url: Annotated[str, Field(max_length=500), AfterValidator(_pages)] | None = None
    """Where you host ``docs/operations``: the status page links each alert that it names to
    ``<runbooks_url>/<alert>.md``. Without it the name stands alone."""
    ca_passphrase_file: Path | None = None
    """Its first line opens the CA's key, and encrypts the next one; a relative path is below the
    data directory. The key is a plain file, under the account's permissions, if unset."""
    coordinator_address: Address | None = None
    """What silos dial; the first host name with the port of ``listen`` if unset."""
    enrol_address: Address | None = None
    """What silos dial to join; the first host name with the port of ``enrol_listen`` if unset."""
    database_url: str | None = None
    """``postgresql://user@host/name``; if unset, what the coordinator was last served from, at
    first SQLite in the data directory. A password comes from a file (``?passfile=/path``,
    ``PGPASSFILE``) or the environment, never from this file."""
    adapters_dir: Path | None = None
    """Adapters and sums; ``adapters`` in the data directory if unset."""
    adapters_url: str | None = None
    """Adapters and sums in S3-compatible storage instead: ``s3://bucket/prefix``."""
    advisor_url: Annotated[str, Field(max_length=500), AfterValidator(_endpoint)] | None = None
    """The base of an OpenAI-compatible endpoint, such as ``https://host/v1``: the advisor of plans
    whose ``[selection] policy`` is ``advised``. Plain HTTP to loopback alone."""
    advisor_model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What the endpoint calls the model; needed with ``advisor_url``."""
    advisor_tools: bool = True
    """Whether the endpoint takes tools, by which a model looks up what it wants to know; false for
    a server that refuses them, whose model goes by what each question says: limits, facts of all
    silos together, the newest rounds."""
    advisor_key_file: Path | None = None
    """Its first line is the endpoint's API key; a relative path is below the data directory."""
    _data_dir: Path = PrivateAttr(default=Path())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then what ``load`` read from the file."""
        _ = (settings_cls, dotenv_settings, file_secret_settings)
        return env_settings, init_settings

    @classmethod
    def load(cls, data_dir: Path) -> CoordinatorConfig:
        """Read the configuration of a data directory.

        Raises:
            NoCoordinatorError: The file is absent.
            ConfigurationError: It is refused; the text names each key.
        """
        path = DataPaths(data_dir=data_dir).config
        try:
            content = parse_toml(path.read_bytes())
        except FileNotFoundError as error:
            raise NoCoordinatorError(
                f"{data_dir} is no coordinator's data directory, for {path} is absent: chorale "
                "init makes one"
            ) from error
        except (OSError, TomlError) as error:
            raise ConfigurationError(f"{path}: {error}") from error
        _require_no_password(path, content.get("database_url"))
        known = {f"{ENV_PREFIX}{name}".upper() for name in cls.model_fields}
        strays = sorted(
            name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known
        )
        if strays:
            raise ConfigurationError(f"the environment sets unknown settings: {', '.join(strays)}")
        try:
            config = cls(**content)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
                for problem in error.errors()
            )
            raise ConfigurationError(f"{path}: {problems}") from error
        config._data_dir = data_dir.resolve()
        return config

    @property
    def paths(self) -> DataPaths:
        """Where everything in the data directory is."""
        return DataPaths(data_dir=self._data_dir)

    @property
    def data_dir(self) -> Path:
        """The directory this configuration was read from."""
        return self._data_dir

    @property
    def adapters(self) -> Path:
        """The blob directory in force."""
        return self.adapters_dir or self._data_dir / "adapters"

    @property
    def probes_certificate_file(self) -> Path | None:
        """The probes' certificate, wherever the process was started."""
        return self.probes_certificate and self._data_dir / self.probes_certificate

    @property
    def probes_key_file(self) -> Path | None:
        """Its key."""
        return self.probes_key and self._data_dir / self.probes_key

    def ca_passphrase(self) -> bytes | None:
        """What opens the CA's key; None if no file is named.

        Raises:
            ConfigurationError: The file cannot be read, or its first line is empty.
        """
        return (
            None
            if self.ca_passphrase_file is None
            else read_passphrase(self._data_dir / self.ca_passphrase_file)
        )

    def advisor_key(self) -> str | None:
        """The API key of the advisor's endpoint; None if no file is named.

        Raises:
            ConfigurationError: The file cannot be read, or its first line is empty.
        """
        if self.advisor_key_file is None:
            return None
        return read_passphrase(self._data_dir / self.advisor_key_file).decode("ascii", "replace")

    @property
    def dial_coordinator(self) -> str:
        """What silos dial for rounds."""
        return self.coordinator_address or self._dial(self.listen)

    @property
    def dial_enrolment(self) -> str:
        """What silos dial to join."""
        return self.enrol_address or self._dial(self.enrol_listen)

    def _dial(self, listen: str) -> str:
        host = self.host_names[0]
        try:
            bracketed = ipaddress.ip_address(host).version == 6
        except ValueError:
            bracketed = False
        return f"{f'[{host}]' if bracketed else host}:{split_address(listen)[1]}"


def read_passphrase(path: Path) -> bytes:
    """Read the first line of a file.

    Raises:
        ConfigurationError: It cannot be read, is open to other users, or is empty.
    """
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigurationError(f"{path} is open to other users: chmod 600 it")
        line = next(iter(path.read_bytes().splitlines()), b"")
    except OSError as error:
        raise ConfigurationError(f"the passphrase's file {path}: {error.strerror}") from error
    if not line:
        raise ConfigurationError(f"{path} has no passphrase in its first line")
    return line


def _require_no_password(path: Path, database_url: object) -> None:
    try:
        parts = urlsplit(str(database_url or ""))
        found = parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        # Nothing that could be connected to; the database says so.
        return
    if found:
        raise ConfigurationError(
            f"{path}: database_url holds a password: name a file in it (?passfile=/path), or set "
            f"{ENV_PREFIX}DATABASE_URL in the environment"
        )


def write_config(
    data_dir: Path,
    *,
    federation: str | None,
    host_names: tuple[str, ...],
    listen: str,
    enrol_listen: str,
    probes_listen: str,
    ca_passphrase_file: Path | None = None,
) -> CoordinatorConfig:
    """Write a new ``coordinator.toml`` into a directory that exists, and read it back.

    ``federation`` is created at the start; None leaves it to the admin. The three addresses are of
    mutual TLS, enrolment and probes. Without ``ca_passphrase_file`` the CA's key is not encrypted.

    Raises:
        ConfigurationError: A value is refused.
    """
    names = ", ".join(_quoted(name) for name in host_names)
    text = (
        ("" if federation is None else f"federation = {_quoted(federation)}\n")
        + f"# The server certificate's names; silos dial the first.\n"
        f"host_names = [{names}]\n"
        f"# Mutual TLS for silos and admins, server TLS for enrolment, plain HTTP for probes.\n"
        f"listen = {_quoted(listen)}\n"
        f"enrol_listen = {_quoted(enrol_listen)}\n"
        f"probes_listen = {_quoted(probes_listen)}\n"
        + (
            ""
            if ca_passphrase_file is None
            else f"ca_passphrase_file = {_quoted(str(ca_passphrase_file))}\n"
        )
    )
    replace_file(DataPaths(data_dir=data_dir).config, (text.encode(),), mode=0o640)
    return CoordinatorConfig.load(data_dir)


def _quoted(text: str) -> str:
    if any(ord(character) < 32 or character in '"\\' for character in text):
        raise ConfigurationError(f"{text!r} cannot be written to {CONFIG_NAME}")
    return f'"{text}"'
