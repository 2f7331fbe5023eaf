"""Options that a plan may give Chorale's own parts. No torch, and no code of the parts.

Covered: names, types, ranges. Not covered: what a part makes of them (``evolution/parts``).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from federation.plan.section import Section

__all__ = [
    "AnchoredOptions",
    "BanditOptions",
    "ClipCovOptions",
    "ClippedOptions",
    "ConfidentReplayOptions",
    "CovarianceOptions",
    "DistinctOptions",
    "EchoOptions",
    "EpisodesOptions",
    "FailuresOptions",
    "GroupRelativeOptions",
    "HintsOptions",
    "JudgeMixOptions",
    "KlCovOptions",
    "OnePerTaskOptions",
    "PpoOptions",
    "PrefixesOptions",
    "PrinciplesOptions",
    "RegretOptions",
    "RerunOptions",
    "RetryOptions",
    "ReverseKlOptions",
    "Reward",
    "RewardOptions",
    "SelfImitationOptions",
    "SppoOptions",
]

Width = Annotated[float, Field(gt=0, le=100)]
Coefficient = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Reward = Literal["success", "return"]


class BanditOptions(Section):
    """Of the sampler ``bandit``."""

    contrast: Literal["plain", "std"] = "plain"
    """What a group of tries is worth, p of which solved the task: 2p(1−p), or 2√(p(1−p))."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    """α: how far a label's worth goes to what a round's groups were worth."""
    tau: Annotated[float, Field(gt=0, le=100)] = 0.3
    """τ: the smaller, the more a label that is worth more is preferred."""
    fresh: Share = 0.0
    """The share of tasks that are drawn whatever their label."""


class RegretOptions(Section):
    """Of the sampler ``regret``."""

    reward: Reward = "success"
    """What a try is worth: 1 if the environment calls it solved, else 0; or the sum of what the
    environment gave for its steps."""
    fresh: Share = 0.5
    """The share of tasks that are drawn from all, tried or not."""


class FailuresOptions(Section):
    """Of the sampler ``failures``."""

    low: Share = 0.05
    """The least estimated success of a task that is drawn again."""
    high: Share = 0.75
    """The greatest estimated success of a task that is drawn again."""
    fresh: Share = 0.5
    """The share of tasks that are drawn from all, tried or not."""

    @model_validator(mode="after")
    def _ordered(self) -> FailuresOptions:
        if self.low > self.high:
            raise ValueError("low is at most high")
        return self


class PrefixesOptions(Section):
    """Of the sampler ``prefixes``."""

    fresh: Share = 0.5
    """The share of tasks that are drawn from all and begin at their beginning."""


class RerunOptions(Section):
    """Of the sampler ``rerun``."""

    most_tries: Annotated[int, Field(ge=3, le=10_000)] = 8
    """A task with more tries in the window is not drawn again, however few of them solved it."""
    fresh: Share = 0.0
    """The share of tasks that are drawn from all even while there are lucky wins."""


class RewardOptions(Section):
    """Of every credit that compares what tries came to."""

    reward: Reward = "success"
    """What a try is worth: 1 if the environment calls it solved, else 0; or the sum of what the
    environment gave for its steps."""
    invalid_penalty: Coefficient = 0.1
    """Taken off for each action that the environment could not read."""


class GroupRelativeOptions(RewardOptions):
    """Of the credit ``group-relative``."""

    baseline: Literal["group", "others"] = "group"
    """The mean of all tries at the task, or of all but the try itself (RLOO)."""
    scale: Literal["none", "std", "mean"] = "none"
    """By what the difference is divided: nothing, the group's standard deviation, or its mean."""


class SelfImitationOptions(GroupRelativeOptions):
    """Of the credit ``self-imitation``; the rest is of its fresh rows."""

    max_age: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Rounds that a success may be old; the plan's ``window`` has an end as well."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """How much the part of tries that succeed stays what it was before a round; 0 takes the last
    round's alone."""
    replay_weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    """What a replayed success of a task that is never solved would be worth."""
    least: Share = 0.0
    """A replayed success that is worth no more than this is left out."""


class OnePerTaskOptions(Section):
    """Of the credit ``one-per-task``."""

    reward: Reward = "success"
    """What a try is worth: 1 if the environment calls it solved, else 0; or the sum of what the
    environment gave for its steps."""
    threshold: Annotated[float, Field(ge=-1e9, le=1e9)] = 0.0
    """A try is worth more than this, or is not imitated."""


class DistinctOptions(Section):
    """Of the credit ``distinct``."""

    copies: Annotated[int, Field(ge=1, le=1024)] = 4
    """Most successes of a task, demonstrations aside."""


class ConfidentReplayOptions(Section):
    """Of the credit ``confident-replay``."""

    low: Share = 0.5
    """An earlier success is replayed if the player gave its tokens more than this, in the geometric
    mean."""
    high: Annotated[float, Field(gt=0, le=1)] = 0.95
    """And no more than this."""
    times: Annotated[float, Field(ge=0, le=100)] = 2.0
    """Most steps that are replayed, for each step of a success of the round itself."""

    @model_validator(mode="after")
    def _ordered(self) -> ConfidentReplayOptions:
        if self.low >= self.high:
            raise ValueError("low is below high")
        return self


class EchoOptions(Section):
    """Of the credit ``echo``."""

    coefficient: Annotated[float, Field(gt=0, le=100)] = 0.1
    """What the mean over the observations counts, where that over the agent's tokens counts 1."""


class ClippedOptions(Section):
    """Of the objective ``clipped``."""

    surrogate: Literal["clip", "dppo", "cispo"] = "clip"
    """What bounds a step; see the objective."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is cut below 1 minus this."""
    clip_high: Width = 0.28
    """The ratio is cut above 1 plus this."""
    dual_clip: Annotated[float, Field(ge=0, le=1000)] = 3.0
    """Of a token with negative credit: the loss is at most this times it; 0 for no bound."""
    dppo_width: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Of ``dppo``: how far a probability may have moved."""
    cispo_most: Width = 5.0
    """Of ``cispo``: the greatest weight of a token."""
    kl: Literal["k2", "k3"] = "k2"
    """The estimator of the divergence from the reference."""
    kl_beta: Coefficient = 1e-3
    """Its coefficient; 0 leaves it out."""
    kl_to: Literal["round", "base"] = "round"
    """The reference: the adapter that the round was given, or the base without any."""
    entropy: Coefficient = 0.0
    """Coefficient of the entropy that is asked for."""
    mask_mismatch: bool = False
    """Leave tokens out whose probability in the trainer's first pass is not within ½ and 5 times
    the one that was recorded. For federations in which another engine than the trainer plays."""

    @model_validator(mode="after")
    def _bounded(self) -> ClippedOptions:
        if 0 < self.dual_clip <= 1:
            raise ValueError("dual_clip is above 1, or 0 for no bound")
        return self


class PpoOptions(ClippedOptions):
    """Of the objective ``ppo``."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """λ of the generalised advantage estimate (arXiv 1506.02438, eq. 16)."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ: by how much a reward counts less for each of the agent's tokens that it comes later."""
    value_head: Literal["local", "federated"] = "local"
    """Whether each silo keeps a value head of its own, or all share one in the masked sum."""
    value_learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """AdamW's for the value head, where a silo trains it. Where each step is an aggregation the
    server's optimiser moves the head at its one rate."""
    value_coefficient: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Of the value loss."""
    value_clip: Coefficient = 0.5
    """How far a value may go from what it was before the first step; 0 for no bound."""
    value_trains_adapter: bool = False
    """Whether the value loss reaches the adapter through the hidden state."""


class HintsOptions(Section):
    """Of the play ``hints``."""

    levels: Annotated[int, Field(ge=1, le=8)] = 3
    """Hints of growing length, a try each."""
    stays: bool = False
    """A hinted try is trained on with its hint, as it was played; else without."""


class RetryOptions(Section):
    """Of the play ``retry``."""

    attempts: Literal[1, 2] = 1
    """How many failed tries are told."""
    critique: bool = False
    """The model is asked what went wrong, and its answer is told as well."""
    critique_tokens: Annotated[int, Field(ge=1, le=512)] = 64
    """The longest answer."""


class EpisodesOptions(Section):
    """Of the play ``episodes``."""

    count: Annotated[int, Field(ge=1, le=8)] = 3
    """How many remembered successes are told."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The least likeness of one to the try's beginning."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    """α: how far a value moves to what a try came to."""
    explore: Annotated[float, Field(ge=0, le=1)] = 0.05
    """ε: how often others than those of the highest value are told."""


class PrinciplesOptions(Section):
    """Of the play ``principles``."""

    count: Annotated[int, Field(ge=1, le=8)] = 3
    """How many principles are read, those of the highest score."""
    alike: Annotated[float, Field(gt=0, le=1)] = 0.85
    """A new one that is at least so like one that there is, is none of its own."""
    questions: Annotated[int, Field(ge=1, le=1024)] = 32
    """The most tries of a round of which the model is asked to write one; where units are protected
    of each unit."""
    tokens: Annotated[int, Field(ge=1, le=512)] = 64
    """The longest answer."""


class ReverseKlOptions(Section):
    """Of the objective ``reverse-kl``."""

    gap: Width = 5.0
    """How far the teacher's log-probability of a token counts from the policy's own."""
    most: Width = 5.0
    """The greatest ratio of the policy to what was recorded."""


class JudgeMixOptions(Section):
    """Of the credit ``judge-mix``."""

    weight: Annotated[float, Field(gt=0, le=1)] = 0.15
    """Of a token of an answer to a question, where one that acts weighs 1."""
    each: Annotated[int, Field(ge=1, le=64)] = 1
    """The most solved tries of a task that are asked about, and as many failed ones."""


class CovarianceOptions(Section):
    """Of the objectives that look at how credit goes with log-probability in a mini-batch."""

    clip_low: Annotated[float, Field(gt=0, le=1)]
    """The ratio is cut below 1 minus this; 1 leaves it as it is."""
    clip_high: Width
    """The ratio is cut above 1 plus this."""
    dual_clip: Annotated[float, Field(ge=0, le=1000)] = 10.0
    """Of a token with negative credit: the loss is at most this times it; 0 for no bound."""
    share: Annotated[float, Field(gt=0, le=1)]
    """The part of a mini-batch's tokens that is taken, rounded down, but at least one."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if 0 < self.dual_clip <= 1:
            raise ValueError("dual_clip is above 1, or 0 for no bound")
        return self


class ClipCovOptions(CovarianceOptions):
    """Of the objective ``clip-cov``."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The ratio is cut below 1 minus this; 1 leaves it as it is."""
    clip_high: Width = 1.0
    """The ratio is cut above 1 plus this."""
    share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """The part of a mini-batch's tokens that loses its loss, rounded down, but at least one where
    one has such a covariance."""
    low: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Those tokens have a covariance above this."""
    high: Annotated[float, Field(ge=-1e6, le=1e6)] = 5.0
    """And below this."""

    @model_validator(mode="after")
    def _ordered(self) -> ClipCovOptions:
        if self.low >= self.high:
            raise ValueError("low is below high")
        return self


class KlCovOptions(CovarianceOptions):
    """Of the objective ``kl-cov``."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The ratio is cut below 1 minus this; 1 leaves it as it is."""
    clip_high: Width = 0.2
    """The ratio is cut above 1 plus this; 100 leaves it as good as as it is."""
    share: Annotated[float, Field(gt=0, le=1)] = 2e-3
    """The part of a mini-batch's tokens, of the greatest covariances, that is drawn back to where
    it was sampled; rounded down, but at least one."""
    coefficient: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Of the divergence from the behaviour policy, on those tokens."""
    kl: Literal["abs", "k2"] = "abs"
    """Its estimator: how far apart the log-probabilities are, or half the square of that."""


class SppoOptions(Section):
    """Of the objective ``sppo``."""

    eta: Annotated[float, Field(gt=0, le=1e6)] = 1000.0
    """η: how far a try's log-probability is drawn, for a share of pairs that is 1 above a half."""


class AnchoredOptions(Section):
    """Of the objective ``anchored``."""

    first: Coefficient = 0.0
    """λ at a training's first step."""
    last: Coefficient = 0.1
    """What λ goes to, in a straight line, up to a training's end."""
