"""What helps against which slack, and with which keys it is switched on: FedAgent's table 7.

Covered: remedies that Chorale has, each with the file and the keys as they are written there, which
a test reads with the real readers; and those that are nobody's key, in words. Not covered: whether
one helps here, which only a run tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from evolution.diagnose.slack import SlackName

__all__ = ["MENU", "Remedy", "Switch", "Trouble", "remedies_for"]

Trouble = Literal["t_star", "eta_cls", "eta_ker", "delta_eff", "D"]
"""A slack, or pattern D."""
File = Literal["plan", "silo.toml", "experiment", "setting"]
"""``setting`` is one ``[[setting]]`` of an experiment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """How a remedy is switched on in one file."""

    file: File
    toml: str
    """As it is written there; ``…`` stands for what is there already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One line of the menu."""

    name: str
    against: tuple[Trouble, ...]
    does: str
    switches: tuple[Switch, ...]
    """None where nothing is switched but done."""
    costs: str


_PERSONAL: Final = (
    "a second adapter at each silo, trained without noise: no ε covers giving it away"
)

MENU: Final[tuple[Remedy, ...]] = (
    Remedy(
        name="descriptor",
        against=("t_star", "eta_cls", "delta_eff", "D"),
        does="says in a line before the instruction which environment it is, so that environments "
        "become tasks (corollary 1)",
        switches=(
            Switch(
                file="silo.toml",
                toml='environments = [{ environment = "market", variant = { kind = "field-subset",'
                " index = 3, descriptor = true } }]",
            ),
            Switch(file="setting", toml="variants = { descriptor = true }"),
        ),
        costs="every silo, and whoever judges, has to say its line; it tells nobody outside",
    ),
    Remedy(
        name="longer window",
        against=("eta_cls",),
        does="lets longer episodes be played and learned from, so that more of them tells which "
        "environment it is",
        switches=(Switch(file="plan", toml="[evolve]\nmax_sequence_tokens = 2048"),),
        costs="memory and time",
    ),
    Remedy(
        name="one interface",
        against=("eta_ker",),
        does="puts the same set of actions, with the same words, in front of every environment",
        switches=(),
        costs="work on the environments; no key does it",
    ),
    Remedy(
        name="Ditto",
        against=("delta_eff", "D"),
        does="keeps at each silo an adapter of its own that is pulled towards the shared one",
        switches=(
            Switch(file="silo.toml", toml='[evolve]\npersonal = "ditto"\npersonal_lambda = 0.1'),
            Switch(file="setting", toml='method = "fedse_personal"'),
        ),
        costs=_PERSONAL,
    ),
    Remedy(
        name="FedSA",
        against=("delta_eff", "D"),
        does="shares the factors A alone; each silo keeps factors B of its own",
        switches=(
            Switch(file="plan", toml='[aggregation]\nmethod = "fedsa"'),
            Switch(file="silo.toml", toml='[evolve]\npersonal = "fedsa"'),
            Switch(file="setting", toml='method = "fedsa"'),
        ),
        costs="not in the record modes; the published adapter alone is the base's function",
    ),
    Remedy(
        name="clusters",
        against=("delta_eff", "D"),
        does="averages silos of one kind of environment among themselves",
        switches=(Switch(file="setting", toml='method = "clustered"'),),
        costs="fewer silos in each sum; an experiment's clusters are by public family, of three "
        "silos at least, and between daemons a cluster is a federation of its own",
    ),
    Remedy(
        name="FedProx",
        against=("D",),
        does="pulls local steps back towards what the round began with",
        switches=(
            Switch(file="plan", toml="[evolve]\nproximal_mu = 0.01"),
            Switch(file="setting", toml="evolve = { proximal_mu = 0.01 }"),
        ),
        costs="slower; not in the record modes",
    ),
    Remedy(
        name="smaller steps",
        against=("D",),
        does="lets silos drift less between two sums",
        switches=(
            Switch(file="plan", toml="[evolve]\nlearning_rate = 2e-4\nlocal_epochs = 1"),
            Switch(file="setting", toml="evolve = { learning_rate = 2e-4, local_epochs = 1 }"),
        ),
        costs="more rounds",
    ),
    Remedy(
        name="clipped updates",
        against=("D",),
        does="bounds what one silo moves the sum by, and what a token's ratio may come to",
        switches=(
            Switch(file="plan", toml="[privacy]\nclip_l2 = 1.0"),
            Switch(
                file="plan",
                toml='[evolve.parts]\nobjective = { name = "clipped", clip_low = 0.2, '
                "clip_high = 0.2 }",
            ),
            Switch(file="setting", toml="noise = { clip_l2 = 1.0 }"),
        ),
        costs="slower; attenuates oscillation and forgetting, never the structural gap",
    ),
    Remedy(
        name="KL to the base",
        against=("D",),
        does="holds the policy near what it was before training, against forgetting",
        switches=(
            Switch(
                file="plan",
                toml='[evolve.parts]\nobjective = { name = "clipped", kl_to = "base", '
                "kl_beta = 0.01 }",
            ),
            Switch(
                file="setting",
                toml='evolve = { parts = { objective = { name = "clipped", kl_to = "base", '
                "kl_beta = 0.01 } } }",
            ),
        ),
        costs="a second forward pass; a ceiling on how far it can learn",
    ),
)


def remedies_for(trouble: Trouble | SlackName) -> Sequence[Remedy]:
    """The remedies against a slack or against pattern D, in the order of the menu."""
    return [remedy for remedy in MENU if trouble in remedy.against]
