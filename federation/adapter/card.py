"""The model card beside an exported adapter: front matter, provenance, privacy, figures.

Invariants:

1. Equal facts give equal bytes: no time, no path of this machine beyond the base as the plan names
   it.
2. Names are shown literally: quoted in the front matter, escaped in the text.
3. No figure of a single silo. Success comes from the masked sums of rounds, and silos are counted,
   not named.

Covered: what a reader needs to check where an adapter comes from and what its ε means. Not covered:
held-out evaluation (each silo judges adapters on its own tasks and keeps the result), licences.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dp.accounting.charge import UnitKind
from dp.accounting.compose import Epsilon
from dp.config import ADJACENCY, RECORD_MODES, Mode, PrivacySpec
from dp.noise.estimate import Estimate
from dp.noise.figures import NOT_REPORTED, success_words
from federation.adapter.target import ALL_LINEAR, Target
from federation.text import escaped

__all__ = ["FamilySuccess", "ModelCard", "render_card"]

MODEL_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_LAST_ROUNDS: Final = 10
_LIMITS: Final = (
    "It does not say that nothing can be learned about a unit: e to the power of ε is the factor "
    "by which an outcome's probability may change, and δ what may come on top. It does not cover "
    "other runs on the same data, the data that the base model was trained on, who took part, or "
    "the times at which silos answered."
)
_EXPLORED: Final = (
    "How often exploration succeeded over all silos, from the masked sums with their noise, ± one "
    'standard error of the noise alone: which tasks were drawn is not in it. "below noise" stands '
    "where that error is too large for a figure. A round explores training tasks with the adapter "
    "of the round before it; this is not a held-out evaluation."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilySuccess:
    """What one round's sum says about one family of environments."""

    round: int
    """The round that explored, with the adapter of the one before it."""
    family: str
    """Public name."""
    ratio: float
    """Successes by episodes over all silos, noise included; NaN where noise hides it."""
    standard_error: float
    """Of the noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """The facts of one exported adapter."""

    federation: str
    """Its name."""
    run_id: str
    """The run."""
    run_name: str
    """As the plan calls it."""
    round: int
    """The round that made the adapter; 0 is the initial one."""
    step: int
    """Of that round."""
    silos: int
    """How many silos are in the sum; 0 for the initial adapter, a skipped release, a rollback."""
    base: str
    """The base model as the plan names it."""
    base_sha256: str
    """Hex, as for each below."""
    adapter_sha256: str
    """Of the published bytes."""
    plan_sha256: str
    """Of the plan."""
    record_sha256: str
    """Of the adapter's record."""
    head_sha256: str
    """Of the chain's newest record, of which the adapter's is an ancestor or the same."""
    rank: int
    """r."""
    alpha: float
    """α."""
    target: Target
    """The layers that carry the adapter."""
    privacy: PrivacySpec
    """Of the plan."""
    releases: int
    """Attempts of the run that reached the upload, so far."""
    epsilon: Mapping[UnitKind, Epsilon]
    """ε of the run so far, by unit kind; infinite without noise."""
    success: tuple[FamilySuccess, ...] = ()
    """In ascending order of rounds."""
    incomplete: str = ""
    """Why the adapter is not the whole result of its run; empty if it is."""


def render_card(card: ModelCard) -> str:
    """The card's text, `README.md`."""
    parts = [
        _front_matter(card),
        f"# {escaped(card.run_name)}, round {card.round}",
        (
            "A LoRA adapter that several organisations trained together with Chorale. No "
            "trajectory left an organisation; the coordinator saw sums of masked vectors."
        ),
        *([_incomplete(card)] if card.incomplete else []),
        _use(card),
        "## Provenance",
        _provenance(card),
        (
            "`provenance.json` has the record's signature. `chorale adapter list` shows the whole "
            "chain, and `chorale verify-transcript` recomputes a round."
        ),
        "## Differential privacy",
        _privacy(card),
        "## Success",
        _success(card),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(card: ModelCard) -> str:
    lines = ["---"]
    if MODEL_ID.fullmatch(card.base):
        # The Hub takes a model id here; a directory of the coordinator's would be refused.
        lines += [f"base_model: {json.dumps(card.base)}", "base_model_relation: adapter"]
    lines += [
        "library_name: peft",
        "pipeline_tag: text-generation",
        "tags:",
        *[f"- {tag}" for tag in ("lora", "federated-learning", "secure-aggregation", "chorale")],
        *(["- differential-privacy"] if card.privacy.mode is not Mode.NONE else []),
        "---",
    ]
    return "\n".join(lines)


def _incomplete(card: ModelCard) -> str:
    return f"**Not the whole result of the run:** {escaped(card.incomplete)}."


def _use(card: ModelCard) -> str:
    return (
        f"Base model: {escaped(card.base)}. Rank {card.rank}, α {card.alpha:g}, "
        f"{_layers(card.target)}.\n\n"
        "```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM\n\n"
        "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), "
        "DIRECTORY)\n"
        "```\n\n"
        "```\n"
        f"vllm serve BASE --enable-lora --max-lora-rank {_vllm_rank(card.rank)} "
        "--lora-modules NAME=DIRECTORY\n"
        "```"
    )


def _layers(target: Target) -> str:
    if target == ALL_LINEAR:
        return "all linear layers"
    return f"on the linear layers {', '.join(escaped(name) for name in target)}"


def _vllm_rank(rank: int) -> int:
    """The least rank that vLLM's ``--max-lora-rank`` accepts and that is enough."""
    return next(size for size in (8, 16, 32, 64, 128, 256) if size >= min(rank, 256))


def _provenance(card: ModelCard) -> str:
    step = f", step {card.step}" if card.step else ""
    rows = [
        ("federation", escaped(card.federation)),
        ("run", f"{escaped(card.run_id)} ({escaped(card.run_name)})"),
        ("round", f"{card.round}{step}"),
        ("silos in its sum", str(card.silos) if card.silos else "none: not made by a sum"),
        ("adapter SHA-256", _digest(card.adapter_sha256)),
        ("plan SHA-256", _digest(card.plan_sha256)),
        ("base model SHA-256", _digest(card.base_sha256)),
        ("record SHA-256", _digest(card.record_sha256)),
        ("chain head SHA-256", _digest(card.head_sha256)),
    ]
    return _table(("what", "value"), rows)


def _privacy(card: ModelCard) -> str:
    spec = card.privacy
    if spec.mode is Mode.NONE:
        return (
            f"Mode `none`: there is no differential privacy, and ε is infinite after "
            f"{card.releases} releases. Masking hid each silo's vector inside the sum from the "
            "coordinator. Nothing bounds what the sum, and so this adapter, tells about one "
            "silo or one task."
        )
    rows = [
        (_unit(unit), _number(value), f"{spec.delta:g}")
        for unit, value in sorted(card.epsilon.items())
    ]
    released = (
        f"Mode `{spec.mode.value}`. Of the run so far, {card.releases} releases with failed "
        "attempts included, whether or not this adapter depends on them:"
    )
    return "\n\n".join(
        (released, _table(("unit", f"ε ({ADJACENCY})", "δ"), rows), _meaning(spec), _LIMITS)
    )


def _meaning(spec: PrivacySpec) -> str:
    if spec.mode not in RECORD_MODES:
        return (
            "It bounds what all releases together tell about the whole data set of one silo, and "
            "about each user and task in it, against everybody who sees them, while at most the "
            "roster's number of colluding silos works with the coordinator."
        )
    what = "one task with all its trajectories" if spec.unit == "task" else "all tasks of one user"
    against = (
        "against everybody outside the silo, all other silos and the coordinator together"
        if spec.mode is Mode.RECORD_LOCAL
        else "against everybody who sees the sums, while at most the roster's number of "
        "colluding silos works with the coordinator"
    )
    return f"It bounds what all releases together tell about {what}, {against}."


def _success(card: ModelCard) -> str:
    shown = sorted({figure.round for figure in card.success})[-_LAST_ROUNDS:]
    rows = [
        (str(figure.round), escaped(figure.family), _shown(figure))
        for figure in card.success
        if figure.round in shown
    ]
    if not rows:
        return (
            f"{NOT_REPORTED.capitalize()}: no masked sum of this run says how often it succeeded."
        )
    return _EXPLORED + "\n\n" + _table(("round", "family", "success"), rows)


def _shown(figure: FamilySuccess) -> str:
    return success_words({figure.family: Estimate(figure.ratio, figure.standard_error)})


def _unit(kind: str) -> str:
    return {"silo": "one silo", "task": "one task", "user": "one user"}.get(kind, escaped(kind))


def _number(value: Epsilon) -> str:
    return str(value) if math.isfinite(value.epsilon) else "infinite"


def _digest(hexadecimal: str) -> str:
    return f"`{hexadecimal}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
