"""The demo's main line: found, enrol, run, kill, rejoin, compare, export.

Ordered stages, each of them the command an operator would type:

1. Consortium root (own process), coordinator, four invites, four joins, a signed roster.
2. The run: masks and noise on; one silo, and in a later round the coordinator, are killed in the
   middle and come back.
3. Each silo alone: same method, tasks and rounds, without the others.
4. The silos' own evaluation files give the table; the coordinator exports a PEFT adapter.

Covered: everything on this machine over loopback. Not covered: several hosts, GPUs.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dp.config import ADJACENCY
from evolution.model.identity import base_sha256
from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.adapter.layout import Layout
from federation.errors import PlanError
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from lab.demo.choices import Control, Privacy
from lab.demo.errors import DemoError
from lab.demo.guess import Guess
from lab.demo.kills import Kills
from lab.demo.outcome import Outcome, await_judged, judged_rows, pooled
from lab.demo.progress import Progress
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, silo_toml
from lab.demo.stretch import Stretch
from lab.loopback import LoopbackFederation

__all__ = ["BASE_MODEL", "Demo", "DemoError"]

BASE_MODEL = Path(__file__).parent.parent / "base_model"
VICTIM = SILOS[-1]
MAX_ADAPTER_BYTES = 1 << 30
COLLUDING = 1
"""c of the demo's roster."""
_STEP_S: Final = 3.3
"""What a command of the set-up takes on two slow cores."""
_AT_ONCE: Final = 2
"""Silos that work alone at once."""
_REPLAYED: Final = 2 * 128
"""Tries of ``chorale-silo replay``, at most."""
_REPLAY_TIMEOUT_S: Final = 1800.0
"""They are no command of the set-up: on a busy machine two minutes were too few."""
_LOG_LINES: Final = 40
"""Of a command that failed."""


@dataclass(kw_only=True, slots=True)
class Demo:
    """One demo in one directory."""

    directory: Path
    settings: DemoSettings
    progress: Progress
    base_model: Path = BASE_MODEL
    kill: bool = True
    alone: bool = True
    _guess: Guess | None = None
    """How long what comes after the rounds may take."""

    def run(self) -> Outcome:
        """Run every stage; all processes end with it."""
        outcome = Outcome()
        compared = self.alone and self.settings.control is Control.NONE
        # Setting up, together, judging, alone, one task before and after.
        self.progress.parts = 5 if compared else 4
        with LoopbackFederation(
            directory=self.directory, environment={"CHORALE_WITHOUT_PREFLIGHT": "0"}
        ) as loopback:
            self._timed(outcome, "set up", lambda: self.set_up(loopback))
            self._timed(outcome, "together", lambda: self._together(loopback, outcome))
            if compared:
                self._timed(outcome, "alone", lambda: self._alone(outcome))
            self._timed(outcome, "export", lambda: self._export(loopback, outcome))
        return outcome

    @property
    def plan_file(self) -> Path:
        """The run plan."""
        return self.directory / "plan.toml"

    @property
    def adapter_file(self) -> Path:
        """The initial adapter φ_0."""
        return self.directory / "initial.safetensors"

    def _timed(self, outcome: Outcome, stage: str, work: Callable[[], None]) -> None:
        started = time.monotonic()
        work()
        outcome.seconds[stage] = time.monotonic() - started

    # Stages ---------------------------------------------------------------------------------------

    def set_up(self, loopback: LoopbackFederation) -> None:
        """Found, enrol and start everybody, with the files that the settings ask for."""
        steps = 4 + 2 * len(SILOS)
        with self.progress.stretch(
            "setting up", steps=steps, called="steps", guess_s=_STEP_S * steps
        ) as part:
            self._set_up(loopback, part)

    def _set_up(self, loopback: LoopbackFederation, part: Stretch) -> None:
        say = self.progress.say
        part.doing = "reading the base model"
        digest = base_sha256(self.base_model)
        toml = plan_toml(self.settings, base=str(self.base_model.resolve()), base_sha256=digest)
        try:
            plan = read_plan(toml.encode())
        except PlanError as error:
            raise DemoError(f"these settings are no plan: {error}") from error
        self.plan_file.write_text(toml)
        self._write_initial_adapter(plan)
        self._require_sound(plan)
        part.step("the root")
        say("consortium root in a process and directory of its own")
        loopback.found()
        part.step("the coordinator")
        say("coordinator: issuing CA, server certificate, database, audit log")
        loopback.start_coordinator()
        for silo_id in SILOS:
            part.step(f"{silo_id} joins")
            loopback.enrol(silo_id, base_model=self.base_model)
        part.step("the roster")
        say(f"{len(SILOS)} silos joined with one invite each; keys were made at the silos")
        loopback.publish_roster(colluding=COLLUDING)
        say("roster signed by the root, published: n = 4, c = 1, t = 3")
        # Whoever asked for no noise was told that nothing is claimed then.
        accepted = ("--accept-no-privacy",) if self.settings.privacy is Privacy.NONE else ()
        for index, silo_id in enumerate(SILOS):
            part.step(f"{silo_id}'s policy")
            directory = loopback.silo_dir(silo_id)
            (directory / "silo.toml").write_text(
                silo_toml(self.settings, index, base_model=str(self.base_model.absolute()))
            )
            loopback.silo(
                "policy", "init", "--plan", str(self.plan_file), "--data", str(directory),
                *accepted,
            )  # fmt: skip
            loopback.start_silo(silo_id)

    def _require_sound(self, plan: Plan) -> None:
        """Refuse here what every silo or the coordinator would refuse later."""
        layout = Layout.from_tensors(
            decode_adapter(self.adapter_file.read_bytes(), max_bytes=MAX_ADAPTER_BYTES)
        )
        found = forecast_plan(
            plan,
            silos=len(SILOS),
            colluding=COLLUDING,
            dimension=shared_dimension(plan, layout),
            adapter_dimension=layout.dimension,
        )
        if found.refusals:
            raise DemoError("this cannot run: " + "; ".join(found.refusals))
        for unit, epsilon in found.epsilon_total.items():
            self.progress.say(
                f"mode {found.mode}: epsilon at most {epsilon} for a {unit} at delta "
                f"{plan.privacy.delta:g} ({ADJACENCY}), spare attempts included"
            )

    def _write_initial_adapter(self, plan: Plan) -> None:
        # Imported here because it brings torch, which `chorale --help` must not.
        from evolution.model.lora import initial_adapter

        tensors = initial_adapter(
            self.base_model,
            plan.model.lora_rank,
            plan.model.lora_alpha,
            plan.evolve.seed,
            plan.model.target,
            value_head=plan.recipe.shares_value_head,
        )
        self.adapter_file.write_bytes(encode_adapter(tensors))

    def _together(self, loopback: LoopbackFederation, outcome: Outcome) -> None:
        outcome.run_id = loopback.start_run(self.plan_file, self.adapter_file, token="demo")  # noqa: S106  # names the submission, opens nothing
        self.progress.say(f"run {outcome.run_id} started: masks on, {self._noise()}")
        plan = read_plan(self.plan_file.read_bytes())
        kills = Kills(
            loopback=loopback, victim=VICTIM, rounds=plan.rounds.count, say=self.progress.say
        )
        last: dict[str, Any] = {}
        rounds, sums = plan.rounds.count, plan.spec.sums_per_round
        with self.progress.stretch(
            "together",
            steps=rounds * sums,
            called="rounds" if sums == 1 else "sums",
            guess_s=rounds * self.settings.recipe.round_s,
        ) as part:
            for status in loopback.watch(outcome.run_id):
                self.progress.status(status, part)
                outcome.rounds += status.get("finished", ())
                if self.kill:
                    kills.see(status)
                last = status
        if last["run"]["state"] != "finished":
            raise DemoError(f"the run ended as {last['run']['state']}: {last.get('error', '')}")
        kills.finish()
        outcome.killed = " and ".join(kills.killed)
        outcome.epsilon, outcome.delta = float(last["epsilon_spent"]), last["delta"]
        outcome.epsilon_unit, outcome.epsilon_cap = last["epsilon_unit"], last["epsilon_cap"]
        self._await_judged(loopback, outcome, plan)
        for silo_id in SILOS:
            budget = loopback.silo("budget", "--data", str(loopback.silo_dir(silo_id)))
            outcome.budgets[silo_id] = budget["units"]

    def _await_judged(self, loopback: LoopbackFederation, outcome: Outcome, plan: Plan) -> None:
        self.progress.say("each silo judges the first and the last adapter on held-out tasks")
        guess = self._guess = Guess.of_silos(
            [loopback.silo_dir(one) for one in SILOS], outcome.run_id
        )
        with self.progress.stretch(
            "judging",
            steps=len(SILOS),
            called="silos",
            guess_s=guess.tries_s(self._judged_tries, silos=len(SILOS)) if guess else None,
        ) as part:
            judged = await_judged(
                {silo_id: loopback.silo_dir(silo_id) for silo_id in SILOS},
                run_id=outcome.run_id,
                rounds=(0, plan.rounds.count),
                timeout_s=plan.rounds.ready_deadline_s,
                judged=part.reach,
            )
        outcome.rates["base"] = pooled(judged[0])
        outcome.rates["together"] = pooled(judged[plan.rounds.count])

    @property
    def _judged_tries(self) -> int:
        """Held-out tries of one silo at one adapter: sampled, and greedy."""
        return 2 * self.settings.held_out * len(self.settings.environments)

    def _noise(self) -> str:
        """What the noise is, in a word."""
        z = self.settings.recipe.noise_multiplier
        return f"noise on (z = {z:g})" if z else "no noise"

    def _alone(self, outcome: Outcome) -> None:
        self.progress.say("the same rounds again, each silo alone (two at a time)")
        rounds, guess = self.settings.recipe.rounds, self._guess

        def evolve(silo_id: str, part: Stretch) -> list[dict[str, Any]]:
            directory = self.directory / "silos" / silo_id
            out = self.directory / "alone" / silo_id
            lines = self._silo_command(
                "alone", str(self.plan_file), "--adapter", str(self.adapter_file),
                "--data", str(directory), "--out", str(out),
            )  # fmt: skip
            for line in lines:
                # One for each round; what it says of the silo's success is not shown.
                if line.startswith("round "):
                    part.step(f"{silo_id} is through {line.partition(':')[0]} of {rounds}")
            part.step(f"{silo_id} is judged")
            return judged_rows(out / "evaluation.jsonl", run_id="alone", round_number=rounds)

        with (
            self.progress.stretch(
                "each silo alone",
                # Its rounds, and judging what came of them.
                steps=len(SILOS) * (rounds + 1),
                called="steps",
                guess_s=guess.alone_s(held_out_tries=self._judged_tries, at_once=_AT_ONCE)
                if guess
                else None,
            ) as part,
            ThreadPoolExecutor(max_workers=_AT_ONCE) as pool,
        ):
            evolved = pool.map(evolve, SILOS, itertools.repeat(part))
            rows = dict(zip(SILOS, evolved, strict=True))
        for silo_id in SILOS:
            outcome.rates[f"alone {silo_id}"] = pooled(rows[silo_id])
        outcome.rates["alone"] = pooled(row for part in rows.values() for row in part)

    def _export(self, loopback: LoopbackFederation, outcome: Outcome) -> None:
        out, guess = self.directory / "adapter", self._guess
        loopback.chorale(
            "adapter", "export", outcome.run_id, "--out", str(out),
            "--data", str(loopback.data_dir),
        )  # fmt: skip
        outcome.exported = str(out)
        final = loopback.silo_dir(SILOS[0]) / "adapters" / outcome.rounds[-1]["adapter_sha256"]
        with self.progress.stretch(
            "one task before and after",
            guess_s=_STEP_S + guess.tries_s(_REPLAYED, silos=1) if guess else None,
        ):
            outcome.replay = loopback.silo(
                "replay", str(self.plan_file), "--before", str(self.adapter_file),
                "--after", str(final), "--data", str(loopback.silo_dir(SILOS[0])),
                timeout_s=_REPLAY_TIMEOUT_S,
            )["replay"]  # fmt: skip

    def _silo_command(self, *arguments: str) -> Iterator[str]:
        """Run ``chorale-silo ARGUMENTS``: what it says on stderr, line by line as it says it."""
        newest: deque[str] = deque(maxlen=_LOG_LINES)
        with subprocess.Popen(
            [sys.executable, "-m", "silo_agent.cli.main", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as popen:
            for line in popen.stderr or ():
                newest.append(line)
                yield line
        if popen.returncode != 0:
            raise DemoError(f"chorale-silo {arguments[0]} failed:\n{''.join(newest)}")
