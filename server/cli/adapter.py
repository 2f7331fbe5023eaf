"""``chorale adapter``: the provenance chain of a run, the way back, adapters for use elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from server.cli.envelope import (
    DEFAULT_DATA,
    CommandError,
    Data,
    Exit,
    Format,
    Output,
    answering,
    say,
    succeed,
)

if TYPE_CHECKING:
    from federation.plan import Plan
    from federation.record import AdapterRecord

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
        from server.cli.client import connect, plain

        with connect(data) as stub:
            records = _records(stub, run_id)
        stepped = any(record.step for record in records)
        for record in records:
            step = f"step {record.step:>3}  " if stepped else ""
            source = ", ".join(record.survivors)
            if record.HasField("restored_round"):
                source = f"back to round {record.restored_round}"
            say(
                f"round {record.round:>3}  {step}{record.kind:<10} "
                f"{record.adapter_sha256.hex()[:16]}  {source}"
            )
        succeed(output, {"records": [plain(record) for record in records]})


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
            say(f"{run_id} went back to the adapter of round {to_round} in round {answer.round}")
        else:
            when = "when it is resumed" if answer.state == "paused" else "when this round is over"
            say(f"{run_id} goes back to the adapter of round {to_round} {when}")
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
            help="Which round's; the newest if not given. best: with the highest success.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Which step's of it; the last if not given.", min=0)
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write an adapter as a PEFT directory, with a model card that says where it comes from.

    --round best is the adapter with which the silos explored the round of the highest success, in
    the mean over the environments: a round's figures are about the adapter that it began with.

    Load it with peft.PeftModel.from_pretrained(base, DIRECTORY), or serve it with vllm serve BASE
    --enable-lora --lora-modules NAME=DIRECTORY. The chain is verified first: every record's
    signature and link, and the adapter's digest.
    """
    with answering(output):
        from federation.adapter import decode_adapter
        from federation.aggregate.registry import INCOMPLETE_ADAPTERS
        from federation.export import ExportError, require_export_directory, write_peft_adapter
        from federation.model_card import render_card
        from server.cli.card import model_card
        from server.cli.client import connect

        number, success = _round(which), None
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
            plan, chain = _verified(data, run_id, _records(stub, run_id))
            if which == BEST:
                explored, success = _best_round(data, run_id)
                number = explored - 1
            record = _chosen(run_id, chain, number, step)
            content = _fetch(stub, record.adapter_sha256)
        written = write_peft_adapter(
            decode_adapter(content, max_bytes=MAX_ADAPTER_BYTES),
            out,
            base=plan.model.base,
            rank=plan.model.lora_rank,
            alpha=plan.model.lora_alpha,
            provenance={
                "run": run_id,
                "round": str(record.round),
                "step": str(record.step),
                "kind": record.kind,
                "adapter_sha256": record.adapter_sha256.hex(),
                "record_sha256": record.sha256.hex(),
                "record_signature": record.signature.hex(),
                "plan_sha256": record.plan_sha256.hex(),
                "base_model_sha256": record.base_model_sha256.hex(),
                "survivors": ", ".join(record.survivors),
            },
            card=render_card(model_card(data, plan, chain, record)),
        )
        if success is not None:
            say(
                f"round {record.round}: with this adapter {success:.1%} of the episodes of round "
                f"{record.round + 1} succeeded, more than in any other"
            )
        say(f"wrote {written}: peft.PeftModel.from_pretrained(base, {str(written)!r})")
        adapter_note = INCOMPLETE_ADAPTERS.get(plan.aggregation.method)
        if adapter_note is not None:
            say(f"note: {adapter_note}")
        succeed(
            output,
            {
                "directory": str(written),
                "round": record.round,
                "step": record.step,
                "adapter_sha256": record.adapter_sha256.hex(),
                "adapter_note": adapter_note,
                "success_ratio": success,
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


def _best_round(data: Path, run_id: str) -> tuple[int, float]:
    """The round that was explored with the highest success, and the ratio; of two the newer one."""
    from server.config import CoordinatorConfig
    from server.figures import RoundFigures
    from server.store import Store

    store = Store(CoordinatorConfig.load(data).database)
    try:
        rows = store.rounds.finished(run_id)
    finally:
        store.close()
    best: tuple[float, int] | None = None
    for row in rows:
        ratios = [
            ratio
            for ratio, _ in RoundFigures.from_json(row.figures_json).success.values()
            if not math.isnan(ratio)
        ]
        if ratios:
            found = sum(ratios) / len(ratios), row.round
            best = found if best is None else max(best, found)
    if best is None:
        raise CommandError(
            f"no round of {run_id} has success figures yet, so none is the best",
            code="no_figures",
            exit_code=Exit.ARGUMENTS,
            next_step="leave --round out for the newest adapter, or name a round",
        )
    return best[1], best[0]


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


def _records(stub: Any, run_id: str) -> list[Any]:
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
    from federation.plan import Plan
    from federation.record import verify_chain
    from federation.wire import record_from_proto
    from server.config import CoordinatorConfig
    from server.store import Store

    store = Store(CoordinatorConfig.load(data).database)
    try:
        signed = store.rosters.current()
        plan = Plan.parse(store.runs.get(run_id).plan)
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
