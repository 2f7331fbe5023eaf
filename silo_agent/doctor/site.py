"""The doctor's steps about what this site set up and keeps: policy, model, environments, books.

Covered: files that cannot be read, a policy that refuses everything, a base model that the policy
does not allow, environments that cannot be made or do not answer a first task, a ledger that is
damaged, lost or older than this silo remembers, an audit log that is not as it was written. Not
covered: what a plan would be told (``chorale-silo policy check``).
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from dp.config import ADJACENCY
from dp.errors import PrivacyError
from evolution.envs.tasks import Split
from evolution.errors import EnvironmentFailureError, ShardError
from federation.errors import AuditChainError, TornRecordError
from ops.audit_log import verify_log
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.doctor.installed import judge_packages as judge_installed
from secagg import hybrid
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.budget import read_budget
from silo_agent.config import NO_BASE_MODEL, SiloConfig
from silo_agent.errors import ConfigError, SiloError
from silo_agent.policy.document import Policy
from silo_agent.policy.limits import late_problems
from silo_agent.policy.passed_time import PassedTime

__all__ = [
    "judge_audit",
    "judge_base_model",
    "judge_environments",
    "judge_ledger",
    "judge_packages",
    "judge_policy",
    "judge_times",
]

_SHOWN: Final = ("grpcio", "protobuf", "torch", "transformers", "peft")
_ALLOW: Final = "chorale-silo policy init --plan PLAN allows one plan; policy.toml says the rest"


def judge_policy(policy: Policy) -> Verdict:
    """A plain summary of what the policy allows."""
    lists = {
        "base models": policy.models.allowed,
        "methods": policy.methods.evolvers,
        "aggregations": policy.methods.aggregation,
        "privacy modes": policy.privacy.modes,
    }
    empty = [name for name, allowed in lists.items() if not allowed]
    if empty:
        return warning(f"the policy refuses every plan: it allows no {empty[0]}", _ALLOW)
    caps = ", ".join(f"{unit} {cap:g}" for unit, cap in policy.privacy.caps().items()) or "none"
    shown = "; ".join(
        f"{name} {len(allowed) if name == 'base models' else ', '.join(allowed)}"
        for name, allowed in lists.items()
    )
    environments = ", ".join(policy.environments.allowed) or "none"
    return ok(
        f"allows {shown}; environments {environments}; epsilon for ever: {caps}; at least "
        f"{policy.cohort.min_survivors} silos in a sum; {policy.limits.max_rounds} rounds a run"
    )


def judge_base_model(config: SiloConfig, policy: Policy) -> Verdict:
    """The digest of the base model, and whether the policy allows it."""
    try:
        digest = config.base_sha256()
    except ConfigError as error:
        return failed(str(error), "set base_model of silo.toml to a directory with the model")
    shown = "none" if digest == NO_BASE_MODEL else f"{config.base_model}, sha256 {digest.hex()}"
    if digest.hex() not in policy.models.allowed:
        return warning(
            f"base model {shown}, which [models] allowed of the policy does not list",
            f"add {digest.hex()} there if this site allows it",
        )
    return ok(f"base model {shown}, allowed by the policy")


def judge_environments(config: SiloConfig) -> Verdict:
    """Make each environment and begin one task in it."""
    made = []
    for entry in config.environments:
        try:
            with closing(config.catalogue().make(entry.environment)) as environment:
                shard = entry.assignment().shard
                environment.reset(environment.task_ids(Split.TRAIN, shard=shard)[0])
        except ShardError as error:
            return failed(
                f"environment {entry.environment}: {error}",
                "choose a shard_count of silo.toml that divides the number of labels, the same at "
                "every silo that takes a share",
            )
        except EnvironmentFailureError as error:
            return failed(
                f"environment {entry.environment}: {error}",
                "start its server, or correct [foreign] and environments of silo.toml",
            )
        made.append(entry.environment)
    if not made and not config.constant:
        return warning("this silo explores nothing", "name environments in silo.toml")
    return ok(f"made, and a first task begun: {', '.join(made) or 'none are configured'}")


def judge_audit(config: SiloConfig) -> Verdict:
    """The whole chain of this site's audit log."""
    try:
        records = verify_log(config.data_dir / AUDIT_FILE)
    except FileNotFoundError:
        return ok("no audit record yet: the first is written when the daemon starts")
    except TornRecordError as error:
        return warning(
            str(error),
            "nothing that was acknowledged is lost: the next record goes over it, at the latest "
            "when chorale-silo run starts, and torn_write_cut says so in the log",
        )
    except AuditChainError as error:
        return failed(
            str(error),
            "keep the file as it is: it is evidence. chorale-silo audit verify names the first bad "
            "record",
        )
    except OSError as error:
        return failed(
            f"the audit log cannot be read: {error}", "let this user read audit.jsonl of --data"
        )
    return ok(f"{records} audit records, every one in place")


def judge_ledger(config: SiloConfig, policy: Policy) -> Verdict:
    """The privacy ledger: readable, whole, and not older than this silo remembers."""
    try:
        found = read_budget(config.data_dir, delta=policy.privacy.delta, caps=policy.privacy.caps())
    except (SiloError, PrivacyError) as error:
        return failed(
            str(error),
            "put back the newest copy of privacy.ledger and state.json of the same moment; "
            "chorale-silo budget says the same",
        )
    over = [
        f"{row.unit} stands at {row.epsilon_spent} ({ADJACENCY}), its cap is {row.epsilon_cap:g}"
        for row in found.units
        if row.over_cap
    ]
    if over:
        return warning(
            f"above a cap: {'; '.join(over)}; every release that is charged to it is refused",
            "raise epsilon_caps in policy.toml, if this site decides to",
        )
    left = [
        f"{row.unit} {row.epsilon_left:.3g} of {row.epsilon_cap:.3g}"
        for row in found.units
        if row.epsilon_cap > 0
    ]
    exceptions = [
        f"{row.unit}: no epsilon of {row.epsilon_spent.exceptions}"
        for row in found.units
        if row.epsilon_spent.exceptions
    ]
    spent = [row.unit for row in found.units if row.epsilon_cap > 0 and row.epsilon_left <= 0]
    records = 0 if found.ledger_seq is None else found.ledger_seq
    if spent:
        return warning(
            f"the budget of {', '.join(spent)} is spent: no more noise-protected runs here",
            "raise epsilon_caps in policy.toml, if this site decides to",
        )
    shown = f"epsilon left ({ADJACENCY}): {', '.join(left) or 'no caps set'}"
    return ok("; ".join((f"whole, newest record {records}", shown, *exceptions)))


def judge_times(config: SiloConfig, policy: Policy) -> Verdict:
    """Whether work here took longer than a plan gave it, and the policy does not ask for more."""
    try:
        passed = PassedTime(config.data_dir).read()
    except SiloError as error:
        return failed(str(error), "the text says how")
    if late := late_problems(policy, passed):
        return warning("; ".join(late), "raise those lines of [limits] in policy.toml, and restart")
    return ok("no work in a record mode took longer than its plan gives it")


def judge_suites(policy: Policy) -> Verdict:
    """Whether this machine's library can make what the suites of the policy need."""
    if hybrid.is_available():
        return ok("post-quantum key exchange: ML-KEM-768 is in cryptography's OpenSSL")
    text = "post-quantum key exchange: cryptography's OpenSSL has no ML-KEM-768"
    fix = (
        "pip install --upgrade 'cryptography>=50' from a wheel, whose OpenSSL is 3.5 or newer; one "
        "that was built here needs such an OpenSSL"
    )
    if hybrid.SUITE in policy.secure_aggregation.accepted:
        return failed(f"{text}: no run of suite v2 is possible here", fix)
    return warning(text, fix)


def judge_packages(config: SiloConfig) -> Verdict:
    """The installed packages against this version's requirements.

    Without base model and environments a silo needs none of the learning packages.
    """
    learns = config.base_model is not None
    versions, problems = judge_installed(extra="silo" if learns else "")
    if problems:
        return failed("; ".join(problems), "pip install --upgrade 'chorale[silo]'")
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if name in versions)
    return ok(f"{len(versions)} packages as required ({shown})")
