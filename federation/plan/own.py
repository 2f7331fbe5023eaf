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
    AnchoredOptions,
    ClipCovOptions,
    ClippedOptions,
    ConfidentReplayOptions,
    DistinctOptions,
    EchoOptions,
    GroupRelativeOptions,
    KlCovOptions,
    OnePerTaskOptions,
    PpoOptions,
    RewardOptions,
    SelfImitationOptions,
    SppoOptions,
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
                name="rloo",
                says="better than the mean of the task's other tries is reinforced (2402.14740)",
                parts=_GRPO,
                presets={"credit": {"baseline": "others"}},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="maxrl",
                says="GRPO with each advantage over the group's mean: rare successes count most",
                parts=_GRPO,
                presets={"credit": {"scale": "mean"}},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="spear",
                says="GRPO, and earlier successes replayed while the task is not sure (2509.22601)",
                parts={**_GRPO, "credit": "self-imitation"},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="sppo",
                says="a try's log-probability goes where its share of won pairs says (2405.00675)",
                parts={**_GRPO, "credit": "win-share", "objective": "sppo"},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="agentevol",
                says="explore, keep one good try of each task, imitate it (2406.04151)",
                parts={
                    "sampler": "uniform",
                    "play": "once",
                    "credit": "one-per-task",
                    "objective": "nll",
                },
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
                kind="play",
                name="once",
                code="evolution.parts.plays.once:Once",
                says="every try from the start to its end, by itself",
                couples=Couples.TRY,
                reads=Reads.PUBLIC,
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
                name="self-imitation",
                code="evolution.parts.credits.self_imitation:SelfImitation",
                says="group-relative, and earlier successes by how often the task fails (SPEAR)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=SelfImitationOptions,
                least_tries=2,
                least_window=2,
            ),
            PartCard(
                kind="credit",
                name="win-share",
                code="evolution.parts.credits.win_share:WinShare",
                says="how many of the task's other tries a try beats, less a half (SPPO)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=RewardOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="set-diversity",
                code="evolution.parts.credits.set_diversity:SetDiversity",
                says="group-relative, less where all of a task's successes are of one kind",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=RewardOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="one-per-task",
                code="evolution.parts.credits.one_per_task:OnePerTask",
                says="one try of each task of the window above a threshold, the newest (AgentEvol)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=OnePerTaskOptions,
            ),
            PartCard(
                kind="credit",
                name="distinct",
                code="evolution.parts.credits.distinct:Distinct",
                says="a success for each way to succeed, the shortest, and not too many of a task",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=DistinctOptions,
            ),
            PartCard(
                kind="credit",
                name="reproduced",
                code="evolution.parts.credits.reproduced:Reproduced",
                says="successes of tasks that half of their tries solve: luck waits",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="confident-replay",
                code="evolution.parts.credits.confident_replay:ConfidentReplay",
                says="the round's successes, and earlier ones neither unsure nor too sure (WebRL)",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=ConfidentReplayOptions,
                least_window=2,
            ),
            PartCard(
                kind="credit",
                name="echo",
                code="evolution.parts.credits.echo:Echo",
                says="successes, and a little of what the environment said: raw observations",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=EchoOptions,
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
                name="clip-cov",
                code="evolution.parts.objectives.clip_cov:ClipCov",
                says="policies' ratio; a few tokens that take entropy away have no loss (Clip-Cov)",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=ClipCovOptions,
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="kl-cov",
                code="evolution.parts.objectives.kl_cov:KlCov",
                says="policies' ratio; tokens that take entropy away are drawn back (KL-Cov)",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=KlCovOptions,
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="sppo",
                code="evolution.parts.objectives.sppo:Sppo",
                says="a try's log-probability is drawn to where its weight says (SPPO)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=SppoOptions,
                needs=frozenset({"reference"}),
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
                kind="objective",
                name="anchored",
                code="evolution.parts.objectives.anchored:Anchored",
                says="nll, held more and more to the round's adapter (Decision Mamba)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=AnchoredOptions,
                needs=frozenset({"reference"}),
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
