"""The method of the run that is worked on, and the model that it holds.

Invariants:

1. One method at a time: what another run needs is made after the last one was closed.
2. A run that is over holds no memory of this machine: its method is closed. Who asks for it again,
   to judge the last adapter, gets another one, which finds what the first one kept on disk.

Covered: one thread that asks. Not covered: two runs that are worked on at once.
"""

from __future__ import annotations

from evolution.methods.evolver import Evolver
from evolution.methods.registry import make_evolver
from evolution.model.allocator import give_back
from federation.plan.plan import Plan
from silo_agent.books.kept_runs import KeptRuns
from silo_agent.config import SiloConfig
from silo_agent.local_work.plan_terms import evolver_setup
from silo_agent.machine.hardware import Fitting

__all__ = ["HeldMethod"]


class HeldMethod:
    """See the module."""

    def __init__(self, config: SiloConfig, *, fitting: Fitting, kept_runs: KeptRuns) -> None:
        """Nothing is loaded yet; methods keep their files in the directories of kept runs."""
        self._config, self._fitting, self._kept_runs = config, fitting, kept_runs
        self._held: tuple[str, Evolver] | None = None

    def of(self, plan: Plan, run_id: str) -> Evolver:
        """The method of a run, loaded if it is not held."""
        if self._held is not None and self._held[0] == run_id:
            return self._held[1]
        self.close()
        setup = evolver_setup(
            self._config,
            plan,
            # Nothing in the directories of other runs is open any more.
            state_dir=self._kept_runs.directory(run_id),
            privacy=plan.spec,
        )
        evolver = make_evolver(self._fitting.setup(plan, setup))
        self._held = (run_id, evolver)
        return evolver

    def release(self, over: frozenset[str]) -> None:
        """Close the method of a run that is over."""
        if self._held is not None and self._held[0] in over:
            self.close()

    def close(self) -> None:
        """Close the method that is held; it is nobody's any more, also if closing it fails."""
        held, self._held = self._held, None
        if held is None:
            return
        held[1].close()
        del held
        give_back(collect=True)
