"""Typed failures of the agent: environments, model, rollout, memory, training and methods.

::

    EvolutionError
    ├── EvolveError                        a method cannot do what it is asked for
    │   ├── EvolverSetupError              not with this configuration; never caused by data
    │   ├── UnknownEvolverError            no method is registered under that name
    │   ├── ExpertError                    there is no expert for this environment
    │   ├── ExpertFileError                demonstrations in a file are not of the form; says where
    │   ├── NotWantedError                 nobody wants the work any more; no failure
    │   ├── PartError                      a recipe's part did what its kind may not do
    │   ├── RowError                       a training row whose numbers do not fit each other
    │   ├── PanelError                     a panel of the guard's cannot be played as asked
    │   ├── PersonalStoreError             a personal adapter cannot be read or written
    │   ├── TrainingJobError               a job's files are missing, or not what they should be
    │   └── TrainingWorkerError            training processes ended without a result
    ├── EnvironmentFailureError            whatever an environment fails with
    │   ├── UnknownEnvironmentError        no environment is registered under that name
    │   ├── EnvironmentPluginError         an installed package's environment cannot be used
    │   ├── EnvironmentSetupError          what the operator wrote does not fit the environment
    │   │   └── ProductFileError           a file of products is not of the form
    │   ├── TaskIdError                    the task id lies outside the environment's ranges
    │   ├── ShardError                     the tasks cannot be dealt out that way
    │   ├── EpisodeStateError              step before reset, or after the episode ended
    │   ├── OutcomeError                   what a step returned is not of the form
    │   ├── PrefixError                    the actions to replay leave nothing to play
    │   ├── VariantError                   the environment takes no task that somebody wrote
    │   ├── ScaffoldError                  the environment has no place for a scaffold
    │   └── ForeignEnvironmentError        an environment that is not Chorale's own misbehaved
    │       ├── ForeignUnreachableError    it cannot be reached, hung up, or was given up a while
    │       ├── ForeignTimeoutError        it did not answer in time
    │       ├── ForeignRefusalError        it answered with an error
    │       ├── ForeignReplyError          its answer is too large, malformed or of the wrong type
    │       └── HarnessError               a harness that plays through the gateway misbehaved
    │           ├── HarnessStartError      its command cannot be started
    │           ├── HarnessTimeoutError    it took longer than it may
    │           ├── HarnessExitError       it died, or left with another status than 0
    │           ├── HarnessOutputError     it wrote more than it may
    │           ├── HarnessReportError     its report is missing, impossible, or a second one
    │           ├── HarnessModelError      it asked for a model that is not its own
    │           ├── HarnessHistoryError    it edited its history more often than it may
    │           └── HarnessLimitError      it used its answers, its tokens or the context up
    ├── RequestRefusedError                a request to the gateway that is not answered
    ├── ConversationError                  between an episode and its tokens
    │   └── ChatTemplateError              the template has no shape that turns can be appended to
    ├── RolloutError                       a rollout engine
    │   ├── AdapterLoadError               the engine does not take the adapter
    │   ├── RolloutWorkerError             a worker died, does not answer, or failed
    │   ├── PartlyAnsweredError            some prompts have answers, and some have none
    │   ├── EngineMemoryError              not even one conversation fits into memory
    │   ├── TryTimeError                   a try's environment took longer than a try may
    │   ├── EngineSetupError               the operator's settings and the server do not fit
    │   └── EngineServerError              the model server did not do what it was asked for
    │       ├── EngineUnreachableError     no connection, a hang-up, or nobody healthy there
    │       ├── EngineTimeoutError         no whole answer in time
    │       ├── EngineRefusalError         another HTTP status than 200
    │       └── EngineReplyError           an answer that cannot be what was asked for
    ├── MemoryStoreError                   a silo's memory, and its principles
    │   ├── MemoryCorruptError             the file is damaged or not ours
    │   └── MemoryContentError             a trajectory or a text that may not be stored
    ├── VerdictError                       rows that are none of a guard's
    ├── BaseModelError                     the directory is no base model that is accepted
    ├── AdapterMismatchError               tensors that do not belong to this model; a ValueError
    └── LocalTimeError                     local work took longer than it may

A failed episode is data, not a crash: whoever plays catches ``EnvironmentFailureError``, drops the
episode and counts it. No text of a foreign environment is part of a message.

Not covered: faults of the operator's disk, which stay ``OSError``; what only one environment's own
code raises and catches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

__all__ = [
    "AdapterLoadError",
    "AdapterMismatchError",
    "BaseModelError",
    "ChatTemplateError",
    "ConversationError",
    "EngineMemoryError",
    "EngineRefusalError",
    "EngineReplyError",
    "EngineServerError",
    "EngineSetupError",
    "EngineTimeoutError",
    "EngineUnreachableError",
    "EnvironmentFailureError",
    "EnvironmentPluginError",
    "EnvironmentSetupError",
    "EpisodeStateError",
    "EvolutionError",
    "EvolveError",
    "EvolverSetupError",
    "ExpertError",
    "ExpertFileError",
    "ForeignEnvironmentError",
    "ForeignRefusalError",
    "ForeignReplyError",
    "ForeignTimeoutError",
    "ForeignUnreachableError",
    "HarnessError",
    "HarnessExitError",
    "HarnessHistoryError",
    "HarnessLimitError",
    "HarnessModelError",
    "HarnessOutputError",
    "HarnessReportError",
    "HarnessStartError",
    "HarnessTimeoutError",
    "LocalTimeError",
    "MemoryContentError",
    "MemoryCorruptError",
    "MemoryStoreError",
    "NotWantedError",
    "OutcomeError",
    "PanelError",
    "PartError",
    "PartlyAnsweredError",
    "PersonalStoreError",
    "PrefixError",
    "ProductFileError",
    "RolloutError",
    "RolloutWorkerError",
    "RowError",
    "ScaffoldError",
    "ShardError",
    "TaskIdError",
    "TrainingJobError",
    "TrainingWorkerError",
    "TryTimeError",
    "UnknownEnvironmentError",
    "UnknownEvolverError",
    "VariantError",
    "VerdictError",
]


class EvolutionError(Exception):
    """Base of every failure of the agent."""


class EvolveError(EvolutionError):
    """Base of everything a method can fail with."""


class EvolverSetupError(EvolveError):
    """The method cannot run with this configuration."""


class UnknownEvolverError(EvolveError):
    """No method is registered under the requested name."""


class ExpertError(EvolveError):
    """There is no expert for this environment."""


class ExpertFileError(EvolveError):
    """The file is not demonstrations in AgentGym's form."""


class NotWantedError(EvolveError):
    """The run that the work is for is over, or the silo is being stopped."""


class PartError(EvolveError):
    """A part of a recipe did what its kind may not do: more tries, other tasks, foreign rows."""


class RowError(EvolveError):
    """A training row's arrays do not fit each other, or a number is not finite."""


class PanelError(EvolveError):
    """A panel was played in part, not at all, or as another environment."""


class PersonalStoreError(EvolveError):
    """A personal adapter cannot be read or written."""


class TrainingJobError(EvolveError):
    """A job's files are missing or are not what they should be."""


class TrainingWorkerError(EvolveError):
    """Workers ended without a result; the text says why, and what they printed last."""

    log_text: ClassVar[str] = "the training processes ended without a result"
    """For a log: what a worker printed may quote what it worked on."""


class EnvironmentFailureError(EvolutionError):
    """Base of everything an environment can fail with."""


class UnknownEnvironmentError(EnvironmentFailureError):
    """No environment is registered under the requested name."""


class EnvironmentPluginError(EnvironmentFailureError):
    """The environment of an installed package is missing, cannot be loaded, or is none."""


class EnvironmentSetupError(EnvironmentFailureError):
    """What the operator wrote does not fit the environment."""


class ProductFileError(EnvironmentSetupError):
    """A file of products is not of the form; the text names the file, the entry and the field."""

    def __init__(self, path: Path, what: str, *, entry: str = "", field: str = "") -> None:
        place = f": entry {entry[:80]!r}" if entry else ""
        super().__init__(f"{path}{place}{f': {field}' if field else ''}: {what}")
        self.path = path
        self.entry = entry
        self.field = field


class TaskIdError(EnvironmentFailureError):
    """The task id does not belong to any split of the environment."""


class ShardError(EnvironmentFailureError):
    """The environment's tasks cannot be dealt out over that many shards."""


class EpisodeStateError(EnvironmentFailureError):
    """The call does not fit the state of the episode."""


class OutcomeError(EnvironmentFailureError):
    """What a step returned is not of the form: a reward that is no finite number, for example."""


class PrefixError(EnvironmentFailureError):
    """The actions to replay before the agent's first turn leave it nothing to play."""


class VariantError(EnvironmentFailureError):
    """The environment takes no task that somebody wrote."""


class ScaffoldError(EnvironmentFailureError):
    """The environment has no place for text that is no part of the task."""


class ForeignEnvironmentError(EnvironmentFailureError):
    """Base of what an environment that is not Chorale's own can do wrong."""


class ForeignUnreachableError(ForeignEnvironmentError):
    """The server cannot be reached, hung up, or failed so often that it is left alone a while."""


class ForeignTimeoutError(ForeignEnvironmentError):
    """The server did not answer in time."""


class ForeignRefusalError(ForeignEnvironmentError):
    """The server answered with an error."""


class ForeignReplyError(ForeignEnvironmentError):
    """The answer is too large, malformed, or has a value of the wrong type."""


class HarnessError(ForeignEnvironmentError):
    """Base of what a harness can do wrong that plays its task through the gateway."""


class HarnessStartError(HarnessError):
    """The command is not there, or the system does not start it."""


class HarnessTimeoutError(HarnessError):
    """It took longer than it may; the model's time is not counted."""


class HarnessExitError(HarnessError):
    """It died, or left with another status than 0."""


class HarnessOutputError(HarnessError):
    """It wrote more to its standard output than it may."""


class HarnessReportError(HarnessError):
    """Its report is missing, malformed, out of range, contradicts itself, or is a second one."""


class HarnessModelError(HarnessError):
    """It asked for a model that is not its session's own."""


class HarnessHistoryError(HarnessError):
    """It edited its history more often than it may."""


class HarnessLimitError(HarnessError):
    """It used its answers, its tokens or the model's context up, or had nothing to say."""


class RequestRefusedError(EvolutionError):
    """A request to the gateway that is not answered; the harness is told why."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class ConversationError(EvolutionError):
    """Base of everything that can go wrong between an episode and its tokens."""


class ChatTemplateError(ConversationError):
    """The tokenizer has no chat template that episodes can be appended to."""


class RolloutError(EvolutionError):
    """Base of everything a rollout engine can fail with."""


class AdapterLoadError(RolloutError):
    """The tensors do not fit the base model, or the server does not take them."""


class RolloutWorkerError(RolloutError):
    """A worker died, does not answer, or failed."""

    log_text: ClassVar[str] = "a rollout worker died, does not answer, or failed"
    """For a log: what a worker raised may quote what it worked on."""


class TryTimeError(RolloutError):
    """A try's environment took longer than one try may; it is the try's failure alone."""


class EngineMemoryError(RolloutError):
    """There is not enough memory to answer one conversation alone; the text says what to do."""


class PartlyAnsweredError(RolloutError):
    """Some prompts were answered; why the others were not is the cause."""

    def __init__(self, answers: Sequence[object]) -> None:
        missing = sum(answer is None for answer in answers)
        super().__init__(f"{missing} of {len(answers)} prompts have no answer")
        self.answers = tuple(answers)
        """In the order of the prompts; None where there is none."""


class EngineSetupError(RolloutError):
    """The operator's settings and the server do not fit each other."""


class EngineServerError(RolloutError):
    """The server did not do what it was asked for."""


class EngineUnreachableError(EngineServerError):
    """There is no connection, the server hung up, or it says that it is not healthy."""


class EngineTimeoutError(EngineServerError):
    """The whole answer did not come in time."""


class EngineRefusalError(EngineServerError):
    """The server answered with another status than 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the model server answered with status {status}: {reason!r}")
        self.status = status


class EngineReplyError(EngineServerError):
    """The answer cannot be what was asked for."""


class MemoryStoreError(EvolutionError):
    """Base of everything a memory can fail with."""


class MemoryCorruptError(MemoryStoreError):
    """The file is damaged or was not written by this version of the project."""


class MemoryContentError(MemoryStoreError):
    """The trajectory, or the text, may not be stored."""


class VerdictError(EvolutionError):
    """What should be rows of a guard is damaged or not ours."""


class BaseModelError(EvolutionError):
    """The directory is not a base model this project accepts."""


class AdapterMismatchError(EvolutionError, ValueError):
    """The tensors do not belong to this model."""


class LocalTimeError(EvolutionError):
    """Local work took longer than the site, or in a record-level mode the plan, allows."""
