"""``chorale deploy``: the files to run a coordinator with, filled in for this installation.

Covered: a systemd unit, a federation on one machine with the compose file, a Helm chart. Not
covered: installing them; the commands that do are printed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Annotated, Final

import typer

from ops.cli.deploy import Out, User, answer_written, refusals, write_service
from ops.cli.envelope import Format, Output
from server.cli.program import answering

__all__ = ["app"]

app = typer.Typer(
    name="deploy",
    help="Write the files that run a coordinator: a systemd unit, a compose file, a Helm chart.",
    no_args_is_help=True,
)

NAME: Final = "chorale-coordinator"
SECRET: Final = PurePosixPath("compose/secrets/grafana-admin-password")


@app.command("systemd")
def systemd(
    out: Out,
    state_dir: Annotated[
        Path, typer.Option(help="The service's data directory; chorale init fills it later.")
    ] = Path("/var/lib/chorale"),
    user: User = "chorale",
    executable: Annotated[
        Path | None,
        typer.Option(
            help="The chorale-coordinator that is to run; this installation's by default."
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write sandboxed units for chorale-coordinator and its daily backup, account and directory.

    The service may write its data directory and use the network, and nothing else. systemd-analyze
    security says how exposed it is.
    """
    with answering(output), refusals("chorale deploy"):
        from ops.deploy.systemd import Service

        service = Service(
            name=NAME, executable=f"/opt/chorale/bin/{NAME}", data_dir="/var/lib/chorale",
            account="chorale", backup="/opt/chorale/bin/chorale",
        )  # fmt: skip
        write_service(
            output,
            service,
            out=out,
            data=state_dir,
            user=user,
            executable=executable,
            found=lambda command, data: (
                f"{command.with_name('chorale')} init --host coord.example.org "
                f"--root-certificate root.pub --data {data}"
            ),
        )


@app.command("compose")
def compose(out: Out, output: Output = Format.TEXT) -> None:
    """Write a whole federation for one machine: coordinator, four silos, Prometheus, Grafana.

    For trying things out: everybody's keys are on one machine, and the roster is signed without a
    person who compares fingerprints. The images are built from the source tree or taken from a
    registry of yours.
    """
    with answering(output), refusals("chorale deploy"):
        from federation.version import installed_version
        from ops.deploy.files import PARTS, DeploymentFile, shipped, write_files

        parts = (part for part in PARTS if part.startswith(("compose/", "grafana/", "prometheus/")))
        files = [file for part in parts for file in shipped(part)]
        # Compose mounts it with the owner and the mode it has here, and Grafana has another user
        # than whoever typed this; its directory is closed to everybody else instead.
        password = DeploymentFile(path=SECRET, content=secrets.token_hex(16).encode(), mode=0o444)
        written = write_files([*files, password], out)
        (out / SECRET).parent.chmod(0o700)
        version = installed_version()
        answer_written(
            output,
            kind="compose",
            out=out,
            written=written,
            next_steps=[
                *(
                    "in the source tree of this version: docker build --file "
                    f"deploy/images/{name}.Dockerfile --tag chorale-{name}:{version} ."
                    for name in ("coordinator", "silo")
                ),
                f"docker compose --file {quote(f'{out}/compose/compose.yaml')} up --detach",
                f"http://127.0.0.1:3000 is Grafana: user admin, password in {out / SECRET}",
                "http://127.0.0.1:9090 is Prometheus",
            ],
        )


@app.command("helm")
def helm(
    out: Out,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address that silos dial; repeat for more names."),
    ] = None,
    root_public_key: Annotated[
        Path | None,
        typer.Option(
            "--root-certificate", "--root-public-key", help="root.pub, from chorale root init."
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write the Helm chart, and a values file with what is known of this coordinator.

    The root's private key is made elsewhere and never comes into the cluster.
    """
    with answering(output), refusals("chorale deploy"):
        from ops.deploy.files import DeploymentFile, shipped, write_files

        key = "" if root_public_key is None else _public_key(root_public_key)
        linked = {"rules": "prometheus/rules", "dashboards": "grafana/dashboards"}
        files = [
            replace(file, path=file.path.relative_to("helm"))
            for file in shipped("helm/chorale")
            if not linked.keys() & set(file.path.parts)
        ]
        for name, part in linked.items():
            files += shipped(part, below=f"chorale/{name}")
        where, given = quote(f"{out}/chorale"), quote(f"{out}/values.yaml")
        values = DeploymentFile(
            path=PurePosixPath("values.yaml"), content=_values(host or [], key).encode()
        )
        written = write_files([*files, values], out)
        install = f"helm upgrade --install chorale {where} --values {given}"
        answer_written(
            output,
            kind="helm",
            out=out,
            written=written,
            next_steps=[
                f"edit {out}/values.yaml: image.repository, and what is marked CHANGE",
                f"helm lint {where} --values {given}",
                f"{install} --namespace chorale --create-namespace",
            ],
        )


def _public_key(path: Path) -> str:
    """The root's public key as PEM; a private one is refused."""
    from server.pki.keys import public_key_pem, read_public_key

    return public_key_pem(read_public_key(path)).decode()


def _values(hosts: Sequence[str], root_public_key: str) -> str:
    import json

    # A JSON string is a YAML string as well.
    names = hosts or ["coord.example.org"]
    lines = [
        "# What this coordinator is called and whom it trusts; every other value is in",
        "# chorale/values.yaml, with what it means.",
        "coordinator:",
        "  hosts:" + ("" if hosts else " # CHANGE: what silos dial"),
        *(f"    - {json.dumps(name)}" for name in names),
    ]
    if root_public_key:
        lines += ["  rootPublicKey:", "    value: |"]
        lines += [f"      {line}" for line in root_public_key.splitlines()]
    else:
        lines += [
            "  rootPublicKey:",
            '    value: "" # CHANGE: the content of root.pub, from chorale root init',
        ]
    return "\n".join(lines) + "\n"
