"""A whole diagnosis before training: T1, T2 and T3, F where they fail, and the prediction.

The order is FedAgent's: the first test that passes decides. All three are run all the same, because
what T3 finds says what a descriptor would mend. F is run only where none passes, and only by
whoever has the other worlds at hand.

Invariants:

1. The budget bounds everything that is played and trained, before anything is.
2. What is improved is kept under ``kept``, if there is one, and taken up by the next call with the
   same key; everything else is quick and done again.
3. Nothing is written elsewhere and nothing is sent.

Covered: any worlds that replay. Not covered: reading an experiment or a silo's configuration
(``lab/diagnose``, ``silo_agent/local_work/diagnosis.py``).
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolution.diagnose.federate import Floor, beside_floor
from evolution.diagnose.improve import Adapter, Improver, averaged, identity
from evolution.diagnose.kernels import T1, kernels_agree
from evolution.diagnose.optimal import T2, actions_coincide
from evolution.diagnose.patterns import Locus
from evolution.diagnose.policies import Held, Policies
from evolution.diagnose.prediction import Predicted, Signs, predict
from evolution.diagnose.reveal import T3, environment_shows
from evolution.diagnose.worlds import World
from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.errors import FederationError
from ops.files import private_directory, replace_file

__all__ = ["Budget", "Diagnosis", "Kept", "Say", "as_data", "diagnose"]

Say = Callable[[str], None]
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much is played and trained."""

    steps: int = 2
    """GRPO steps of each π̂, and rounds of the federated probe."""
    episodes: int = 32
    """T1's and T3's, in each world."""
    states: int = 48
    """Visited states at which T1 compares policies."""
    choices: int = 16
    """States at which T2 compares actions."""
    actions: int = 4
    """T2's candidates at a state."""
    rolls: int = 4
    """T2's continuations of an action."""
    judged: int = 64
    """Tasks of each world on which F counts success."""
    seed: int = 0
    """Of everything."""

    @property
    def tasks(self) -> int:
        """Probe tasks that each world needs."""
        return max(self.episodes, self.choices) + self.judged


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What was found."""

    locus: Locus
    worlds: tuple[str, ...]
    horizon: int
    t1: T1
    t2: T2
    t3: T3
    floor: Floor | None
    """None where a test passed, or the others' worlds are not at hand."""
    predicted: Predicted
    budget: Budget


class Kept:
    """Adapters that a diagnosis made, in a directory, for a key that says from what."""

    def __init__(self, directory: Path | None, key: str) -> None:
        self._directory = None if directory is None else directory / key
        if self._directory is not None:
            private_directory(self._directory)

    def adapter(self, name: str, make: Callable[[], Adapter]) -> Held:
        """The adapter of that name, made where it is not kept or cannot be read."""
        path = None if self._directory is None else self._directory / f"{name}.safetensors"
        found: Adapter | None = None
        if path is not None and path.is_file():
            try:
                found = decode_adapter(path.read_bytes(), max_bytes=_MOST_BYTES)
            except (OSError, FederationError):
                found = None
        if found is None:
            found = make()
            if path is not None:
                replace_file(path, (encode_adapter(dict(found)),))
        return Held(version=identity(found), tensors=found)


def diagnose(
    worlds: Sequence[World],
    policies: Policies,
    improver: Improver,
    *,
    start: Adapter,
    locus: Locus,
    budget: Budget,
    kept: Kept,
    say: Say,
    federate: bool = True,
    scratch: Path | None = None,
) -> Diagnosis:
    """Run the tests; ``federate`` allows F.

    What is explored is in directories of its own below ``scratch``, or where the system has such,
    and removed.

    Raises:
        EvolverSetupError: The recipe cannot run in a world.
        RolloutError: The engine cannot play.
    """
    zero = Held(version=identity(start), tensors=start)

    def improved(world: World, *, seed: int) -> Held:
        name = f"alone-{worlds.index(world)}-{seed}"

        def make() -> Adapter:
            say(f"{world.name}: {budget.steps} steps alone")
            with tempfile.TemporaryDirectory(prefix="chorale-diagnose-", dir=scratch) as own:
                return improver.improve(
                    world, start, steps=range(budget.steps), seed=seed, scratch=Path(own)
                )

        return kept.adapter(name, make)

    alone = {world.name: improved(world, seed=budget.seed) for world in worlds}
    again = improved(worlds[0], seed=budget.seed + 1)
    say("T1: whether kernels agree where policies go")
    t1 = kernels_agree(
        worlds,
        policies,
        start=zero,
        improved=alone,
        again=again,
        episodes=budget.episodes,
        states=budget.states,
    )
    say("T2: whether the same actions are best")
    t2 = actions_coincide(
        worlds,
        policies,
        start=zero,
        improved=alone,
        states=budget.choices,
        actions=budget.actions,
        rolls=budget.rolls,
    )
    say("T3: whether the environment shows")
    horizon = max(_max_steps(world) for world in worlds)
    kinds = list({world.kind: world for world in worlds}.values())
    t3 = environment_shows(kinds, policies, start=zero, episodes=budget.episodes, horizon=horizon)
    floor = None
    if federate and locus == "environments" and not any((t1.passed, t2.passed, t3.passed)):
        say("F: a short federated probe")
        together = kept.adapter(
            "together", lambda: _together(worlds, improver, start, budget, say, scratch=scratch)
        )
        floor = beside_floor(
            worlds,
            policies,
            start=zero,
            alone=alone,
            together=together,
            delta=t1.delta,
            episodes=budget.judged,
        )
    signs = Signs(
        locus=locus,
        horizon=horizon,
        t1=t1.passed,
        t2=t2.passed,
        t3=t3.passed,
        t_star=t3.t_star,
        eta_cls=t3.eta_cls,
        overlap=t2.agree if t2.passed is not None else None,
        fallback=None if floor is None else floor.verdict,
    )
    return Diagnosis(
        locus=locus,
        worlds=tuple(world.name for world in worlds),
        horizon=horizon,
        t1=t1,
        t2=t2,
        t3=t3,
        floor=floor,
        predicted=predict(signs),
        budget=budget,
    )


def as_data(value: Any) -> Any:
    """What JSON can hold of anything of a diagnosis; what is not finite becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _together(
    worlds: Sequence[World],
    improver: Improver,
    start: Adapter,
    budget: Budget,
    say: Say,
    *,
    scratch: Path | None,
) -> Adapter:
    """A few rounds of federated averaging over all worlds."""
    shared: Adapter = start
    for number in range(budget.steps):
        say(f"F: round {number + 1} of {budget.steps}")
        locals_ = []
        for place, world in enumerate(worlds):
            with tempfile.TemporaryDirectory(prefix="chorale-diagnose-", dir=scratch) as own:
                locals_.append(
                    improver.improve(
                        world,
                        shared,
                        steps=[number],
                        seed=budget.seed + place,
                        scratch=Path(own),
                    )
                )
        shared = averaged(locals_)
    return shared


def _max_steps(world: World) -> int:
    environment = world.make()
    try:
        return int(environment.max_steps)
    finally:
        environment.close()
