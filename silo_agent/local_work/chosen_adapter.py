"""The adapter that a silo chose, as an ordinary peft directory for the site's own model server.

A choice (``evolution/methods/personal/compared.py``) is of one shared adapter and of the silo's own
as it was then. Ordered invariants:

1. What is exported is what was compared: the choice is of the adopted adapter and of the silo's
   own, by the digests of both, whatever has been trained since.
2. Nothing of the silo's stores is changed, nothing is sent, and no budget is charged.
3. The directory is its owner's alone, and says in ``README.md`` that it is private data unless the
   shared adapter was chosen.

Covered: one family, or the one adapter for all; the shared adapter, the silo's own, what lies
between. Not covered: the base model, which needs no adapter; the site's guard, which has judged the
published adapter alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evolution.methods.options import RecipeOptions
from evolution.methods.personal.choice import tensors_of
from evolution.methods.personal.compared import TRAINED_APART, Candidate, Choices
from evolution.methods.personal.personal import PersonalAdapter, identity_of
from federation.adapter.encoding import decode_adapter
from federation.adapter.export import require_export_directory, write_peft_adapter
from federation.adapter.value_head import without_head
from ops.files import private_directory
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.books.kept_runs import run_directory
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import LocalStoreError, NothingChosenError
from silo_agent.local_work.plan_terms import evolver_setup

__all__ = ["Exported", "export_chosen"]

_MAX_ADAPTER_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written."""

    run: str
    """Its id."""
    round: int
    """The round that the shared adapter is of."""
    family: str | None
    """For which it was chosen; None is for all."""
    adapter: str
    """``shared``, ``own`` or ``interpolated``."""
    weight: float
    """Of the silo's own adapter in it."""
    rank: int
    """What the model server's highest rank has to reach."""
    adapter_sha256: str
    """Of what was written, in published form."""
    private: bool
    """Whether something of the silo's own is in it."""


def export_chosen(
    config: SiloConfig, *, run_id: str, family: str | None, out_dir: Path
) -> Exported:
    """Write the adapter that was chosen for a family, or for all together.

    Raises:
        NothingChosenError: No choice is of the adopted adapter, or it is the base model.
        LocalStoreError: The silo's files cannot be used.
        EvolveError: The silo's own adapter cannot be read, or is of other layers.
        ExportError: The directory is in use.
    """
    store = LocalStore(config.data_dir)
    head = store.chain_head(run_id)
    if head is None:
        raise NothingChosenError(f"this silo has not followed a run {run_id!r}")
    found = _newest(store, run_id, head)
    chosen = _chosen(found, family)
    if chosen.kind == "base":
        raise NothingChosenError(
            "the base model without an adapter was chosen: there is nothing to export"
        )
    heard = HeardRuns(config.data_dir)
    run = heard.get(run_id)
    content = store.adapter(head.adapter_sha256)
    if run is None or content is None:
        raise LocalStoreError(f"the plan or the adopted adapter of run {run_id} is not kept here")
    plan = heard.plan(run)
    shared = decode_adapter(content, max_bytes=_MAX_ADAPTER_BYTES)
    state_dir = run_directory(config.data_dir, run_id)
    options = RecipeOptions.of(evolver_setup(config, plan, state_dir=state_dir, privacy=plan.spec))
    own = shared
    if chosen.kind != "shared":
        if options.personal not in TRAINED_APART:
            raise NothingChosenError("silo.toml does not keep the adapter that was compared")
        personal = PersonalAdapter(options, state_dir=state_dir)
        own = personal.current(shared, through=head.round)
        if identity_of(own) != found.own_sha256:
            raise NothingChosenError(
                f"this silo's own adapter of round {head.round}, which was compared, is not here "
                "any more; the next judged round chooses again"
            )
    tensors = without_head(tensors_of(chosen, shared=shared, own=own))
    require_export_directory(out_dir)
    identity = identity_of(tensors)
    rank = max(t.shape[0] for name, t in tensors.items() if ".lora_A." in name)
    private = chosen.kind != "shared"
    write_peft_adapter(
        tensors,
        private_directory(out_dir),
        base=plan.model.base,
        rank=rank,
        alpha=plan.model.lora_alpha,
        target=plan.model.target,
        provenance={
            "adapter_sha256": identity,
            "shared_adapter_sha256": head.adapter_sha256.hex(),
            "run_id": run_id,
            "round": str(head.round),
            "chosen": chosen.kind,
            "weight_of_own": f"{chosen.weight:g}",
        },
        card=_card(chosen, family) if private else None,
    )
    return Exported(
        run=run_id,
        round=head.round,
        family=family,
        adapter=chosen.kind,
        weight=chosen.weight,
        rank=rank,
        adapter_sha256=identity,
        private=private,
    )


def _newest(store: LocalStore, run_id: str, head: ChainHead) -> Choices:
    """The newest choice of a run, if it is of the adopted adapter."""
    rows = [row for row in store.choices() if row.get("run") == run_id]
    if not rows:
        raise NothingChosenError(
            f"nothing was chosen in run {run_id}: set personal and personal_choice under [evolve] "
            "in silo.toml, and let the plan's next judged round pass"
        )
    try:
        of = int(rows[-1]["round"]), str(rows[-1]["adapter_sha256"])
        found = Choices.of(rows[-1])
    except (KeyError, TypeError, ValueError) as error:
        raise LocalStoreError(f"the choice of run {run_id} is damaged: {error!r}") from error
    if of != (head.round, head.adapter_sha256.hex()):
        raise NothingChosenError(
            f"the newest choice is of round {of[0]}, and this silo has adopted round {head.round}: "
            "what was compared is not here any more; the next judged round chooses again"
        )
    return found


def _chosen(found: Choices, family: str | None) -> Candidate:
    if family is None:
        return found.overall.chosen
    if family not in found.families:
        known = ", ".join(found.families) or "none"
        raise NothingChosenError(f"nothing was chosen for a family {family!r}; known: {known}")
    return found.families[family].chosen


def _card(chosen: Candidate, family: str | None) -> str:
    where = "all of this silo's tasks" if family is None else f"tasks of the family {family!r}"
    return (
        "# Private data\n\n"
        f"Chosen for {where}: {chosen.words}.\n\n"
        "This silo's own part was trained on its data without noise. No epsilon covers giving it "
        "away: whoever has this directory may learn of the data what an adapter gives away.\n"
    )
