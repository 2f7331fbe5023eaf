"""What a silo learns, and how its rounds go.

Covered: success, reward, loss, tokens, rounds, phases, verdicts of the policy. Not covered:
trajectories, which no metric tells of.
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import Kind, Panel, Query
from deploy.grafana.phase_durations import phase_durations
from deploy.grafana.presets import SILO, counter, in_range

__all__ = ["learning_row", "rounds_row"]

_OF: Final = SILO.of


def learning_row() -> Row:
    """What the silo learns."""
    return Row(
        title="Learning at this site",
        panels=(_success(), _reward(), _loss(), *_policy(), _tokens(), _too_long()),
    )


def rounds_row() -> Row:
    """How its rounds go."""
    panels = (_rounds(), _decisions(), _resumed(), *_durations())
    return Row(title="Rounds and policy", panels=panels)


def _success() -> Panel:
    ratio = _OF("chorale_silo_success_ratio")
    return Panel(
        kind=Kind.LINES,
        title="Success by environment",
        shows="Successes per episode of this silo's last exploration. The site's own figure.",
        remedy=(
            "Zero from the start: environment or tasks are at fault; `chorale-silo preview RUN` "
            "shows what is sent. A fall after a round: `chorale-silo status` compares adapters on "
            "held-out tasks."
        ),
        queries=(
            # A family that was never played has no number, and no line.
            Query(expr=f"{ratio} >= 0", legend="{{environment}}"),
        ),
        unit="percentunit",
        minimum=0,
        maximum=1,
        steps=True,
        quiet="nothing was played yet",
        width=12,
    )


def _reward() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Task reward",
        shows="Mean reward of the last exploration, all environments together.",
        remedy="Reward that rises while success does not: partial credit is learned, not the task.",
        queries=(Query(expr=f"{_OF('chorale_silo_task_reward')} > -Inf", legend="reward"),),
        unit="none",
        decimals=2,
        steps=True,
        quiet="nothing was played yet",
        width=6,
    )


def _loss() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Training loss",
        shows=(
            "Loss at the end of the last local training. In record modes it is not measured: there "
            "is a clipped and noised gradient for each unit instead."
        ),
        remedy=(
            "Rising, or not a number: lower the plan's learning rate. Near zero: few successes are "
            "learned by heart; more tasks help."
        ),
        queries=(Query(expr=f"{_OF('chorale_silo_train_loss')} > -Inf", legend="loss"),),
        unit="none",
        decimals=3,
        steps=True,
        quiet="none measured",
        width=6,
    )


def _policy() -> tuple[Panel, Panel]:
    entropy = Panel(
        kind=Kind.LINES,
        title="Entropy and divergence",
        shows=(
            "Of the agent's tokens, in the last training of a method that compares tries: how "
            "open its answers are, how far they have moved from the reference, and how far what "
            "played and what trained disagreed before the first step."
        ),
        remedy=(
            "Entropy that falls to a tenth: answers are certain and nothing is tried any more. "
            "That rises without end: they are random. Disagreement: the model server's version, "
            "data type or adapter."
        ),
        queries=(
            Query(expr=f"{_OF('chorale_silo_entropy_nats')} > -Inf", legend="entropy"),
            Query(expr=f"{_OF('chorale_silo_kl_nats')} > -Inf", legend="divergence"),
            Query(expr=f"{_OF('chorale_silo_engine_mismatch_nats')} > -Inf", legend="mismatch"),
        ),
        unit="none",
        decimals=3,
        steps=True,
        quiet="nothing compared tries yet",
        width=12,
        runbooks=("ChoraleSiloEntropyOffCourse", "ChoraleSiloEngineMismatch"),
    )
    shares = Panel(
        kind=Kind.LINES,
        title="What tries were compared for",
        shows=(
            "Tasks of the last round whose tries differed, and tokens whose policy ratio was cut."
        ),
        remedy=(
            "Few tasks: they are too easy or too hard, or there are too few tries of each. Many "
            "cut tokens: fewer mini-batches, or a smaller learning rate."
        ),
        queries=(
            Query(expr=f"{_OF('chorale_silo_groups_used_ratio')} >= 0", legend="tasks"),
            Query(
                expr=f"{_OF('chorale_silo_clipped_tokens_ratio')} >= 0",
                legend="cut {{side}}",
            ),
        ),
        unit="percentunit",
        minimum=0,
        maximum=1,
        steps=True,
        quiet="nothing compared tries yet",
        width=12,
    )
    return entropy, shares


def _tokens() -> Panel:
    tokens = _OF("chorale_silo_rollout_tokens_total")
    return Panel(
        kind=Kind.LINES,
        title="Tokens trained on, per second",
        shows=(
            "Tokens of the agent's own turns, counted when a round's local work ends; not counted "
            "in record modes."
        ),
        remedy="None over several rounds: nothing succeeded, so there was nothing to learn from.",
        queries=(Query(expr=f"rate({tokens}[$__rate_interval])", legend="tokens"),),
        unit="si:tok/s",
        minimum=0,
        width=18,
        height=6,
    )


def _too_long() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Too long to be trained on",
        shows=(
            "Trajectories left out since the daemon started, because they are longer than the "
            "plan's `max_sequence_tokens`."
        ),
        remedy="Many of them: ask for a plan with a larger `max_sequence_tokens`.",
        queries=(
            Query(expr=_OF("chorale_silo_too_long_trajectories_total"), legend="trajectories"),
        ),
        unit="none",
        minimum=0,
        steps=True,
        width=6,
        height=6,
    )


def _rounds() -> Panel:
    return counter(
        title="Rounds by outcome",
        shows="Rounds since the daemon started, by how they ended for this silo.",
        remedy=(
            "`refused`: the policy did not allow it, see the verdicts. `aborted`: too few silos, "
            "or a check failed; see failed checks."
        ),
        queries=(Query(expr=_OF("chorale_silo_rounds_total"), legend="{{outcome}}"),),
    )


def _decisions() -> Panel:
    return in_range(
        selector=_OF("chorale_silo_policy_decisions_total"),
        by="decision, rule",
        title="Verdicts of the policy in this range",
        shows="What this site's policy decided, and by which rule.",
        remedy=(
            "A refusal names its rule here and, with what was compared, in the log. Change "
            "`policy.toml` and restart, or ask for another plan: `chorale-silo policy check PLAN`."
        ),
        quiet="nothing was decided",
    )


def _resumed() -> Panel:
    return counter(
        title="Mended by itself",
        shows=(
            "Uploads that a restarted daemon finished, and deltas that were not finite, for which "
            "zeros went up; both since the daemon started."
        ),
        remedy=(
            "Deltas that are not finite: training diverged; look at the loss. Uploads: something "
            "restarts this daemon in the middle of rounds."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_resumed_uploads_total"), legend="uploads finished"),
            Query(expr=_OF("chorale_silo_nonfinite_deltas_total"), legend="deltas not finite"),
        ),
        runbooks=("ChoraleSiloNonfiniteDeltas",),
    )


def _durations() -> tuple[Panel, Panel]:
    return phase_durations(
        SILO,
        "chorale_silo_phase_duration_seconds",
        done="done",
        remedy=(
            "`explore` and `train` are this site's own work: more GPUs, or a vLLM server. "
            "`masked_input` is the upload. A silo that is too slow for a deadline misses the round."
        ),
        price_of="plan, model or machine",
    )
