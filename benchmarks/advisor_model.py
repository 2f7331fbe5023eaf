"""How a real model does as an adviser: what it answers to states of simulated rounds.

The states are those of a federation of 25 simulated silos whose success follows a fixed curve
(nothing is trained), or those that a run's decisions have recorded (``--decisions``). Each is asked
as a coordinator would, with the product's conversation, judge and two corrections; no tools are
offered, for so small a model calls none. A base in this process is not held to the schema; a server
that takes ``response_format`` holds its model to it (``--endpoint``), and is asked as a coordinator
asks it, by the product's own connection and within a time limit.

Prints a line for each question and, as its last line, the figures as JSON: how many proposals were
taken at once, after corrections, and not at all and why, with tokens and seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from evolution.model.causal_lm import load_tokenizer
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.hf import HfEngine
from federation.advice.conversation import Budget, Failure
from federation.advice.proposal import Proposal
from federation.advice.record import AdviceRecord
from federation.advice.state import RoundState
from federation.plan.tables import SelectionAdviceSection, SelectionRangesSection, SelectionSection
from federation.selection.decided import read_decisions
from lab.experiment.orchestration.consult import consult
from lab.experiment.orchestration.orchestrator import Orchestrator, Tries
from lab.experiment.tables import OrchestrationTable
from server.advisor.consult import consult as endpoint_consult
from server.advisor.endpoint import Endpoint

SILOS: Final = 25
ROUNDS: Final = 12
EPISODES: Final = 16
RISE: Final = 0.05
"""Of success, a round."""
UPLOAD_BYTES: Final = 200_000
FAMILIES: Final = ("babyai", "craft", "maze")
BUDGET: Final = Budget(tool_calls=0, tokens=20_000, seconds=600)


class Model:
    """A base model in this process, as an endpoint."""

    def __init__(self, base: Path, *, device: str, threads: int, most_tokens: int) -> None:
        self._tokenizer: Any = load_tokenizer(base)
        self._engine = HfEngine(base, device=device, threads=threads)
        self._most_tokens = most_tokens
        self._key = itertools.count()

    def __call__(self, request: bytes) -> tuple[bytes | Failure, int]:
        """A completion, greedy."""
        began_s = time.perf_counter()
        asked = json.loads(request)
        prompt = self._tokenizer.apply_chat_template(
            asked["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        most = min(asked["max_tokens"], self._most_tokens)
        if len(prompt) + most > self._engine.context_limit:
            return Failure.TOO_LARGE, 0
        (made,) = self._engine.generate(
            [Prompt(key=next(self._key), token_ids=prompt)],
            Sampling(temperature=0.0, max_new_tokens=most, seed=0),
        )
        text = self._tokenizer.decode(made.token_ids, skip_special_tokens=True)
        body = {
            "choices": [{"message": {"role": "assistant", "content": text}}],
            "usage": {"total_tokens": len(prompt) + len(made.token_ids)},
        }
        return json.dumps(body).encode(), round(1000 * (time.perf_counter() - began_s))


def simulated(count: int, style: str) -> Iterator[RoundState]:
    """States that the rule's own advice leads to."""
    table = OrchestrationTable(
        adviser="rule",
        selection=SelectionSection(
            policy="advised",
            count=11,
            ranges=SelectionRangesSection(ready_deadline_s=(1800, 7200)),
            advice=SelectionAdviceSection(
                style="silos" if style == "silos" else "count", then="random"
            ),
        ),
    )
    for seed in itertools.count(1):
        names = [f"silo-{place:02d}" for place in range(SILOS)]
        families = {name: (FAMILIES[place % 3],) for place, name in enumerate(names)}
        rounds = Orchestrator(
            table,
            run_id=f"states-{seed}",
            sha256="00" * 32,
            seed=seed,
            rounds=ROUNDS,
            families=families,
            sizes=dict.fromkeys(names, 128),
            most_tries=EPISODES,
        )
        for number in range(1, ROUNDS + 1):
            begun = rounds.begin(number)
            solved = round(EPISODES * min(0.3 + RISE * number, 0.75))
            ready = () if begun.timing.is_lost else begun.timing.ready
            rounds.end(
                begun,
                {
                    name: Tries(
                        episodes={families[name][0]: EPISODES},
                        successes={families[name][0]: solved},
                    )
                    for name in ready
                },
                upload_bytes=UPLOAD_BYTES * len(ready),
            )
        for state in recorded(rounds.decisions.encode().splitlines()):
            yield state
            count -= 1
            if not count:
                return


def recorded(lines: Sequence[bytes]) -> Iterator[RoundState]:
    """States of those decisions that an adviser was asked for."""
    for decided in read_decisions(lines):
        if decided.advice:
            yield AdviceRecord.decode(decided.advice).state


def figures_of(records: Sequence[AdviceRecord]) -> dict[str, Any]:
    """What the last line says."""
    taken = [record for record in records if isinstance(record.result, Proposal)]
    proposals = [record.result for record in records if isinstance(record.result, Proposal)]
    ends = Counter(
        record.result.gave_up.value
        for record in records
        if record.result is not None and not isinstance(record.result, Proposal)
    )
    tokens = [sum(turn.tokens for turn in record.turns) for record in records]
    seconds = [sum(turn.milliseconds for turn in record.turns) / 1000 for record in records]
    return {
        "asked": len(records),
        "valid_at_once": sum(len(record.turns) == 1 for record in taken),
        "valid_after_corrections": sum(len(record.turns) > 1 for record in taken),
        "not_valid": dict(sorted(ends.items())),
        "different_counts": len({proposal.count for proposal in proposals}),
        "tokens_mean": round(statistics.fmean(tokens), 1),
        "seconds_mean": round(statistics.fmean(seconds), 2),
        "seconds_most": round(max(seconds), 2),
    }


def asked(given: argparse.Namespace) -> tuple[Callable[[RoundState], AdviceRecord], str]:
    """Who is asked, and what it is called."""
    if given.endpoint is None:
        model = Model(
            given.base, device=given.device, threads=given.threads, most_tokens=given.most_tokens
        )
        return lambda state: consult(state, BUDGET, given.base.name, model), given.base.name
    key = None if given.key_file is None else SecretStr(given.key_file.read_text().strip())
    endpoint = Endpoint(given.endpoint, given.model, api_key=key)
    return (
        lambda state: asyncio.run(endpoint_consult(state, BUDGET, endpoint, given.model)),
        given.model,
    )


def main() -> None:
    """Ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("bases/smollm2"))
    parser.add_argument("--endpoint", help="http://127.0.0.1:PORT/v1 instead of the base here")
    parser.add_argument("--model", default="base", help="what the endpoint calls it")
    parser.add_argument("--key-file", type=Path, help="of the endpoint")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--decisions", type=Path, help="a run's decisions.jsonl, in the place")
    parser.add_argument("--style", choices=("count", "silos"), default="count")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most-tokens", type=int, default=256, help="of one answer")
    given = parser.parse_args()
    if given.questions < 1:
        parser.error("--questions: at least 1")
    ask, name = asked(given)
    states = (
        simulated(given.questions, given.style)
        if given.decisions is None
        else recorded(given.decisions.read_bytes().splitlines())
    )
    records = []
    for state in itertools.islice(states, given.questions):
        record = ask(state)
        records.append(record)
        what = "none" if record.result is None else record.result.model_dump_json(exclude_none=True)
        print(f"{len(records)}: {len(record.turns)} requests, {what[:160]}", flush=True)
    if not records:
        parser.error("there are no states")
    print(json.dumps({"model": name, "style": given.style, **figures_of(records)}))


if __name__ == "__main__":
    main()
