"""``chorale-silo doctor``: everything that can keep a silo from taking part, as separate steps.

Invariants:

1. Nothing is charged, uploaded or repaired, and no step changes what the silo keeps.
2. What a step needs is named, so that one broken file is one failure and not ten. The client
   certificate is judged here before the coordinator is dialled: over gRPC an expired one looks like
   an absent coordinator.
3. The coordinator is asked for its roster, which every silo asks for, and told nothing.

Covered: what the files beside this one list. Not covered: what a plan
would be told (``chorale-silo policy check``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dp.errors import PrivacyError
from evolution.errors import EvolveError, EvolverSetupError
from federation.errors import FederationError
from federation.plan.plan import Plan
from federation.version import Version
from ops.doctor.checkup import Check, Checkup, Finding, Verdict, examine, failed, ok, warning
from secagg.roster import SignedRoster
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.doctor import identity, machine, network, site
from silo_agent.doctor.dry_round import judge_dry_round
from silo_agent.doctor.worst_case import worst_case
from silo_agent.errors import (
    ConfigError,
    IdentityError,
    LocalStoreError,
    NoSiloError,
    PolicyFileError,
)
from silo_agent.identity.identity import Identity
from silo_agent.policy.document import Policy

__all__ = ["examine_silo"]

T = TypeVar("T")


def examine_silo(
    data_dir: Path, *, dry_round: bool, told: Callable[[Finding], None], plan: Plan | None = None
) -> Checkup:
    """Take every step, with one tiny round of local work where asked; ``told`` hears as it goes.

    With a plan the dry round also measures what the plan's longest work takes here.
    """
    return examine(_Silo(data_dir, plan).checks(dry_round=dry_round), told=told)


class _Silo:
    """The steps, and what earlier ones read."""

    def __init__(self, data_dir: Path, plan: Plan | None) -> None:
        self._data_dir = data_dir
        self._plan = plan
        self._config: SiloConfig | None = None
        self._identity: Identity | None = None
        self._policy: Policy | None = None
        self._store: LocalStore | None = None
        self._rosters: tuple[SignedRoster, ...] = ()
        self._version: Version | None = None

    def checks(self, *, dry_round: bool) -> tuple[Check, ...]:
        """In order: files first, then the machine, then the network."""
        local = (*self._files(), *self._site(), *self._network())
        if not dry_round:
            return local
        needs = ("configuration", "base_model", "environments", "packages")
        tried = (*local, Check(name="dry_round", look=self._dry_round, needs=needs))
        if self._plan is None:
            return tried
        return (*tried, Check(name="worst_case", look=self._worst_case, needs=("dry_round",)))

    def _files(self) -> tuple[Check, ...]:
        return (
            Check(name="data_directory", look=lambda: identity.judge_directory(self._data_dir)),
            Check(name="configuration", look=self._read_configuration),
            Check(name="identity", look=self._read_identity, needs=("data_directory",)),
            Check(
                name="certificate",
                look=lambda: identity.judge_certificate(_had(self._identity), _now()),
                needs=("identity",),
                connects=True,
            ),
            Check(
                name="clock",
                look=lambda: identity.judge_clock(self._data_dir, _had(self._identity), _now()),
                needs=("identity",),
            ),
            Check(name="state", look=self._read_state, needs=("data_directory",)),
            Check(name="policy", look=self._read_policy, needs=("configuration",)),
        )

    def _site(self) -> tuple[Check, ...]:
        configured, ruled = ("configuration",), ("configuration", "policy")
        return (
            Check(
                name="packages",
                look=lambda: site.judge_packages(_had(self._config)),
                needs=configured,
            ),
            Check(
                name="base_model",
                look=lambda: site.judge_base_model(_had(self._config), _had(self._policy)),
                needs=ruled,
            ),
            Check(
                name="environments",
                look=lambda: site.judge_environments(_had(self._config)),
                needs=configured,
            ),
            Check(
                name="ledger",
                look=lambda: site.judge_ledger(_had(self._config), _had(self._policy)),
                needs=("policy", "state"),
            ),
            Check(
                name="audit",
                look=lambda: site.judge_audit(_had(self._config)),
                needs=configured,
            ),
            Check(
                name="times",
                look=lambda: site.judge_times(_had(self._config), _had(self._policy)),
                needs=("policy",),
            ),
            Check(
                name="post_quantum",
                look=lambda: site.judge_suites(_had(self._policy)),
                needs=("policy",),
            ),
            Check(name="gpu", look=lambda: machine.judge_gpu(_had(self._config)), needs=configured),
            Check(
                name="memory",
                look=lambda: machine.judge_memory(_had(self._config)),
                needs=("base_model", "gpu"),
            ),
            Check(
                name="disk", look=lambda: machine.judge_disk(_had(self._config)), needs=configured
            ),
        )

    def _network(self) -> tuple[Check, ...]:
        return (
            Check(
                name="dns",
                look=lambda: network.judge_name(_had(self._identity)),
                needs=("identity",),
                connects=True,
            ),
            Check(
                name="tcp",
                look=lambda: network.judge_tcp(_had(self._identity)),
                needs=("dns",),
                connects=True,
            ),
            Check(
                name="tls",
                look=lambda: network.judge_tls(_had(self._identity), self._data_dir, _now()),
                needs=("tcp", "certificate"),
                connects=True,
            ),
            Check(name="call", look=self._call, needs=("tls",), connects=True),
            Check(
                name="versions",
                look=lambda: network.judge_versions(_had(self._identity), self._version),
                needs=("identity",),
            ),
            Check(
                name="roster",
                look=lambda: network.judge_roster(
                    _had(self._identity), _had(self._store), self._rosters
                ),
                needs=("call", "state"),
                connects=True,
            ),
        )

    def _read_configuration(self) -> Verdict:
        try:
            config = self._config = SiloConfig.load(self._data_dir)
        except NoSiloError as error:
            return failed(
                str(error),
                "--data or CHORALE_SILO_DATA names this silo's directory; chorale-silo join makes "
                "one, from an invite",
            )
        except ConfigError as error:
            return failed(str(error), "correct silo.toml: the text says what")
        explored = ", ".join(entry.environment for entry in config.environments) or "nothing"
        return ok(f"explores {explored}, base model {config.base_model or 'none'}")

    def _read_identity(self) -> Verdict:
        try:
            self._identity = Identity.load(self._data_dir)
        except IdentityError as error:
            text = str(error)
            fix = "chmod 600 the key files" if "open to other users" in text else identity.REJOIN
            return failed(text, fix)
        return identity.judge_identity(self._identity)

    def _read_state(self) -> Verdict:
        try:
            self._store = LocalStore(self._data_dir)
        except LocalStoreError as error:
            return failed(str(error), "put state.json and privacy.ledger of one moment back")
        return ok(
            f"newest roster epoch {self._store.newest_roster_epoch() or 'none'}, "
            f"{len(self._store.chain_heads())} runs followed"
        )

    def _read_policy(self) -> Verdict:
        try:
            self._policy = Policy.load(_had(self._config).policy_file)
        except PolicyFileError as error:
            return failed(str(error), "correct policy.toml: chorale-silo policy init writes one")
        return site.judge_policy(self._policy)

    def _call(self) -> Verdict:
        called = network.call_roster(_had(self._identity))
        self._rosters, self._version = called.rosters, called.version
        return called.verdict

    def _dry_round(self) -> Verdict:
        try:
            return judge_dry_round(_had(self._config), self._plan)
        except (EvolveError, OSError, RuntimeError, ValueError) as error:
            return failed(
                f"one round of local work failed: {type(error).__name__}: {error}",
                "the text says what: model, environment or trainer; nothing was charged",
            )

    def _worst_case(self) -> Verdict:
        plan = _had(self._plan)
        try:
            found = worst_case(_had(self._config), plan)
        except EvolverSetupError as error:
            return warning(str(error), "chorale-silo doctor --dry-round without --plan")
        except (EvolveError, PrivacyError, FederationError, OSError, RuntimeError) as error:
            return failed(
                f"the plan's longest work could not be measured: {type(error).__name__}: {error}",
                "the text says what: model, memory or trainer; nothing was charged",
            )
        keys = {"ready_after_s": found.ready_after_s}
        if found.step_answer_after_s:
            keys["step_answer_after_s"] = found.step_answer_after_s
        said = ", ".join(f"{key} = {value}" for key, value in keys.items())
        text = (
            f"exploring takes up to {found.explore_s:.1f} s, a step of {found.rows} rows up to "
            f"{found.step_s:.1f} s: a plan for this silo says at least {said}"
        )
        if missing := found.missing(plan):
            return warning(
                f"{text}; this one says less in {', '.join(missing)}",
                "raise it in the plan, or work that comes to its worst case is dropped here",
            )
        return ok(text)


def _had(value: T | None) -> T:
    """What an earlier step read; the order of the steps guarantees it."""
    if value is None:
        raise ConfigError("an earlier step did not read this")
    return value


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
