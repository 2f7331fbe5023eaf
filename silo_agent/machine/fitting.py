"""A silo's work, fitted to its machine: one choice for each plan, made once and said once.

Invariants: the machine is looked at once, before anything is loaded on it; a plan gets the same
choice as long as the process runs.

Covered: set-up and settings. Not covered: how the choice is made
(``silo_agent/machine/hardware.py``).
"""

from __future__ import annotations

import threading
from dataclasses import replace

import structlog

from evolution.methods.evolver import EvolverSetup, Work
from federation.plan.plan import Plan
from silo_agent.config import SiloConfig
from silo_agent.machine.hardware import Choice, choose, fixed_keys
from silo_agent.machine.machine import Machine, look, shape_in

__all__ = ["Fitting"]

log = structlog.get_logger(__name__)


class Fitting:
    """One daemon's; safe to call from several threads."""

    def __init__(self, config: SiloConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._choice: tuple[Plan, Choice] | None = None

    def choice(self, plan: Plan) -> Choice:
        """How a plan's local work is done here."""
        with self._lock:
            if self._machine is None:
                self._machine = look(self._config)
            if self._choice is None or self._choice[0] != plan:
                chosen = choose(
                    self._machine,
                    plan,
                    self._config,
                    shape=shape_in(self._config.base_model, plan.model.base),
                    fixed=fixed_keys(self._config),
                )
                if chosen.notes:
                    log.info(
                        "hardware", plan=plan.name, machine=self._machine.line, chose=chosen.notes
                    )
                self._choice = (plan, chosen)
            return self._choice[1]

    def setup(self, plan: Plan, setup: EvolverSetup) -> EvolverSetup:
        """The same set-up with the trainer that fits."""
        return replace(setup, trainer=self.choice(plan).trainer)

    def work(self, plan: Plan, work: Work) -> Work:
        """The same work with the settings that fit."""
        return replace(work, settings=self.choice(plan).settings(work.settings))
