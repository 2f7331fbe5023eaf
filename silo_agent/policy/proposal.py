"""Policy files written for a site to edit: one that refuses everything, one that fits a plan.

Invariants:

1. Nothing that a site wrote is overwritten unless it says so. A file that was written here and that
   nobody has edited since is known by its first line, the digest of the rest, and is replaced.
2. What is written was parsed before. A proposal allows what one plan asks for and as little more as
   possible; the operator reads it before the daemon does.
3. That a run without noise gives up all privacy is accepted by nobody but the operator: the line
   is a comment unless the operator asked for it by name.

Covered: ``chorale-silo join`` and ``policy init``. Not covered: changing a file that a site edited.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dp.accounting.charge import UnitKind
from dp.accounting.compose import epsilon_of
from dp.config import RECORD_MODES, Mode
from federation.plan.charges import (
    charged_steps,
    charges_of_run,
    most_debits,
    protected_unit,
)
from federation.plan.plan import Plan
from federation.plan.toml import MAX_TOML_BYTES
from ops.files import replace_file
from secagg.bounds import MAX_DIMENSION
from silo_agent.errors import PolicyFileError
from silo_agent.policy.document import NO_PRIVACY, Policy
from silo_agent.policy.plan import largest_clip, least_noise_multiplier

__all__ = ["write_default", "write_for_plan"]

_UNEDITED: Final = "# Unedited, and replaced by `policy init`, while the rest has the SHA-256 "
"""The first line of a file that was written here, with the digest of all others."""
_MOST: Final = 1e18
"""What an infinite ε is written as: TOML has infinity, but a policy does not take it."""


def write_default(path: Path, *, force: bool = False) -> bool:
    """Write a commented policy that refuses everything; True if it replaced a file.

    Raises:
        PolicyFileError: There is a file that was edited, and no ``force``; or it cannot be written.
    """
    return _write(path, _NOTHING, force=force)


def write_for_plan(
    path: Path,
    plan: Plan,
    *,
    own_parts: Sequence[str] = (),
    accept_no_privacy: bool = False,
    force: bool = False,
) -> bool:
    """Write a commented policy that allows what one plan asks for, and as little more as possible.

    ``own_parts`` are the silo's own play and gate: allowed where the plan lets a silo choose.

    True if it replaced a file. Without ``accept_no_privacy``, the operator's word for what a plan
    of mode ``none`` gives up, such a plan stays refused until the line is uncommented.

    Raises:
        PolicyFileError: There is a file that was edited, and no ``force``; or it cannot be written.
    """
    privacy, record = plan.privacy, plan.privacy.record
    spec = plan.spec
    protected = protected_unit(spec)
    return _write(
        path,
        {
            "models": [plan.model.base_sha256],
            "environments": list(plan.evolve.environments),
            "evolvers": [plan.evolve.method],
            "aggregation": [plan.aggregation.method],
            "packages": list(plan.recipe.packages),
            "own_parts": list(own_parts) if plan.evolve.local_parts else [],
            "modes": [privacy.mode],
            "accept_no_privacy": accept_no_privacy and Mode(privacy.mode) is Mode.NONE,
            "exact_figures": privacy.exact_figures,
            "vetoes": plan.vetoes is not None,
            "units": [privacy.unit] if Mode(privacy.mode) in RECORD_MODES else [],
            "max_epsilon_per_run": 0.0 if protected is None else privacy.epsilon_cap,
            "min_noise": least_noise_multiplier(spec),
            "max_clip": largest_clip(spec),
            "max_sampling_rate": 0.0 if record is None else record.sampling_rate,
            "max_steps": charged_steps(plan),
            "epsilon_caps": _caps(plan, protected),
            "delta": privacy.delta,
            "min_survivors": plan.secure_aggregation.n_min,
            "max_rounds": plan.rounds.count,
            "max_epochs": plan.most_local_epochs,
            "max_episodes": plan.evolve.episodes_per_round,
            "min_episodes": plan.evolve.episodes_per_round if plan.evolve.explore else 0,
            "min_tasks": plan.tasks_per_round,
            "max_dimension": MAX_DIMENSION,
            "max_attempts": 1 + plan.charged_releases - plan.releases,
            "min_ready_after": plan.rounds.ready_after_s,
            "min_step_answer_after": plan.rounds.step_answer_after_s,
            "max_per_day": most_debits(plan),
            "local_hours": plan.longest_ready_s / 3600.0,
        },
        force=force,
    )


def _caps(plan: Plan, protected: UnitKind | None) -> dict[str, float]:
    """The plan's own cap for the unit it protects; what the run costs for any other charged unit.

    Units inside a charged one are left to the site: it may cap them, and need not.
    """
    charges = charges_of_run(plan)
    costs = epsilon_of(charges, plan.privacy.delta)
    own = {charge.unit for charge in charges}
    return {
        unit: plan.privacy.epsilon_cap if unit == protected else min(_MOST, _rounded_up(cost))
        for unit, cost in costs.items()
        if unit in own
    }


def _rounded_up(value: float) -> float:
    return math.ceil(value * 1000.0) / 1000.0 if value < _MOST else value


def _write(path: Path, values: Mapping[str, object], *, force: bool) -> bool:
    body = _text(values)
    Policy.parse(body.encode())
    content = _marked(body.encode())
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(content)
            return False
        if not force and not _is_unedited(path):
            raise PolicyFileError(
                f"{path} exists, and was edited since it was written: go on editing it, or replace "
                "it with --force"
            )
        replace_file(path, (content,))
    except OSError as error:
        raise PolicyFileError(f"cannot write {path}: {error}") from error
    return True


def _is_unedited(path: Path) -> bool:
    """Whether a file is as it was written here.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TOML_BYTES)
    # An earlier release wrote the starter without the first line.
    return content in (_marked(content.partition(b"\n")[2]), _text(_NOTHING).encode())


def _marked(body: bytes) -> bytes:
    return f"{_UNEDITED}{hashlib.sha256(body).hexdigest()}\n".encode() + body


def _text(values: Mapping[str, object]) -> str:
    # Every value is a number, a plain name, or a list or table of those, which TOML and Python
    # spell alike but for the table; the result is parsed before it is written all the same.
    shown = {key: _toml(value) for key, value in values.items()}
    limited = values["local_hours"] is not None
    epochs = f"max_local_epochs = {values['max_epochs'] or 1}"
    hours = f"max_local_hours_per_round = {shown['local_hours'] if limited else 1.0}"
    accepted = f'accept_no_privacy = "{NO_PRIVACY}"'
    return _TEMPLATE.format_map(
        {
            **shown,
            "max_epochs": f"# {epochs}" if values["max_epochs"] is None else epochs,
            "local_hours": hours if limited else f"# {hours}",
            "accept_no_privacy": accepted if values["accept_no_privacy"] else f"# {accepted}",
        }
    )


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        entries = ", ".join(f"{key} = {_toml(item)}" for key, item in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


_NOTHING: Mapping[str, object] = {
    "models": [],
    "environments": [],
    "evolvers": [],
    "aggregation": [],
    "packages": [],
    "own_parts": [],
    "modes": [],
    "accept_no_privacy": False,
    "exact_figures": False,
    "vetoes": False,
    "units": [],
    "max_epsilon_per_run": 0.0,
    "min_noise": 0.0,
    "max_clip": 0.0,
    "max_sampling_rate": 0.0,
    "max_steps": 0,
    "epsilon_caps": {},
    "delta": 1e-5,
    "min_survivors": 3,
    "max_rounds": 0,
    "max_epochs": None,
    "max_episodes": 0,
    "min_episodes": 100,
    "min_tasks": 25,
    "max_dimension": 0,
    "max_attempts": 0,
    "min_ready_after": 0,
    "min_step_answer_after": 0,
    "max_per_day": 0,
    "local_hours": None,
}

_TEMPLATE = """\
# What this site allows. Everything that is not listed here is refused; an empty list allows
# nothing and a ceiling of 0 lets nothing pass. The daemon reads this file when it starts.
# `chorale-silo policy check PLAN.toml` gives the daemon's verdict on a plan, with the rule.

[policy]
# "auto" takes part in whatever every rule below allows. With "manual" each run waits as well, until
# `chorale-silo approve RUN` was called for the very plan it asks for; `chorale-silo runs` shows
# what waits and what it would cost. `chorale-silo refuse RUN` holds under both.
approval = "auto"

[models]
# SHA-256 of the base models that may be adapted; `chorale-silo status` shows yours.
allowed = {models}

[environments]
# Names that a plan may explore and be judged on.
allowed = {environments}

[methods]
evolvers = {evolvers}
aggregation = {aggregation}
# Installed packages whose parts and methods a plan may name: their code runs with this daemon.
packages = {packages}
# Plays and gates that silo.toml may choose by itself under [evolve], where a plan's local_parts
# lets it. A run in which it would have one that is not listed is refused.
own_parts = {own_parts}
# Whether the coordinator's admin may take a run back to the adapter of an earlier round of it. It
# charges nothing by itself, and it has this silo train again from an adapter that it trained from
# before. A silo that does not allow it stays where it is and takes no further part in that run.
allow_rollback = false

[privacy]
# "record_local" hides one task (or one user) from everybody outside this silo, the other silos
# together with the coordinator included. "record_distributed" hides it with noise that the silos
# share: it holds as long as no more than the roster's c silos work together with the coordinator.
# "silo" hides what this silo's whole data set contributed, under the same condition. "none" is
# masking without noise, and is accepted only if it is written here, with the sentence below it.
modes = {modes}
# What mode "none" gives up: a silo may have nothing to contribute in a round, and if that is so of
# all but one, the sum is that one's. Without this line, word for word, "none" is refused.
{accept_no_privacy}
# Whether success and norms may be summed without noise where a plan of mode "none" asks for them.
# The same holds of them: they may be one silo's. Without it the coordinator is told none.
allow_exact_figures = {exact_figures}
# Whether this silo's guard may veto where a plan asks for vetoes: under noise the sum then tells
# what its probes found. Without it a silo with [guard] in silo.toml refuses such a plan.
allow_vetoes = {vetoes}
# Whether a run with noise may follow an upload in mode "none". No epsilon speaks of that upload, so
# it stands beside every epsilon of this silo from then on; without this line such a run is refused.
# after_none = true
# Whether a sum without noise may be of silos that were not in the one before it: sums of cohorts
# that vary can be subtracted from one another. It takes every silo of the sum to say so, here or by
# `chorale-silo approve RUN --cohort-may-vary`; without it such cohorts only shrink.
cohort_may_vary = false
# What one unit may be in the record modes: "task", "user".
units = {units}
# Packages whose parts may run in the record modes, each with the digest of what somebody here has
# read, for example {{ chorale-rloo = "…" }}: what keeps units apart is then their code as well.
record_parts = {{}}
# Largest epsilon of one run, spare attempts included, for the unit that its mode protects and at
# the delta below; or "unlimited".
max_epsilon_per_run = {max_epsilon_per_run}
# Least noise multiplier z: of the protected unit, of the metrics, and of noise for the silo that a
# record mode adds.
min_noise_multiplier = {min_noise}
# Largest L2 clip of what noise hides: a whole update in "silo", one unit's gradient in the record
# modes, and the update as well where a record mode adds noise for the silo.
max_clip_l2 = {max_clip}
# The record modes only: largest sampling rate q, most noisy steps of one run.
max_sampling_rate = {max_sampling_rate}
max_steps_per_run = {max_steps}
# Epsilon that all runs together may ever cost, for each kind of unit that may lose anything, for
# example {{ task = 8.0, silo = 50.0 }}. A kind that is not named here has no budget. The ledger
# enforces it before every training and before every upload; `chorale-silo budget` shows what is
# left. A run that adds noise for the silo to a record mode is charged to both. A task lies in its
# user and in the silo, so it pays for their releases too, about twice the epsilon where noise was
# made for the silo: name the smaller kind as well to cap that. What is not named is shown only.
epsilon_caps = {epsilon_caps}
delta = {delta}

[secure_aggregation]
# "v2" hides masks and boxes from a quantum computer too. What is recorded of a run of suite "v1"
# can be opened by one later; it is accepted only if "v1" is listed here with the line below it.
suites = ["v2"]
# accept_v1 = true
# Hashes that uploads may be sent with. "blake3" is faster and no FIPS hash.
digests = ["sha256"]

[cohort]
# Silos in a round, shares needed to open a sum, silos that a sum holds, colluders withstood.
min_silos = {min_survivors}
min_threshold = 3
min_survivors = {min_survivors}
min_colluding = 1
# With this line nobody else may be in a round with this silo:
# partners = ["hospital-b", "hospital-c", "hospital-d"]

[schedule]
# When a round may begin here, in UTC. A window may run past midnight.
# hours_utc = "20:00-06:00"

[facts]
# What this silo says about itself to the coordinator and to whoever plans its rounds, of
# "availability", "queue", "free_gpu", "budget_left" and "earliest_start_unix_s". None of them
# depends on data; `chorale-silo facts` shows what each would say and what it comes from.
publish = []

[limits]
max_rounds = {max_rounds}
# How often one round may play and train. Without this line there is no limit.
{max_epochs}
max_episodes_per_round = {max_episodes}
# Least episodes of a round, and least tasks that they are tries at: a sum of almost nothing shows
# what little there was. Mode "none" is refused without both lines.
min_episodes_per_round = {min_episodes}
min_tasks_per_round = {min_tasks}
max_dimension = {max_dimension}
# At one sum; each one that reaches the upload is charged.
max_attempts_per_round = {max_attempts}
# Seconds that a plan must keep the ready report back at least, so that it does not tell how long
# local work took; 0 asks for none. The record modes have no round without it, and work that takes
# longer than a plan's is dropped there; this silo then refuses these modes until this line is above
# what was passed.
min_ready_after_s = {min_ready_after}
# The same for the answer to a step of "record_distributed".
min_step_answer_after_s = {min_step_answer_after}
# Attempts that reach the upload, and local trainings, in one UTC day. Each is charged, and attempts
# that others make fail are charged too: a lower figure makes them last longer.
max_attempts_per_day = {max_per_day}
# Questions whether this silo would take part in a plan, of all plans together, that are judged in
# one UTC day. Whoever asks learns what this file says to a plan, never more; 0 answers none.
max_preflights_per_day = 20
# Most hours of one round's local work. A plan that gives it more (ready_deadline_s) is refused;
# work that still runs then is ended and counts as failed, which nobody outside can see. The record
# modes end it at the plan's ready_after_s. Without this line there is no limit.
{local_hours}
# Most bytes in this silo's data directory when local work begins, and of what a plan needs there.
# Successes, demonstrations and reports do not count: their size is data, and a limit would tell it.
# max_disk_bytes = 50000000000
# Runs whose successes and personal adapters stay on disk. Those of older runs are DELETED when the
# work of another run begins: copy from evolve/ what is to be kept, or raise the figure.
# max_kept_runs = 64
# GPUs that may be used, by index; [] is none. Without this line all that are visible.
# gpus = [0]

[offers]
# What this site offers where it refuses a plan that lets sites move it: fewer local epochs, a later
# start, a lower epsilon of the run. Each tells whoever asks how far this file lets a plan go:
# max_local_epochs, when hours_utc begins, and to a quarter what the limits on epsilon and what is
# left of the budget come to.
local_epochs = false
start = false
epsilon = false
"""
