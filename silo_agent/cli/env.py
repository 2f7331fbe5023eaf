"""``chorale-silo env try``: an environment and the base model, before anybody trains together.

Covered: how it is shown; text of an environment or a model stands behind a bar, line by line, so
that it can pass for nothing else. Not covered: playing (``silo_agent/local_work/trial.py``) and
counting (``evolution/rollout/trial.py``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from silo_agent.local_work.trial import Played, Tried, Turn

__all__ = ["env_app"]

env_app = typer.Typer(
    help="Look at one of this silo's environments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_LINES: Final = 40
"""Of one turn that are shown."""
_CHARS: Final = 1_000
"""Of one line that are shown."""
_WORDS: Final = 40
"""Unknown words that are shown."""
_ROLE: Final = 22


@env_app.callback()
def environments() -> None:
    """Look at one of this silo's environments."""


@env_app.command("try")
def attempt(
    *,
    name: Annotated[
        str, typer.Argument(help="An environment that silo.toml declares.", metavar="NAME")
    ],
    episodes: Annotated[int, typer.Option(help="How many to play.", min=1, max=10_000)] = 5,
    show: Annotated[
        bool, typer.Option("--show", help="Print every conversation, turn by turn.")
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(help="Longest answer in one turn, as in the plan.", min=1, max=8192)
    ] = 8,
    temperature: Annotated[
        float, typer.Option(help="Of sampling, as in the plan; 0 is greedy.", min=0.0, max=10.0)
    ] = 1.0,
    dtype: Annotated[
        str, typer.Option(help="Of the base model's weights, as in the plan: float32 or bfloat16.")
    ] = "float32",
    seed: Annotated[int, typer.Option(help="Decides every draw.", min=0)] = 0,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Play a few episodes with the base model, and say what keeps it from learning there.

    Plays the first tasks that this silo would explore, one after the other, and counts: episodes
    solved, words that the base model does not know, answers that the token limit cut off, turns
    and seconds. With --show each episode is printed as a conversation.

    Everything stays here: nothing is sent to anybody, trained or kept, and no budget is spent,
    because nothing is published. The daemon may run; both then share the machine.
    """
    with answering(output):
        from evolution.errors import EnvironmentFailureError, EvolutionError
        from evolution.rollout.trial import troubles
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.trial import Asked, try_environment

        if dtype not in {"float32", "bfloat16"}:
            raise CommandError(
                f"--dtype is float32 or bfloat16, not {dtype!r}",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
            )
        played: list[Played] = []

        def told(one: Played) -> None:
            played.append(one)
            show_result(output, _heading(one, of=episodes))
            if show:
                show_result(output, *(line for turn in one.turns for line in _turn_lines(turn)))

        asked = Asked(
            episodes=episodes,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            dtype=dtype,
            seed=seed,
            texts=show,
        )
        try:
            tried = try_environment(SiloConfig.load(data), name, asked, say=say, told=told)
        except EnvironmentFailureError as error:
            raise CommandError(
                str(error),
                code="environment",
                exit_code=Exit.ARGUMENTS,
                hint="start its server or install its package, or correct [foreign], plugins and "
                "environments of silo.toml",
            ) from error
        except EvolutionError as error:
            raise CommandError(
                str(error),
                code="rollout",
                exit_code=Exit.SERVER,
                hint="`chorale-silo doctor` looks at the base model by itself",
            ) from error
        found = troubles(tried.trial, max_new_tokens=max_new_tokens)
        data_of: dict[str, Any] = {
            "environment": name,
            **tried.trial.as_data(),
            "troubles": [asdict(one) for one in found],
        }
        if show:
            data_of["played"] = [asdict(one) for one in played]
            data_of["words_not_known"] = list(tried.unknown_words)
        if not tried.trial.episodes:
            raise CommandError(
                f"no episode of {name} was finished: all {tried.trial.dropped} were dropped",
                code="no_episode",
                exit_code=Exit.SERVER,
                hint="a line above names the error of each; one without a line has an opening that "
                "is longer than the model's context",
                data=data_of,
            )
        show_result(output, *_summary(name, tried, of=asked.max_new_tokens))
        for one in found:
            say(f"warning: {one.text}", f"hint: {one.fix}")
        succeed(output, data_of)


def _heading(one: Played, *, of: int) -> str:
    limit = ", ended by a limit" if one.truncated else ""
    turns = "1 turn" if one.answers == 1 else f"{one.answers} turns"
    return (
        f"episode {one.number} of {of}: task {one.task_id} ({one.label}): {one.outcome}, "
        f"{turns}, {one.duration_s:.2f} s{limit}"
    )


def _turn_lines(turn: Turn) -> list[str]:
    """The lines of a turn, each behind a bar."""
    from federation.text import printable

    marks = [
        word
        for word, holds in (
            ("example", turn.example),
            ("cut off", turn.cut_off),
            ("not read", turn.not_read),
        )
        if holds
    ]
    role = f"{turn.role} ({', '.join(marks)})" if marks else turn.role
    lines = turn.text.splitlines() or [""]
    shown = [printable(line, max_chars=_CHARS) for line in lines[:_LINES]]
    if len(lines) > _LINES:
        shown.append(f"… and {len(lines) - _LINES} lines more")
    roles = [role, *[""] * (len(shown) - 1)]
    return [f"  {who:<{_ROLE}} | {line}" for who, line in zip(roles, shown, strict=True)]


def _summary(name: str, tried: Tried, *, of: int) -> list[str]:
    trial = tried.trial
    rows = {
        "solved": f"{trial.solved} of {trial.episodes}",
        "dropped": f"{trial.dropped}" if trial.dropped else "",
        "unknown words": f"{100 * trial.unknown_share:.1f} % of {trial.words} that were read",
        "which": ", ".join(tried.unknown_words[:_WORDS])
        + (" …" if len(tried.unknown_words) > _WORDS else ""),
        "cut off": f"{trial.cut_off} of {trial.turns} answers, at {of} tokens",
        "not read": f"{trial.not_read} of {trial.turns} answers, by the environment",
        "turns": f"{trial.turns_per_episode:.1f} an episode",
        "seconds": f"{trial.seconds_per_episode:.2f} an episode",
    }
    return [f"{name}:", *(f"  {key:<14} {value}" for key, value in rows.items() if value)]
