"""A daemon's systemd unit, filled in for one installation.

The unit files of ``deploy/systemd`` are valid as they are, for a daemon in ``/opt/chorale`` that
keeps its data in ``/var/lib``. Filling in replaces these paths and the account by others.

Invariants:

1. Only values without a meaning of their own in a unit file are put into one: no blank, quote,
   ``%``, ``$`` or backslash.
2. The service can write its data directory and nothing else: below ``/var/lib`` as systemd's
   ``StateDirectory``, elsewhere by ``ReadWritePaths``.
3. A data directory that the sandbox hides is refused. An executable that it hides is told as a
   warning: the files are right, and the installation has to move.

Covered: executable, data directory, account; the account's and the directory's own files. Not
covered: drop-ins, which their owner edits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Final

from federation.errors import DeploymentError
from ops.deploy.files import DeploymentFile, shipped

__all__ = [
    "BACKUP",
    "Service",
    "ServiceInstallation",
    "account_steps",
    "backup_steps",
    "filled_files",
    "hidden_from_service",
    "installation_warnings",
    "start_steps",
]

_PATH: Final = re.compile(r"(/[A-Za-z0-9._+@=:,-]+)+")
_ACCOUNT: Final = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_HIDDEN: Final = tuple(
    PurePosixPath(path)
    for path in ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
)
"""``ProtectHome`` and ``PrivateTmp`` put something else there."""
_STATE: Final = PurePosixPath("/var/lib")
BACKUP: Final = "chorale-backup"
"""The units that back a coordinator up, into a directory of their own below ``/var/lib``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A unit of ``deploy/systemd`` and what stands in it."""

    name: str
    """Of its files."""
    executable: str
    data_dir: str
    account: str
    backup: str = ""
    """The command that backs it up, where ``chorale-backup`` is installed beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceInstallation:
    """What is to stand there instead."""

    executable: Path
    """The installed command."""
    data_dir: Path
    """Absolute."""
    account: str
    """User and group."""


def filled_files(service: Service, wanted: ServiceInstallation) -> tuple[DeploymentFile, ...]:
    """The unit, its ``sysusers`` file and its ``tmpfiles`` file, for one installation.

    Behind them, where there is one, the service that backs it up and its timer.

    Raises:
        DeploymentError: A value cannot stand in a unit file, or the data directory is hidden from
            the service.
    """
    executable, data_dir = str(wanted.executable), str(wanted.data_dir)
    for label, path in (("executable", executable), ("data directory", data_dir)):
        if _PATH.fullmatch(path) is None or ".." in PurePosixPath(path).parts:
            raise DeploymentError(
                f"the {label} {path} cannot stand in a unit file: use an absolute path of letters, "
                "digits and . _ + @ = : , -"
            )
    if _ACCOUNT.fullmatch(wanted.account) is None:
        raise DeploymentError(
            f"{wanted.account!r} is no account's name: lower-case letters, digits, - and _"
        )
    if hidden_from_service(wanted.data_dir):
        raise DeploymentError(
            f"the service does not see {data_dir}: choose a data directory below {_STATE} or /srv"
        )
    directory = (service.data_dir, data_dir)
    old, new = service.account, wanted.account
    changes = {
        "service": (
            directory,
            (service.executable, executable),
            (f"StateDirectory={PurePosixPath(service.data_dir).name}\n", _writable(data_dir)),
            (f"User={old}\n", f"User={new}\n"),
            (f"Group={old}\n", f"Group={new}\n"),
        ),
        "sysusers.conf": (directory, (f"u {old} ", f"u {new} ")),
        "tmpfiles.conf": (directory, (f" {old} {old} ", f" {new} {new} ")),
    }
    files = [
        _filled(shipped(f"systemd/{service.name}.{kind}")[0], dict(pairs))
        for kind, pairs in changes.items()
    ]
    if service.backup:
        name = PurePosixPath(service.backup).name
        backups = f"{PurePosixPath(service.data_dir).name} {BACKUP}s\n"
        pairs = {
            service.data_dir: data_dir,
            service.backup: str(wanted.executable.with_name(name)),
            f"StateDirectory={backups}": f"StateDirectory={BACKUP}s\n{_writable(data_dir)}",
            f"User={old}\n": f"User={new}\n",
            f"Group={old}\n": f"Group={new}\n",
        }
        files.append(_filled(shipped(f"systemd/{BACKUP}.service")[0], pairs))
        (timer,) = shipped(f"systemd/{BACKUP}.timer")
        files.append(replace(timer, path=PurePosixPath(timer.path.name)))
    return tuple(files)


def hidden_from_service(path: Path) -> bool:
    """Whether the sandbox shows something else where this absolute path is."""
    parts = PurePosixPath(path)
    return any(parts == hidden or hidden in parts.parents for hidden in _HIDDEN)


def installation_warnings(*paths: Path) -> list[str]:
    """What has to move before the service can start, of the paths that it runs."""
    return [
        f"the service does not see {path}: install chorale into a new environment below /opt, with "
        "a Python that is not in a home directory"
        for path in paths
        if hidden_from_service(path)
    ]


def account_steps(name: str, out: Path) -> tuple[str, ...]:
    """The commands that install what was written, with the account and its directory."""
    places = {
        "service": f"/etc/systemd/system/{name}.service",
        "sysusers.conf": f"/etc/sysusers.d/{name}.conf",
        "tmpfiles.conf": f"/etc/tmpfiles.d/{name}.conf",
    }
    return (
        *(
            f"sudo install -D -m 644 {quote(f'{out}/{name}.{kind}')} {place}"
            for kind, place in places.items()
        ),
        f"sudo systemd-sysusers {places['sysusers.conf']}",
        f"sudo systemd-tmpfiles --create {places['tmpfiles.conf']}",
    )


def backup_steps(out: Path) -> tuple[str, ...]:
    """The commands that install what backs it up, and start its timer."""
    return (
        *(
            f"sudo install -D -m 644 {quote(f'{out}/{BACKUP}.{kind}')} "
            f"/etc/systemd/system/{BACKUP}.{kind}"
            for kind in ("service", "timer")
        ),
        "sudo systemctl daemon-reload",
        f"sudo systemctl enable --now {BACKUP}.timer",
    )


def start_steps(name: str) -> tuple[str, ...]:
    """The commands that start it, now and with the machine."""
    return ("sudo systemctl daemon-reload", f"sudo systemctl enable --now {name}.service")


def _writable(data_dir: str) -> str:
    path = PurePosixPath(data_dir)
    if _STATE in path.parents:
        return f"StateDirectory={path.relative_to(_STATE)}\n"
    return f"ReadWritePaths={data_dir}\n"


def _filled(file: DeploymentFile, changes: Mapping[str, str]) -> DeploymentFile:
    """Replace everything in one pass, so that nothing of what is put in is replaced again."""
    text = file.content.decode()
    absent = [old for old in changes if old not in text]
    if absent:
        raise DeploymentError(f"{file.path} of this installation is not as it was shipped")
    # A path stands for itself and what is below it, not for one that begins alike.
    whole = {old: r"(?![A-Za-z0-9._-])" if old.startswith("/") else "" for old in changes}
    pattern = re.compile("|".join(re.escape(old) + end for old, end in whole.items()))
    filled = pattern.sub(lambda found: changes[found[0]], text)
    name = PurePosixPath(file.path.name)
    return DeploymentFile(path=name, content=filled.encode(), mode=file.mode)
