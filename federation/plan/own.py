"""Chorale's own methods and parts, card by card.

Covered: two literal tables. Not covered: packages' (``federation.plan.methods``), what papers they
are from and which of them run where (``docs/parts.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from federation.plan.cards import Couples, MethodCard, Normaliser, PartCard, Reads
from federation.plan.part_options import (
    BanditOptions,
    ClippedOptions,
    EpisodesOptions,
    FailuresOptions,
    GroupRelativeOptions,
    HintsOptions,
    JudgeMixOptions,
    PpoOptions,
    PrefixesOptions,
    RegretOptions,
    RerunOptions,
    RetryOptions,
    ReverseKlOptions,
    RewardOptions,
)

__all__ = ["METHODS", "PARTS"]

_GRPO: Final = {
    "sampler": "uniform",
    "play": "once",
    "credit": "group-relative",
    "objective": "clipped",
}

_FEDAGENT: Final = {
    "clip_high": 0.2,
    "kl": "k3",
    "kl_beta": 0.01,
    "kl_to": "base",
    "entropy": 0.001,
}
"""What FedAgent's GRPO and PPO minimise."""

METHODS: Final[Mapping[str, MethodCard]] = MappingProxyType(
    {
        card.name: card
        for card in (
            MethodCard(
                name="constant",
                says="contributes a fixed vector and needs no model",
                code="evolution.methods.constant:ConstantEvolver",
                needs_model=False,
            ),
            MethodCard(
                name="fed-se",
                says="explore, keep what succeeded, imitate it (arXiv 2512.08870)",
                parts={
                    "sampler": "uniform",
                    "play": "once",
                    "credit": "shortest-success",
                    "objective": "nll",
                },
            ),
            MethodCard(
                name="grpo",
                says="better than the task's other tries is reinforced, in clipped steps",
                parts=_GRPO,
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="fedagent",
                says="GRPO with FedAgent's constants: scaled, symmetric clip, KL to the base",
                parts=_GRPO,
                presets={
                    "credit": {"scale": "std"},
                    "objective": _FEDAGENT,
                },
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="self-distil",
                says="what it does with a hint it learns to do without (2601.19897)",
                parts={
                    "sampler": "uniform",
                    "play": "hints",
                    "credit": "distil",
                    "objective": "reverse-kl",
                },
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="rloo",
                says="better than the mean of the task's other tries is reinforced (2402.14740)",
                parts=_GRPO,
                presets={"credit": {"baseline": "others"}},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="ppo",
                says="better than a learned value is reinforced, with FedAgent's constants (PPO)",
                parts={
                    "sampler": "uniform",
                    "play": "once",
                    "credit": "token-rewards",
                    "objective": "ppo",
                },
                presets={
                    "objective": _FEDAGENT,
                },
                normaliser=Normaliser.CONSTANT,
            ),
        )
    }
)
"""Chorale's own methods."""

PARTS: Final[Mapping[str, PartCard]] = MappingProxyType(
    {
        card.name: card
        for card in (
            PartCard(
                kind="sampler",
                name="uniform",
                code="evolution.parts.samplers.uniform:Uniform",
                says="every task of the silo's part is as likely",
                couples=Couples.TRY,
                reads=Reads.PUBLIC,
            ),
            PartCard(
                kind="sampler",
                name="bandit",
                code="evolution.parts.samplers.bandit:Bandit",
                says="labels whose tries disagree are likelier (SEC, arXiv 2505.14970)",
                couples=Couples.ALL,
                reads=Reads.SILO,
                options=BanditOptions,
                least_tries=2,
                least_window=2,
            ),
            PartCard(
                kind="sampler",
                name="regret",
                code="evolution.parts.samplers.regret:Regret",
                says="tasks that are solved, but seldom, are likelier (eva, arXiv 2411.00062)",
                couples=Couples.ALL,
                reads=Reads.SILO,
                options=RegretOptions,
                least_tries=2,
                least_window=2,
            ),
            PartCard(
                kind="sampler",
                name="failures",
                code="evolution.parts.samplers.failures:Failures",
                says="tasks at the edge, variants of those beyond it (WebRL, arXiv 2411.02337)",
                couples=Couples.ALL,
                reads=Reads.SILO,
                options=FailuresOptions,
                least_window=2,
            ),
            PartCard(
                kind="sampler",
                name="prefixes",
                code="evolution.parts.samplers.prefixes:Prefixes",
                says="episodes begin inside earlier tries that could end either way (ExIt)",
                couples=Couples.ALL,
                reads=Reads.SILO,
                options=PrefixesOptions,
                least_window=2,
            ),
            PartCard(
                kind="sampler",
                name="rerun",
                code="evolution.parts.samplers.rerun:Rerun",
                says="tasks that fewer than half of a few tries solved are tried again first",
                couples=Couples.ALL,
                reads=Reads.SILO,
                options=RerunOptions,
                least_tries=3,
                least_window=2,
            ),
            PartCard(
                kind="play",
                name="once",
                code="evolution.parts.plays.once:Once",
                says="every try from the start to its end, by itself",
                couples=Couples.TRY,
                reads=Reads.PUBLIC,
            ),
            PartCard(
                kind="play",
                name="hints",
                code="evolution.parts.plays.hints:Hints",
                says="what no try solves is tried again with a part of a solution (SAGE)",
                couples=Couples.USER,
                reads=Reads.UNIT,
                options=HintsOptions,
                least_tries=2,
            ),
            PartCard(
                kind="play",
                name="retry",
                code="evolution.parts.plays.retry:Retry",
                says="a failed try is told, perhaps with a critique, and made again (SELF)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=RetryOptions,
                least_tries=2,
            ),
            PartCard(
                kind="play",
                name="repair",
                code="evolution.parts.plays.repair:Repair",
                says="a failed try is replayed up to a suspected step, and on from there (EvoCUA)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                least_tries=2,
            ),
            PartCard(
                kind="play",
                name="experience",
                code="evolution.parts.plays.experience:Experience",
                says="half of the tries read what worked elsewhere; training never (AgentEvolver)",
                couples=Couples.USER,
                reads=Reads.UNIT,
                least_tries=2,
            ),
            PartCard(
                kind="play",
                name="episodes",
                code="evolution.parts.plays.episodes:Episodes",
                says="half of the tries read remembered successes, by learned values (MemRL)",
                couples=Couples.USER,
                reads=Reads.UNIT,
                options=EpisodesOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="shortest-success",
                code="evolution.parts.credits.shortest_success:ShortestSuccess",
                says="the shortest success of each task of the window, and demonstrations",
                couples=Couples.TASK,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="credit",
                name="all-tries",
                code="evolution.parts.credits.all_tries:AllTries",
                says="every try of the window, solved or not: the ablation of the success filter",
                couples=Couples.TASK,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="credit",
                name="group-relative",
                code="evolution.parts.credits.group_relative:GroupRelative",
                says="what a try is worth beside the other tries at its task (GRPO)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=GroupRelativeOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="batch-scaled",
                code="evolution.parts.credits.batch_scaled:BatchScaled",
                says="the same over the standard deviation of the whole round (REINFORCE++)",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=RewardOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="token-rewards",
                code="evolution.parts.credits.token_rewards:TokenRewards",
                says="every try, with what each of its actions earned on that action's last token",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=RewardOptions,
            ),
            PartCard(
                kind="credit",
                name="judge-mix",
                code="evolution.parts.credits.judge_mix:JudgeMix",
                says="successes to imitate, and every outcome as a question to answer (SPARK)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=JudgeMixOptions,
            ),
            PartCard(
                kind="credit",
                name="distil",
                code="evolution.parts.credits.distil:Distil",
                says="plain tries beside a success that was helped, which is their teacher",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                least_tries=2,
            ),
            PartCard(
                kind="objective",
                name="reverse-kl",
                code="evolution.parts.objectives.reverse_kl:ReverseKl",
                says="the divergence from a teacher on what the policy sampled (2601.19897)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=ReverseKlOptions,
                needs=frozenset({"teacher"}),
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="clipped",
                code="evolution.parts.objectives.clipped:Clipped",
                says="credit times the ratio of policies, bounded, and KL to a reference (GRPO)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=ClippedOptions,
                needs=frozenset({"reference", "base", "first"}),
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="ppo",
                code="evolution.parts.objectives.ppo:Ppo",
                says="rewards over a learned value, times the ratio of policies, bounded (PPO)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=PpoOptions,
                needs=frozenset({"reference", "base", "first", "value", "old_value"}),
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="nll",
                code="evolution.parts.objectives.nll:Nll",
                says="minus the log-probability of each token, times its weight",
                couples=Couples.TRY,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="gate",
                name="not-worse",
                code="evolution.parts.gates.not_worse:NotWorse",
                says="takes a round unless it solves fewer of the silo's probes",
                couples=Couples.ALL,
                reads=Reads.SILO,
            ),
        )
    }
)
"""Chorale's own parts."""
