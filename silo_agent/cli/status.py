"""What ``chorale-silo status`` shows: the silo's own files and its probes, read only.

Covered: a daemon that runs, one that does not, a silo that has not joined yet, whose base model is
missing, or whose policy or ledger cannot be used, a daemon whose figures are shown to nobody; each
of these is a line, not a failure. Not covered: asking the coordinator; the budget's figures
(``silo_agent/books/budget.py``).
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding

from dp.errors import PrivacyError
from federation.membership.roster_change import fingerprint
from ops.address import ADDRESS_FILE, split_address
from silo_agent.books.budget import UnitBudget, read_budget
from silo_agent.books.departure import Departure
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError, SiloError
from silo_agent.identity.identity import Identity
from silo_agent.policy.document import Policy
from silo_agent.policy.limits import late_problems
from silo_agent.policy.passed_time import PassedTime
from silo_agent.views.guarding import read_guarding
from silo_agent.views.judgement import Judgement, newest_judgements
from silo_agent.views.recommendation import Recommendation, recommendations
from silo_agent.views.runs import WAITING, ListedRun, list_runs

__all__ = ["RunStatus", "Status", "read_status"]

_TIMEOUT_S = 2.0
_MAX_FIGURES_BYTES: Final = 4 << 20
_LATE_S: Final = 60
"""A coordinator that is there answers each poll, which takes eight seconds."""
_FAR_UNIX_S: Final = 1 << 35
"""No clock says a later time: in the year 3058."""
_CONTACT: Final = "chorale_silo_coordinator_contact_timestamp_seconds"
_PHASE: Final = "chorale_silo_round_phase"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """One run as this silo followed it."""

    run: str
    """Its id."""
    round: int
    """Of the adopted record."""
    adapter_sha256: str
    """Of the adopted adapter."""
    local_rounds: int
    """Rounds of local work reported here."""
    judged: tuple[Judgement, ...]
    """Of the newest round that was judged; ``personal`` tells the silo's own adapter apart."""
    recommended: tuple[Recommendation, ...]
    """Which adapter to serve, for each family and for all; empty where there is no choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Everything at a glance."""

    federation: str | None
    """None before joining."""
    silo_id: str | None
    """None before joining."""
    key_fingerprint: str | None
    """Of the key that signs this silo's messages, as ``chorale root sign`` compares it; None before
    joining."""
    root_fingerprint: str | None
    """Of the consortium root's key that was pinned, as ``chorale root init`` shows it; None before
    joining."""
    ca_sha256: tuple[str, ...]
    """Of the CAs that the coordinator's certificate may be of, as ``chorale ca show`` prints them;
    empty before joining."""
    certificate_sha256: str | None
    """Of the client certificate; None before joining."""
    certificate_expiry_unix_s: int | None
    """When the client certificate ends; None before joining."""
    daemon: str
    """``ready``, ``not ready`` or ``not running``."""
    contact_unix_s: float | None
    """When the coordinator last answered the daemon, 0 for never; None where it does not say."""
    phase: str | None
    """Where the daemon is in a round, ``idle`` between rounds; None where it does not say."""
    probes: str | None
    """Address of the daemon's probes."""
    base_sha256: str | None
    """Digest of the base model; None where there is none to read."""
    families: tuple[str, ...]
    """What is declared to the coordinator."""
    roster_epoch: int
    """Newest accepted; 0 before the first."""
    runs: tuple[RunStatus, ...]
    """Runs this silo followed."""
    budget: tuple[UnitBudget, ...]
    """Epsilon of each kind of unit that has a cap, was charged or left unprotected; empty where
    nobody can say."""
    waiting: tuple[ListedRun, ...]
    """Runs that wait for an approval."""
    hardware: tuple[str, ...]
    """How the newest run's work is fitted to this machine."""
    guard: tuple[str, ...]
    """What this site serves and the newest verdict, in words; empty without a guard."""
    leaving: bool
    """Whether this silo takes part in nothing any more."""
    problems: tuple[str, ...]
    """What is in the way of taking part."""

    def as_data(self) -> dict[str, Any]:
        """For the envelope."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        member = f"{self.silo_id} of {self.federation}" if self.silo_id else "not joined yet"
        probes = f" (probes on {self.probes})" if self.probes else ""
        lines = [
            f"silo: {member}",
            f"key: {self.key_fingerprint or 'none'}",
            f"root: {self.root_fingerprint or 'none'}",
            *(f"CA: {sha256}" for sha256 in self.ca_sha256 or ("none",)),
            f"certificate: {self._certificate()}",
            f"daemon: {self.daemon}{probes}",
            *self._following(),
            f"approval: {self._approval()}",
            f"base model: {self.base_sha256 or 'none'}",
            f"declares: {', '.join(self.families) or 'nothing'}",
            f"roster epoch: {self.roster_epoch or 'none seen'}",
        ]
        for run in self.runs:
            lines.append(
                f"run {run.run}: adopted round {run.round}, adapter {run.adapter_sha256[:12]}, "
                f"{run.local_rounds} round(s) of local work"
            )
            lines += [f"run {run.run}: {judgement.line}" for judgement in run.judged]
            lines += [f"run {run.run}: {found.line}" for found in run.recommended]
        lines += [f"guard: {note}" for note in self.guard]
        lines += [row.line for row in self.budget]
        lines += [line for run in self.waiting for line in run.lines()]
        lines += [f"on this machine: {note}" for note in self.hardware]
        if self.leaving:
            lines.append("this silo has left: it takes part in nothing any more")
        return lines + [f"problem: {problem}" for problem in self.problems]

    def _certificate(self) -> str:
        if self.certificate_expiry_unix_s is None:
            return "none"
        return f"{self.certificate_sha256}, until {_moment(self.certificate_expiry_unix_s)}"

    def _following(self) -> list[str]:
        """What a daemon that runs says of its line and of its round."""
        if self.probes is None:
            return []
        if self.contact_unix_s is None:
            return ["coordinator: not known, for the daemon shows its figures to nobody here"]
        if self.contact_unix_s <= 0:
            return ["coordinator: no answer since the daemon started: chorale-silo doctor says why"]
        ago = max(0, int(time.time() - self.contact_unix_s))
        late = "; chorale-silo doctor says why" if ago > _LATE_S else ""
        return [
            f"coordinator: answered {ago} s ago, {_moment(self.contact_unix_s)}{late}",
            f"phase: {self.phase or 'not known'}",
        ]

    def _approval(self) -> str:
        if not self.waiting:
            return "none is waited for"
        return f"waited for by {', '.join(run.run for run in self.waiting)}: chorale-silo runs"


def read_status(data_dir: Path) -> Status:
    """Look at a data directory.

    Raises:
        SiloError: The configuration or the silo's state cannot be read.
    """
    config = SiloConfig.load(data_dir)
    store = LocalStore(config.data_dir)
    problems: list[str] = []
    federation = silo_id = key = root = certificate = base = expiry = None
    cas: tuple[str, ...] = ()
    try:
        identity = Identity.load(config.data_dir)
        federation, silo_id = identity.federation, identity.silo_id
        key = fingerprint(identity.signing_key.public_key().public_bytes_raw())
        root = fingerprint(identity.root_key)
        cas = tuple(
            hashlib.sha256(ca.public_bytes(Encoding.DER)).hexdigest()
            for ca in (identity.ca, *identity.also_trusted)
        )
        certificate = identity.certificate_sha256.hex()
        expiry = identity.certificate_expiry_unix_s
    except SiloError as error:
        problems.append(str(error))
    try:
        base = config.base_sha256().hex()
    except ConfigError as error:
        problems.append(str(error))
    budget: tuple[UnitBudget, ...] = ()
    heard: tuple[ListedRun, ...] = ()
    try:
        policy = Policy.load(config.policy_file)
        privacy = policy.privacy
        found = read_budget(config.data_dir, delta=privacy.delta, caps=privacy.caps())
        budget = found.units
        heard = list_runs(config.data_dir, policy)
        problems += late_problems(policy, PassedTime(config.data_dir).read())
    except (SiloError, PrivacyError) as error:
        problems.append(str(error))
    address = _address(config.data_dir)
    daemon = _ask(address, config) if address else "not running"
    contact: float | None = None
    phase: str | None = None
    if address and daemon != "not running":
        contact, phase = _told(address, config)
    done = [entry.get("run") for entry in store.rounds()]
    heads = store.chain_heads()
    judged: dict[str, tuple[Judgement, ...]] = {}
    recommended: dict[str, tuple[Recommendation, ...]] = {}
    try:
        evaluations = store.evaluations()
        judged = {run: newest_judgements(evaluations, run) for run in heads}
        choices = store.choices()
        recommended = {run: recommendations(choices, judged[run], run) for run in heads}
    except SiloError as error:
        problems.append(str(error))
    runs = tuple(
        RunStatus(
            run=run,
            round=head.round,
            adapter_sha256=head.adapter_sha256.hex(),
            local_rounds=done.count(run),
            judged=judged.get(run, ()),
            recommended=recommended.get(run, ()),
        )
        for run, head in sorted(heads.items())
    )
    return Status(
        federation=federation,
        silo_id=silo_id,
        key_fingerprint=key,
        root_fingerprint=root,
        ca_sha256=cas,
        certificate_sha256=certificate,
        certificate_expiry_unix_s=expiry,
        daemon=daemon,
        contact_unix_s=contact,
        phase=phase,
        probes=address if daemon != "not running" else None,
        base_sha256=base,
        families=config.families(),
        roster_epoch=store.newest_roster_epoch(),
        runs=runs,
        budget=budget,
        waiting=tuple(run for run in heard if run.state == WAITING),
        hardware=heard[-1].hardware if heard else (),
        guard=_guard(config, problems),
        leaving=Departure(config.data_dir).mark() is not None,
        problems=tuple(problems),
    )


def _guard(config: SiloConfig, problems: list[str]) -> tuple[str, ...]:
    """What is served and the newest verdict; a file that cannot be read is a problem."""
    if config.guard is None:
        return ()
    try:
        found = read_guarding(config)
    except SiloError as error:
        problems.append(str(error))
        return ()
    return (found.summary,) if found.newest is None else (found.summary, found.newest)


def _address(data_dir: Path) -> str | None:
    try:
        return (data_dir / ADDRESS_FILE).read_text().strip()
    except FileNotFoundError:
        return None


def _connection(address: str, config: SiloConfig) -> http.client.HTTPConnection:
    host, port = split_address(address)
    if config.probes_certificate is None:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    # The daemon's own certificate, whatever its names are: the file is what is trusted.
    context = ssl.create_default_context(cafile=str(config.probes_certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


def _get(
    address: str, config: SiloConfig, path: str, headers: Mapping[str, str]
) -> tuple[int, bytes] | None:
    """Status and body of an answer of the daemon's probes; None where nobody answers."""
    with closing(_connection(address, config)) as connection:
        try:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_FIGURES_BYTES)
        except (OSError, http.client.HTTPException):
            # The file of a daemon that was killed: nobody answers there.
            return None


def _ask(address: str, config: SiloConfig) -> str:
    answer = _get(address, config, "/readyz", {})
    if answer is None:
        return "not running"
    return "ready" if answer[0] == http.client.OK else "not ready"


def _told(address: str, config: SiloConfig) -> tuple[float | None, str | None]:
    """The coordinator's last answer and the phase, as the daemon's own figures have them."""
    headers = {}
    if config.probes_token_file is not None:
        try:
            token = config.probes_token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None, None
        headers["Authorization"] = f"Bearer {token}"
    answer = _get(address, config, "/metrics", headers)
    if answer is None or answer[0] != http.client.OK:
        return None, None
    # Imported only where a daemon runs.
    from prometheus_client.parser import text_string_to_metric_families

    contact: float | None = None
    phase: str | None = None
    try:
        for family in text_string_to_metric_families(answer[1].decode(errors="replace")):
            for sample in family.samples:
                if sample.name == _CONTACT and 0 <= sample.value < _FAR_UNIX_S:
                    contact = sample.value
                elif sample.name == _PHASE and sample.value:
                    phase = sample.labels.get("phase")
    except ValueError:
        # Another program has the port that a killed daemon had.
        return None, None
    return contact, phase


def _moment(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, tz=UTC):%F %R} UTC"
