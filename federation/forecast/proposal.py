"""A plan written for people to edit: each value with where it comes from and what changes it.

Invariants:

1. What is written is read before it is handed out: ``read_plan`` takes it.
2. Every number that protects somebody is ``federation.forecast.sizing``'s. Starting values for
   learning are those that were measured in ``docs/privacy.md``, and say so.

Covered: ``chorale plan new``. Not covered: changing a plan that somebody has edited.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from dp.config import ADJACENCY, RECORD_MODES, Mode
from federation.adapter.target import ALL_LINEAR, Target
from federation.forecast.calibration import METRICS_SHARE
from federation.forecast.sizing import LARGE_STEP, MIN_COSINE, RATE, Size
from federation.plan.plan import Plan
from federation.plan.read import read_plan

__all__ = ["NO_BASE", "UNKNOWN_SHA256", "Base", "adapter_rank", "write_plan"]

UNKNOWN_SHA256: Final = "0" * 64
"""No model's digest: every silo refuses it."""
NO_BASE: Final = "your-base-model"
_WIDTH: Final = 98
_HEAD: Final = (
    "One run: what every silo does in a round follows from this file, and a silo's policy is asked "
    "about it line by line. Written by `chorale plan new`; change what you like, and ask "
    "`chorale run plan` again what it costs and whether it can start."
)
_MEANING: Final = {
    Mode.NONE: (
        "Masks alone: each silo's vector is hidden inside the sum, and nothing hides what the sum "
        "tells. Each site has to accept that: `chorale-silo policy init --plan PLAN "
        "--accept-no-privacy`."
    ),
    Mode.SILO: (
        "Hides what one silo's whole data set contributed, from the coordinator with up to c "
        "silos. The silos share the noise, so it takes many of them."
    ),
    Mode.RECORD_LOCAL: (
        "Hides each task, with all its tries, from everybody outside its silo: each silo adds all "
        'of the noise to every step. "record_distributed" needs less noise, one masked sum for '
        "each step, and holds while no more than c silos work together with the coordinator."
    ),
    Mode.RECORD_DISTRIBUTED: (
        "Hides each task, with all its tries, while no more than c silos work together with the "
        'coordinator: the silos share the noise, one masked sum for each step. "record_local" '
        "holds against everybody outside the silo, with all of the noise in each."
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The base model as far as it is known."""

    name: str = NO_BASE
    """Its id or directory."""
    sha256: str | None = None
    """Of its files; None where they are not here."""
    large: bool = False
    """Whether its weights are better held in 16 bits."""
    target: Target = ALL_LINEAR
    """Layers that carry the adapter."""
    counted: bool = False
    """Whether the upload's numbers were given, or counted from its shape, and not assumed."""


class _Key(NamedTuple):
    """One line."""

    name: str
    value: str
    """As TOML has it."""
    why: str
    """The comment above it."""


def adapter_rank(mode: Mode) -> int:
    """r: noise grows with the root of the trained numbers, so where there is some they are few."""
    return 8 if mode is Mode.NONE else 1


def write_plan(
    size: Size, *, name: str, base: Base, environments: tuple[str, ...]
) -> tuple[str, Plan]:
    """The document and the plan in it.

    Raises:
        PlanError: A name cannot be written in a plan.
    """
    blocks = [_comment(_HEAD), f"name = {_quoted(name)}\n"]
    for title, keys in (
        ("model", _model(size, base)),
        ("evolve", _evolve(size, environments)),
        ("aggregation", _aggregation(size)),
        ("privacy", _privacy(size, base)),
        ("privacy.record", _record(size)),
        ("secure_aggregation", _secure_aggregation(size)),
        ("rounds", _rounds(size)),
        ("evaluate", _evaluate(size)),
    ):
        lines = "".join(f"{_comment(key.why)}{key.name} = {key.value}\n" for key in keys)
        if lines:
            blocks.append(f"[{title}]\n{lines}")
    text = "\n".join(blocks)
    return text, read_plan(text.encode())


def _model(size: Size, base: Base) -> Iterator[_Key]:
    noisy = size.wish.mode is not Mode.NONE
    yield _Key(
        "base",
        _quoted(base.name),
        "For people, and where its shape is looked up; silos go by the digest.",
    )
    if base.sha256 is None:
        yield _Key(
            "base_sha256",
            _quoted(UNKNOWN_SHA256),
            "Of the base model's files: write what `chorale-silo status` shows, the same at every "
            "silo. Zeros are no model's, so every silo refuses this file as it stands.",
        )
    else:
        yield _Key(
            "base_sha256",
            _quoted(base.sha256),
            "Of the base model's files, as they are here; `chorale-silo status` shows a silo's.",
        )
    yield _Key(
        "dtype",
        _quoted("bfloat16" if base.large else "float32"),
        'What the base weights are held in; "bfloat16" halves the memory, and is slow on a CPU '
        "without instructions for it.",
    )
    yield _Key(
        "lora_rank",
        str(adapter_rank(size.wish.mode)),
        "Noise grows with the root of the trained numbers: train few. More rank learns more and "
        "needs more ε, silos or episodes."
        if noisy
        else "Without noise more rank costs bytes alone.",
    )
    yield _Key("lora_alpha", "16", "The adapter is scaled by lora_alpha / lora_rank.")
    if base.target != ALL_LINEAR:
        yield _Key(
            "target",
            _list(base.target),
            "All linear layers were too many numbers for this noise; without this line they are "
            "trained all the same.",
        )


def _evolve(size: Size, environments: tuple[str, ...]) -> Iterator[_Key]:
    wish = size.wish
    yield _Key(
        "method",
        '"fed-se"',
        'Imitates what succeeded; "grpo" reinforces what did better than the task\'s other tries, '
        "and wants nominal_tokens as well.",
    )
    yield _Key(
        "environments",
        _list(environments),
        "As the silos' silo.toml name them; a silo explores those of them that it has, and one "
        "that has none refuses the run.",
    )
    yield _Key(
        "episodes_per_round",
        str(wish.episodes),
        f"As asked for: {size.tasks} tasks a silo and round, each tried tries_per_task times. More "
        "tasks are more signal beside the same noise, and take longer.",
    )
    yield _Key("tries_per_task", str(wish.tries), "A divisor of episodes_per_round.")
    yield _Key(
        "window",
        str(size.window),
        "Rounds whose tasks are trained on. Another one changes expected_units, below."
        if wish.mode in RECORD_MODES
        else "Rounds whose successes are trained on.",
    )
    if wish.mode is Mode.RECORD_LOCAL:
        yield _Key(
            "learning_rate",
            f"{RATE:g}",
            "Adam's on noisy gradients, measured on the small base model (docs/privacy.md); a "
            "pretrained one took 0.04. epochs and batch_size have no effect at record level.",
        )
    elif wish.mode is not Mode.RECORD_DISTRIBUTED:
        yield _Key("learning_rate", "3e-3", "AdamW's; a pretrained base took 1e-3.")
        yield _Key("epochs", "2", "Passes over a round's successes.")
        yield _Key("batch_size", "8", "Tries in one local step.")
    yield _Key(
        "max_new_tokens",
        "32",
        "Longest answer in one turn; what is longer is cut off. Set it to what the longest action "
        "of your environments takes: `chorale-silo doctor --dry-round` says how many were cut.",
    )


def _aggregation(size: Size) -> Iterator[_Key]:
    mode = size.wish.mode
    if mode is Mode.NONE:
        yield _Key("method", '"fedavg"', "The mean of the deltas.")
        return
    yield _Key(
        "method",
        '"ffa"',
        "A stays as it was drawn and B alone is trained and uploaded: half the numbers, and no "
        "noise times noise.",
    )
    if mode is Mode.RECORD_DISTRIBUTED:
        yield _Key(
            "server_optimiser",
            '"adam"',
            "Silos send gradients, and Adam runs on their mean, at the coordinator and at every "
            "silo that verifies.",
        )
        yield _Key("server_step", "4e-3", "Its learning rate, measured on the small base model.")


def _privacy(size: Size, base: Base) -> Iterator[_Key]:
    wish, spec = size.wish, size.spec
    yield _Key("mode", _quoted(wish.mode.value), _MEANING[wish.mode])
    if wish.mode in RECORD_MODES:
        yield _Key(
            "unit",
            '"task"',
            'Whose contribution is hidden; "user" hides all tasks of one user together.',
        )
    yield _Key("clip_l2", f"{spec.clip_l2:g}", _clip(size))
    if wish.mode is Mode.NONE:
        yield _Key("noise_multiplier", "0.0", "No noise, spelled out.")
        yield _Key("metrics_noise_multiplier", "0.0", "And none on figures, so none are summed.")
        yield _Key("delta", f"{wish.delta:g}", "Says nothing in this mode.")
        yield _Key("epsilon_cap", f"{spec.epsilon_cap:g}", "Holds for nothing in this mode.")
        return
    whose = "silo" if wish.mode is Mode.SILO else "task"
    yield _Key(
        "noise_multiplier",
        repr(spec.noise_multiplier),
        f"z, by the accountant: the least with which {size.charged} attempts, spare ones included, "
        f"cost a {whose} ε = {size.epsilon:.4g} ({ADJACENCY}). A lower epsilon_cap, more rounds "
        "or more steps need more of it; episodes and silos do not.",
    )
    yield _Key(
        "metrics_noise_multiplier",
        repr(spec.metrics_noise_multiplier),
        f"Of episodes, successes and norms, which are summed too: alone they would cost "
        f"{METRICS_SHARE:.0%} of ε. Less makes them plainer, and needs a higher noise_multiplier.",
    )
    yield _Key(
        "delta",
        f"{wish.delta:g}",
        "At which ε is stated; keep it well below one over the number of tasks in a silo.",
    )
    yield _Key(
        "epsilon_cap",
        f"{spec.epsilon_cap:g}",
        f"As asked for, of one {whose} and the whole run. A silo whose own cap is lower refuses.",
    )
    yield _Key("grid", str(spec.grid), _grid(size))
    yield _Key("min_cosine", f"{MIN_COSINE:g}", _cosine(size, base))


def _clip(size: Size) -> str:
    match size.wish.mode:
        case Mode.NONE:
            return (
                "Of a silo's whole delta. No noise hangs on it: it bounds how far one silo moves "
                "the sum."
            )
        case Mode.SILO:
            return (
                "C, of a silo's whole delta, and what noise is measured in. A longer delta is cut "
                "to it; far above the usual length it is noise for nothing. `chorale run watch` "
                "shows the norm that silos' deltas have."
            )
        case _:
            return (
                "C, of one task's gradient, the mean over the tokens that the agent wrote, and "
                "what noise is measured in. Measured on the small base model (docs/privacy.md); ε "
                "does not depend on it."
            )


def _grid(size: Size) -> str:
    summed = size.spec.release.max_units
    return (
        "Integers that C becomes. The finest, up to 2^20, with which "
        + (f"up to {summed} tasks of " if summed > 1 else "")
        + f"{size.wish.silos} silos and their noise stay within the ring: more of them need a "
        "coarser one, which is a lower number."
    )


def _cosine(size: Size, base: Base) -> str:
    counted = "" if base.counted else " (the small base model's, as none was named)"
    return (
        "Least cosine between the noisy and the noiseless mean of a step, or no run starts. With "
        f"{size.wish.dimension:,} uploaded numbers{counted} it is {size.cosine:.3g} at best, and "
        f"this plan carries up to {size.most_dimension:,}: `chorale run plan PLAN --base-config "
        "BASE_DIR` counts them. More episodes, silos or ε raise it."
    )


def _record(size: Size) -> Iterator[_Key]:
    record = size.spec.record
    if record is None:
        return
    rate, population = record.sampling_rate, size.population
    yield _Key(
        "sampling_rate",
        repr(rate),
        "q: each task is in a step with this probability. "
        + (
            "Every task in every step: over a whole run no other rate has less noise beside the "
            f"signal. From {2 * LARGE_STEP:,} tasks on a part is sampled, in more steps."
            if rate == 1.0
            else f"{record.expected_units} tasks a step carry the noise; more, smaller steps learn "
            "more than few large ones."
        ),
    )
    yield _Key(
        "expected_units",
        str(record.expected_units),
        f"What a step is divided by, whatever was sampled: sampling_rate times the {population} "
        f"tasks that a silo can have ({size.tasks} a round, of {size.window} rounds). Less is "
        "refused, and more shortens every step beside its noise.",
    )
    yield _Key(
        "steps_per_round",
        str(record.steps_per_round),
        "S: over every task about twice a round. Each further one is charged: noise_multiplier "
        "has to grow with it."
        + (
            " Each is an aggregation of its own."
            if size.wish.mode is Mode.RECORD_DISTRIBUTED
            else ""
        ),
    )
    if record.delta_clip_l2 is not None:
        yield _Key(
            "delta_clip_l2",
            f"{record.delta_clip_l2:g}",
            "Of the delta that leaves the silo, which is protected already: as long as S steps of "
            "Adam can make it. It bounds how far one silo moves the sum; ε does not depend on it.",
        )


def _secure_aggregation(size: Size) -> Iterator[_Key]:
    wish, t = size.wish, size.threshold
    yield _Key(
        "n_min",
        str(t),
        f"Least silos in a sum. Of {wish.silos} silos, {wish.colluding} of which may collude, "
        f"t = {t} must answer, which is computed from the roster and cannot be written here: so "
        f"{wish.silos - t} may be lost at any step. Raise it where the federation's --min-silos or "
        "a site's policy asks for more; fewer may then be lost.",
    )


def _rounds(size: Size) -> Iterator[_Key]:
    wish = size.wish
    yield _Key(
        "count",
        str(wish.rounds),
        "T; more of them take longer."
        if wish.mode is Mode.NONE
        else "T. More rounds need a higher noise_multiplier for the same ε: `chorale plan new "
        "--rounds` computes it.",
    )
    yield _Key(
        "quorum",
        str(size.quorum),
        f"Ready silos that open a round, at least n_min, at most {wish.silos}. "
        + (
            "One more than n_min, so that a round stands the loss of a silo; with n_min itself "
            "rounds open with one silo fewer, and stand none."
            if size.quorum > size.threshold
            else "No silo can be spared: with one more in the roster one could be lost."
        ),
    )
    measured = "`chorale-silo doctor --dry-round --plan PLAN` measures it at each silo"
    if size.ready_after_s:
        yield _Key(
            "ready_after_s",
            str(size.ready_after_s),
            "Nobody says ready sooner, so that how long the work took does not show, and work that "
            f"takes longer is dropped. A minute, and 3 s an episode; {measured}: take the largest.",
        )
    yield _Key(
        "ready_deadline_s",
        str(size.ready_deadline_s),
        "From the task to the last ready report: "
        + (
            "twice ready_after_s."
            if size.ready_after_s
            else f"2 minutes, and 6 s an episode; {measured}."
        ),
    )
    if size.step_answer_after_s:
        yield _Key(
            "step_answer_after_s",
            str(size.step_answer_after_s),
            "The same of a step's sum of gradients: 30 s, and half a second for each of "
            f"expected_units; {measured}.",
        )
    yield _Key(
        "phase_deadline_s",
        str(size.phase_deadline_s),
        "For each step of secure aggregation: a minute, a second for each megabyte uploaded"
        + (", and twice step_answer_after_s." if size.step_answer_after_s else "."),
    )


def _evaluate(size: Size) -> Iterator[_Key]:
    yield _Key(
        "held_out",
        "200",
        "Tasks that nobody trains on, an environment: 200 tell 7 points apart, 800 half of that. 0 "
        "switches it off.",
    )
    yield _Key(
        "every_rounds", str(size.wish.rounds), "At the end alone; 1 judges after each round."
    )


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def _quoted(text: str) -> str:
    # A JSON string is a TOML string as well, as long as no letter is written as two halves.
    return json.dumps(text, ensure_ascii=False)


def _list(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(_quoted, names)) + "]"
