"""What the matrix kills, where: every phase, for the coordinator and for a silo.

``instant`` is a name of ``tests/kit/processes/dying_coordinator.py`` or of ``dying_silo.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

COORDINATOR = "coordinator"
SILO = "silo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One instant of one role."""

    phase: str
    role: str
    instant: str
    what: str
    """What is durable, and what is not."""
    in_sum: bool | None = True
    """Whether the killed silo's vector has to be in the round's sum; None: how soon it is back
    decides, for nobody waits in training for a silo that was silent for 20 seconds."""
    renews: bool = False
    """Whether a silo asks for its next certificate in this round."""
    most_trainings: int = 1
    """How often the killed silo may be charged for the round's local training."""

    @property
    def name(self) -> str:
        return f"{self.role}.{self.phase}.{self.instant}"


def _coordinator(phase: str, instant: str, what: str, *, renews: bool = False) -> Cell:
    return Cell(phase=phase, role=COORDINATOR, instant=instant, what=what, renews=renews)


def _silo(
    phase: str,
    instant: str,
    what: str,
    *,
    in_sum: bool | None = True,
    renews: bool = False,
    most_trainings: int = 1,
) -> Cell:
    return Cell(
        phase=phase,
        role=SILO,
        instant=instant,
        what=what,
        in_sum=in_sum,
        renews=renews,
        most_trainings=most_trainings,
    )


CELLS = (
    _coordinator("training", "training:0", "the task is out"),
    _silo("training", "evolve", "the round's work begins", in_sum=None),
    _silo("training", "result_half", "half of the finished work written", in_sum=None),
    _silo("training", "result_kept", "finished work kept; ready not said", in_sum=None),
    _coordinator("training", "ready:2", "second ready heard, not acknowledged"),
    _silo("R0 advertise_keys", "advertise_keys", "joined; keys not sent", in_sum=False),
    _coordinator("R0 advertise_keys", "advertise_keys:2", "second bundle kept, not acknowledged"),
    _silo("R1 share_keys", "share_keys", "boxes not sent", in_sum=False),
    _coordinator("R1 share_keys", "share_keys:3", "third boxes kept, not acknowledged"),
    _silo("ledger", "debit_before", "before the debit is written", in_sum=False),
    _coordinator("ledger", "uncounted", "before the charged attempt is counted"),
    _silo("ledger", "debit_torn", "half of the debit's record written", in_sum=False),
    _coordinator("ledger", "masked_input:0", "after the charged attempt is counted"),
    _silo("ledger", "debit_after", "debit durable, nothing masked", in_sum=False),
    _coordinator("R2 masked_input", "masked_input:1", "first header kept, not acknowledged"),
    _silo("R2 masked_input", "upload", "vector spooled, nothing sent"),
    _coordinator("R2 masked_input", "half_upload", "half of a vector received"),
    _silo("R2 masked_input", "half_upload", "a first chunk sent"),
    _coordinator("R2 masked_input", "fold:2", "second sum written, not committed"),
    _silo("R3 consistency_check", "check_consistency", "agreement marked, signature not sent"),
    _coordinator("R3 consistency_check", "consistency_check:2", "second signature kept"),
    _silo("R4 unmask", "unmask", "shares not sent"),
    _coordinator("R4 unmask", "unmask:4", "last shares kept, sum masked"),
    _coordinator("R4 unmask", "opened", "masks removed, nothing published"),
    _silo("publish", "adapter_kept", "adapter kept, not adopted"),
    _coordinator("publish", "adapter_written", "adapter stored, record not kept"),
    _silo("publish", "adoption_audited", "adoption audited, head not moved"),
    _coordinator("publish", "record_appended", "record durable, nobody told"),
    _silo("renewal", "key_stored", "next key on disk, not used", in_sum=None, renews=True),
    _coordinator("renewal", "issued", "certificate issued, not answered", renews=True),
)
"""One round each, in this order, in one run."""

REAL_TRAINING = (
    _silo("training", "exploring", "episodes played, none kept", in_sum=None),
    _coordinator("training", "ready:2", "second ready heard, not acknowledged"),
    _silo("training", "step", "training charged, one step taken", in_sum=None, most_trainings=2),
    _silo("training", "result_half", "half of the delta written", in_sum=None, most_trainings=2),
    _silo("training", "result_kept", "delta kept; ready not said", in_sum=None),
    _coordinator("R2 masked_input", "fold:2", "second sum written, not committed"),
    _silo("R2 masked_input", "upload", "vector spooled, nothing sent"),
    _coordinator("publish", "adapter_written", "adapter stored, record not kept"),
)
"""The same in a run that explores and trains, at record level, on the small base model."""
