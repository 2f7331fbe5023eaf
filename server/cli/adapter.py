"""``chorale adapter``: the provenance chain of a run, the way back, adapters for use elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, NOT_POST_QUANTUM, Data, answering

if TYPE_CHECKING:
    from dp.noise.estimate import Estimate
    from federation.adapter.card import FamilySuccess, ModelCard
    from federation.chain.record import AdapterRecord
    from federation.plan.plan import Plan
    from server.store.rounds import RoundRow

__all__ = ["app"]

app = typer.Typer(help="What runs made.", no_args_is_help=True)

MAX_ADAPTER_BYTES: Final = 1 << 30
BEST: Final = "best"
MAX_ROUND: Final = 2**32 - 1
Run = Annotated[str, typer.Argument(metavar="RUN", help="Its id.")]


@app.command("list")
def list_adapters(run_id: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """The chain of a run's adapters: how each came to be, and from whom."""
    with answering(output):
        from federation.wire import record_from_proto
        from server.cli.client import connect, plain

        with connect(data) as stub:
            messages = records_of(stub, run_id)
        records = tuple(record_from_proto(message) for message in messages)
        stepped = any(record.step for record in records)
        for record in records:
            step = f"step {record.step:>3}  " if stepped else ""
            source = ", ".join(record.survivors)
            if record.restored_round is not None:
                source = f"back to round {record.restored_round}"
            show_result(
                output,
                f"round {record.round:>3}  {step}{record.kind:<10} "
                f"{record.adapter_sha256.hex()[:16]}  {source}",
            )
        if records and not records[0].is_hybrid:
            show_result(output, NOT_POST_QUANTUM)
        # A record of suite v2 says its survivors part by part; here they are of every record.
        told = [
            {**plain(message), "survivors": list(record.survivors)}
            for message, record in zip(messages, records, strict=True)
        ]
        succeed(output, {"records": told})


@app.command("rollback")
def rollback(
    *,
    run_id: Run,
    to_round: Annotated[
        int,
        typer.Option(
            help="The round whose adapter comes back; 0 is the one that the run started from.",
            min=0,
            max=MAX_ROUND,
        ),
    ],
    submit_token: Annotated[
        str, typer.Option(help="The same token asks once; for scripts that retry.")
    ] = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Take a run back to the adapter of an earlier round; it goes on from there.

    The rollback takes the place of the next round that has not begun, as a signed record of the
    run's chain: nothing is summed and nothing charged. To spare the round that is under way, pause
    the run first, and resume it after this. Every site must allow it (methods.allow_rollback in its
    policy): one that does not stays behind, and takes no further part in the run.
    """
    with answering(output):
        import secrets

        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        token = submit_token or secrets.token_hex(16)
        request = admin_pb2.RollbackAdapterRequest(
            run_id=run_id, to_round=to_round, submit_token=token
        )
        with connect(data) as stub:
            answer = stub.RollbackAdapter(request, timeout=CALL_TIMEOUT_S)
        if answer.round:
            show_result(
                output,
                f"{run_id} went back to the adapter of round {to_round} in round {answer.round}",
            )
        else:
            when = "when it is resumed" if answer.state == "paused" else "when this round is over"
            show_result(output, f"{run_id} goes back to the adapter of round {to_round} {when}")
            say("a site whose policy has not methods.allow_rollback = true stays behind")
            what = "resume" if answer.state == "paused" else "watch"
            say(f"next: chorale run {what} {run_id}")
        succeed(
            output,
            {
                "run_id": run_id,
                "to_round": to_round,
                "round": answer.round or None,
                "state": answer.state,
            },
        )


@app.command("export")
def export(
    *,
    run_id: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")],
    which: Annotated[
        str | None,
        typer.Option(
            "--round",
            help="Which round's; the newest if not given. best: the best beyond the noise.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Which step's of it; the last if not given.", min=0)
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write an adapter as a PEFT directory, with a model card that says where it comes from.

    --round best goes by success while exploring, in the mean over the environments; a round's
    figures are about the adapter that it began with. Of the rounds that noise does not tell from
    the highest it takes the newest. If noise tells none of them apart it takes the newest adapter
    and says so; if the sums tell no success it stops.

    Load it with peft.PeftModel.from_pretrained(base, DIRECTORY), or serve it with vllm serve BASE
    --enable-lora --lora-modules NAME=DIRECTORY. The chain is verified first: every record's
    signature and link, and the adapter's digest.
    """
    with answering(output):
        from federation.adapter.card import render_card
        from federation.adapter.encoding import decode_adapter
        from federation.adapter.export import (
            ExportError,
            require_export_directory,
            write_peft_adapter,
        )
        from federation.aggregate.registry import INCOMPLETE_ADAPTERS
        from federation.chain.card import provenance_of
        from server.cli.client import connect

        number, best = _round(which), None
        try:
            require_export_directory(out)
        except ExportError as error:
            raise CommandError(
                str(error),
                code="directory_in_use",
                exit_code=Exit.ARGUMENTS,
                next_step="give --out a new directory, an empty one, or one of an earlier export",
            ) from error
        with connect(data) as stub:
            plan, chain = _verified(data, run_id, records_of(stub, run_id))
            if which == BEST:
                best = _best_round(data, run_id)
                number = None if best is None else best.explored - 1
            record = _chosen(run_id, chain, number, step)
            content = _fetch(stub, record.adapter_sha256)
        try:
            written = write_peft_adapter(
                decode_adapter(content, max_bytes=MAX_ADAPTER_BYTES),
                out,
                base=plan.model.base,
                rank=plan.model.lora_rank,
                alpha=plan.model.lora_alpha,
                target=plan.model.target,
                provenance=provenance_of(record),
                card=render_card(_model_card(data, plan, chain, record)),
            )
        except ExportError as error:
            raise CommandError(
                f"the adapter of round {record.round} is none of this plan's: {error}",
                code="adapter_unfit",
                exit_code=Exit.SERVER,
                hint="the run was started with an adapter of another shape than its plan says; an "
                "adapter that fits is exported from a run that chorale run start accepts now",
            ) from error
        if which == BEST:
            _say_choice(best, record.round)
            if record.adapter_sha256 == chain[0].adapter_sha256:
                say("note: this is the adapter that the run started from: nothing is learned in it")
        show_result(
            output, f"wrote {written}: peft.PeftModel.from_pretrained(base, {str(written)!r})"
        )
        adapter_note = INCOMPLETE_ADAPTERS.get(plan.aggregation.method)
        if adapter_note is not None:
            say(f"note: {adapter_note}")
        if plan.recipe.shares_value_head:
            say(
                "note: the run's value head is in value_head.safetensors beside the adapter, which "
                "is whole without it"
            )
        succeed(
            output,
            {
                "directory": str(written),
                "round": record.round,
                "step": record.step,
                "adapter_sha256": record.adapter_sha256.hex(),
                "adapter_note": adapter_note,
                "success_ratio": None if best is None else best.success.mean,
                "standard_error": None if best is None else best.success.standard_error,
                "told_apart": best is not None if which == BEST else None,
            },
        )


def _round(which: str | None) -> int | None:
    """The number that was asked for; None for the newest, and for the best, which is looked up."""
    if which is None or which == BEST:
        return None
    if which.isascii() and which.isdecimal() and len(which) <= 9:
        return int(which)
    raise CommandError(
        f"--round is a number from 0 on or {BEST!r}, not {which[:32]!r}",
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step="chorale adapter list RUN shows the rounds",
    )


class _Best(NamedTuple):
    """A round that noise tells from others, as the best or as good as it."""

    explored: int
    """The round that explored, with the adapter of the one before it."""
    success: Estimate
    """Over the environments that were compared."""


def _best_round(data: Path, run_id: str) -> _Best | None:
    """The best round by ``newest_of_the_best``; None if noise tells none from the others.

    Rounds are compared in the environments of which each of them has a figure above its noise: the
    mean over other environments would be of other tasks.
    """
    from dp.noise.figures import mean_success, newest_of_the_best, readable_ratio
    from server.config import CoordinatorConfig
    from server.figures import RoundFigures
    from server.store import Store
    from server.store.served import database_in_force

    store = Store(database_in_force(CoordinatorConfig.load(data)))
    try:
        rows = store.rounds.finished(run_id)
    finally:
        store.close()
    told = {
        row.round: success
        for row in rows
        if (success := RoundFigures.from_json(row.figures_json).estimates)
    }
    if not told:
        raise CommandError(
            f"no sum of {run_id} has reported success figures yet, so no round is the best",
            code="no_figures",
            exit_code=Exit.ARGUMENTS,
            next_step="leave --round out for the newest adapter, or name a round",
        )
    known = {
        number: {
            family for family, ratio in success.items() if not math.isnan(readable_ratio(ratio))
        }
        for number, success in told.items()
    }
    rounds = sorted(number for number, families in known.items() if families)
    shared = set.intersection(*(known[number] for number in rounds)) if rounds else set()
    if not shared:
        return None
    means = [mean_success({family: told[number][family] for family in shared}) for number in rounds]
    place = newest_of_the_best(means)
    return None if place is None else _Best(rounds[place], means[place])


def _say_choice(best: _Best | None, chosen: int) -> None:
    """Say on what the choice of the best round rests."""
    from dp.noise.figures import success_words

    if best is None:
        say(
            "no round is told from the others beyond the noise of the figures: this is the newest "
            f"adapter, of round {chosen}"
        )
        return
    say(
        f"round {chosen}: with this adapter {success_words({'': best.success})} of the episodes of "
        f"round {best.explored} succeeded; no other is better beyond the noise"
    )


def _chosen(
    run_id: str, chain: tuple[AdapterRecord, ...], round_number: int | None, step: int | None
) -> AdapterRecord:
    """The record that was asked for: of the newest round and its last step unless named."""
    head = chain[-1]
    of_round = [
        r for r in chain if r.round == (head.round if round_number is None else round_number)
    ]
    found = [record for record in of_round if step in (None, record.step)]
    if found:
        return found[-1]
    has = (
        f"round {of_round[-1].round} of {run_id} has steps 0 to {of_round[-1].step}"
        if of_round
        else f"{run_id} has rounds 0 to {head.round}"
    )
    raise CommandError(has, code="arguments", exit_code=Exit.ARGUMENTS)


def _model_card(
    data: Path, plan: Plan, chain: tuple[AdapterRecord, ...], record: AdapterRecord
) -> ModelCard:
    """What the coordinator knows of one record of a verified chain, of the run and its sums."""
    from federation.chain.card import card_of
    from server.config import CoordinatorConfig
    from server.members.terms import require_federation
    from server.store import Store
    from server.store.served import database_in_force

    config = CoordinatorConfig.load(data)
    store = Store(database_in_force(config))
    try:
        charged = store.rounds.charged(record.run_id)
        finished = store.rounds.finished(record.run_id)
        federation = require_federation(store)
    finally:
        store.close()
    return card_of(
        record,
        plan,
        federation=federation.name,
        releases=charged.releases,
        first_steps=charged.first_steps,
        trainings=charged.rounds,
        head_sha256=chain[-1].sha256,
        success=_success_until(finished, record.round + 1),
    )


def _success_until(rows: tuple[RoundRow, ...], until: int) -> tuple[FamilySuccess, ...]:
    """The figures of rounds up to the one that explored with the exported adapter."""
    from federation.adapter.card import FamilySuccess
    from server.figures import RoundFigures

    return tuple(
        FamilySuccess(
            round=row.round, family=family, ratio=ratio.mean, standard_error=ratio.standard_error
        )
        for row in rows
        if row.round <= until and row.figures_json
        for family, ratio in RoundFigures.from_json(row.figures_json).estimates.items()
    )


def records_of(stub: Any, run_id: str) -> list[Any]:
    """The whole chain, page by page; the operator's own coordinator ends it."""
    from chorale.v1 import admin_pb2
    from federation.wire import RECORDS_PER_PAGE
    from server.cli.client import CALL_TIMEOUT_S

    records: list[Any] = []
    while True:
        request = admin_pb2.ListAdaptersRequest(run_id=run_id, from_position=len(records))
        page = stub.ListAdapters(request, timeout=CALL_TIMEOUT_S).records
        records += page
        if len(page) < RECORDS_PER_PAGE:
            return records


def _verified(
    data: Path, run_id: str, messages: list[Any]
) -> tuple[Plan, tuple[AdapterRecord, ...]]:
    """Check the chain against the roster's coordinator key; return it with the run's plan."""
    from federation.chain.record import verify_chain
    from federation.plan.read import read_plan
    from federation.wire import record_from_proto
    from server.config import CoordinatorConfig
    from server.store import Store
    from server.store.served import database_in_force

    store = Store(database_in_force(CoordinatorConfig.load(data)))
    try:
        signed = store.rosters.current()
        plan = read_plan(store.runs.get(run_id).plan)
    finally:
        store.close()
    if signed is None:
        raise CommandError(
            "no roster is published, so the records' signatures cannot be checked",
            code="not_published",
            exit_code=Exit.ARGUMENTS,
        )
    chain = tuple(record_from_proto(message) for message in messages)
    verify_chain(chain, signed.roster.coordinator_key, sums_per_round=plan.sums_per_round)
    return plan, chain


def _fetch(stub: Any, sha256: bytes) -> bytes:
    import hashlib

    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S

    request = admin_pb2.GetAdapterRequest(adapter_sha256=sha256)
    content = b"".join(
        part.content for part in stub.GetAdapter(request, timeout=10 * CALL_TIMEOUT_S)
    )
    if hashlib.sha256(content).digest() != sha256:
        raise CommandError(
            "the coordinator sent other bytes than the record names",
            code="adapter_altered",
            exit_code=Exit.SERVER,
        )
    return content
