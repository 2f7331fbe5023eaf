"""``chorale doctor``: everything that can keep a coordinator from working, as separate steps.

Invariants: nothing is changed, migrated or repaired; a step looks at one thing; what it needs is
named, so that one broken file is one failure and not ten.

Covered: what the files beside this one list. Not covered: what silos can reach, which
``chorale-silo doctor`` examines from where they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

from federation.version import Version
from ops.doctor.checkup import Check, Checkup, Finding, Verdict, examine, failed, ok
from server.config import CoordinatorConfig
from server.errors import ConfigurationError, NoCoordinatorError
from server.site.doctor import advisor, certificates, files, network, state

__all__ = ["examine_coordinator"]


def examine_coordinator(
    data_dir: Path, *, call: Callable[[], network.Called], told: Callable[[Finding], None]
) -> Checkup:
    """Take every step, and tell each finding as it is made.

    ``call`` is one authenticated call.
    """
    return examine(_Coordinator(data_dir, call).checks(), told=told)


class _Coordinator:
    """The steps, and what earlier ones read."""

    def __init__(self, data_dir: Path, call: Callable[[], network.Called]) -> None:
        self._data_dir = data_dir
        self._ask = call
        self._running: Version | None = None
        self._read: CoordinatorConfig | None = None

    def checks(self) -> tuple[Check, ...]:
        """In order: files first, then what they say, then the network."""
        configured, keyed = ("configuration",), ("configuration", "keys")
        return (
            Check(name="data_directory", look=lambda: files.judge_directory(self._data_dir)),
            Check(name="configuration", look=self._configuration),
            Check(name="keys", look=lambda: files.judge_keys(self._config), needs=configured),
            Check(name="root_key_absent", look=self._root_key, needs=keyed),
            Check(name="ca", look=lambda: certificates.judge_ca(*self._now()), needs=keyed),
            Check(
                name="server_certificate",
                look=lambda: certificates.judge_server(*self._now()),
                needs=("keys", "ca"),
                connects=True,
            ),
            Check(
                name="admin_certificate",
                look=lambda: certificates.judge_admin(*self._now()),
                needs=keyed,
                connects=True,
            ),
            Check(name="clock", look=lambda: certificates.judge_clock(*self._now()), needs=keyed),
            Check(
                name="database",
                look=lambda: state.judge_database(self._config),
                needs=configured,
            ),
            Check(name="disk", look=lambda: state.judge_disk(self._config), needs=configured),
            Check(name="audit", look=lambda: state.judge_audit(self._config), needs=configured),
            Check(name="packages", look=state.judge_packages),
            Check(name="post_quantum", look=state.judge_post_quantum),
            Check(
                name="dns",
                look=lambda: network.judge_names(self._config),
                needs=configured,
                connects=True,
            ),
            Check(name="ports", look=lambda: network.judge_ports(self._config), needs=configured),
            Check(
                name="tcp",
                look=lambda: network.judge_tcp(self._config),
                needs=("ports",),
                connects=True,
            ),
            Check(
                name="tls",
                look=lambda: network.judge_tls(self._config),
                needs=("keys", "ports", "admin_certificate"),
                connects=True,
            ),
            Check(
                name="call",
                look=self._call,
                needs=("tls",),
                connects=True,
            ),
            Check(
                name="advisor",
                look=lambda: advisor.judge_advisor(self._config),
                needs=configured,
                connects=True,
            ),
            Check(name="versions", look=lambda: network.judge_versions(self._running)),
        )

    @property
    def _config(self) -> CoordinatorConfig:
        if self._read is None:
            raise ConfigurationError("the configuration was not read")
        return self._read

    def _now(self) -> tuple[CoordinatorConfig, dt.datetime]:
        return self._config, dt.datetime.now(dt.UTC)

    def _configuration(self) -> Verdict:
        try:
            self._read = CoordinatorConfig.load(self._data_dir)
        except NoCoordinatorError as error:
            return failed(
                str(error),
                "--data or CHORALE_DATA names the coordinator's directory; chorale init makes one",
            )
        except ConfigurationError as error:
            return failed(
                str(error), "correct coordinator.toml or the environment: the text says what"
            )
        config = self._read
        return ok(
            f"federation {config.federation or 'from the database'}, silos dial "
            f"{config.dial_coordinator} and join at {config.dial_enrolment}"
        )

    def _root_key(self) -> Verdict:
        return files.judge_root_key(self._config.paths)

    def _call(self) -> Verdict:
        verdict, self._running = network.judge_call(self._ask)
        return verdict
