"""``chorale run plan``: what a plan costs and protects, and what it would in the other modes.

Nothing is sent anywhere. Everything is computed from the plan, the number of silos and colluders,
and the number of coordinates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dp.config import ADJACENCY
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.adapter.shapes import ModelShape
    from federation.forecast.alternatives import Alternative
    from federation.forecast.forecast import Forecast
    from federation.plan.plan import Plan
    from secagg.roster import Roster
    from server.cli.preflight import Asked
    from server.members.silence import Member

__all__ = [
    "BaseConfig",
    "Federation",
    "parse_plan",
    "plan",
    "read_plan_file",
    "require_federation",
]

MAX_ADAPTER_BYTES: Final = 1 << 30
BaseConfig = Annotated[
    Path | None,
    typer.Option(
        "--base-config",
        help="The base model's config.json or its directory, where the plan's base is neither.",
    ),
]
Federation = Annotated[
    str,
    typer.Option(
        "--federation", "-f", help="Must be this coordinator's; the only one if not given."
    ),
]
_ROW: Final = "{:<18} {:<5} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}"


def plan(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    silos: Annotated[
        int | None, typer.Option(help="Silos, n; the current roster's if not given.", min=1)
    ] = None,
    colluding: Annotated[
        int | None, typer.Option(help="Colluding, c; the current roster's if not given.", min=1)
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="The initial adapter; its size decides the figures.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Uploaded coordinates, when there is no adapter yet.", min=1)
    ] = None,
    base_config: BaseConfig = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Also ask the roster's silos whether their policies accept the plan."
        ),
    ] = False,
    submit_token: Annotated[
        str,
        typer.Option(
            help="With --live: a name of this asking; the same one brings the same words."
        ),
    ] = "",
    federation: Federation = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Say what a plan costs and protects, before anything starts.

    Noise, privacy per round and in total, what is left of the signal, bytes, tolerated drop-outs,
    every reason not to start, the same plan in the other privacy modes, the memory that a base
    model of known shape takes of a GPU, and whether the published adapter is the whole result.
    Nothing is sent anywhere; with --silos and --colluding no coordinator is needed either, unless
    --federation asks whether its terms allow the plan. Without --silos it is also asked whether the
    roster's silos can fill a round.

    A warning is about what can start and was hardly meant: steps divided by more tasks than are
    sampled, another base model than the one that lies here, environments that no silo of the roster
    had when it was last ready.

    --live asks the silos that are there, through the running coordinator: each says accept, that
    its operator has to approve, or by which rule it refuses. It binds nobody, and each silo answers
    as many new questions a day as its policy says (max_preflights_per_day). Exit code 4 unless as
    many accept as a round opens with.
    """
    with answering(output):
        from federation.aggregate.registry import INCOMPLETE_ADAPTERS
        from federation.forecast.alternatives import alternatives
        from federation.forecast.forecast import forecast_plan
        from server.cli.base_model import base_shape, describe_memory, memory_figures

        plan_toml, parsed = read_plan_file(path)
        terms = _beyond_terms(data, federation, parsed) if federation else ()
        known = base_shape(parsed.model.base, base_config)
        shape = None if known is None else known[0]
        _require_target(parsed, shape, path)
        shared, whole = _dimensions(parsed, adapter, dimension, shape)
        short, silent, declared = "", "", None
        if silos and colluding:
            n, c = silos, colluding
        else:
            roster, members, declared = _roster(data)
            n, c = silos or len(roster.entries), colluding or roster.colluding
            if not silos:
                short, silent = _absent(parsed, members)
        forecast = forecast_plan(
            parsed, silos=n, colluding=c, dimension=shared, adapter_dimension=whole
        )
        others = alternatives(parsed, silos=n, colluding=c, dimension=shared)
        _describe(output, parsed, forecast)
        _compare(output, parsed, others)
        describe_memory(output, parsed, shape)
        adapter_note = INCOMPLETE_ADAPTERS.get(parsed.aggregation.method)
        if adapter_note is not None:
            show_result(output, f"note: {adapter_note}")
        warnings = _warnings(parsed, base_config, declared)
        say(*(f"warning: {warning}" for warning in warnings))
        if silent:
            # Plans are made before the silos run; a start is refused for it.
            say(f"note: {silent}")
        refusals = (*terms, *forecast.refusals, *([short] if short else ()))
        for refusal in refusals:
            show_result(output, f"refused: {refusal}")
        if refusals:
            raise CommandError(
                "this plan cannot start: " + "; ".join(refusals),
                code="plan_refused",
                exit_code=Exit.ARGUMENTS,
                next_step=f"change {path} or the roster, and ask again",
                data={"warnings": warnings} if warnings else None,
            )
        asked = None
        if live:
            asked = _ask(data, plan_toml, submit_token, federation)
            asked.show(output)
            asked.require_quorum(path)
        say(f"next: chorale run start {path}")
        succeed(
            output,
            {
                **_plain(asdict(forecast)),
                "alternatives": [_plain(asdict(other)) for other in others],
                "memory": memory_figures(parsed, shape),
                "adapter_note": adapter_note,
                "warnings": warnings,
                **({} if asked is None else {"live": asked.figures()}),
            },
        )


def _warnings(
    parsed: Plan, base_config: Path | None, declared: Mapping[str, tuple[str, ...]] | None
) -> list[str]:
    """What the plan was hardly meant to say."""
    from federation.forecast.doubts import doubts
    from server.cli.base_model import base_digest

    found = base_digest(parsed.model.base, base_config) if parsed.needs_tasks else None
    sha256, place = found or (None, "")
    return list(doubts(parsed, declared=declared, base_sha256=sha256, base_place=str(place)))


def _require_target(parsed: Plan, shape: ModelShape | None, path: Path) -> None:
    """Refuse a target of layers that the base model, where its shape is known, does not have."""
    from federation.errors import TargetError

    if shape is None:
        return
    try:
        shape.adapted(parsed.model.target)
    except TargetError as error:
        raise CommandError(
            f"this plan cannot start: {error}",
            code="plan_refused",
            exit_code=Exit.ARGUMENTS,
            next_step=f"change [model] target in {path}, and ask again",
        ) from error


def _ask(data: Path, plan_toml: bytes, submit_token: str, federation: str) -> Asked:
    """What the silos say to the plan, through the coordinator."""
    from server.cli.client import connect
    from server.cli.preflight import ask_silos

    with connect(data) as stub:
        return ask_silos(
            stub, plan_toml=plan_toml, submit_token=submit_token, federation=federation
        )


def parse_plan(path: Path) -> Plan:
    """Read a plan's file.

    Raises:
        PlanError: With everything that is wrong with it.
    """
    return read_plan_file(path)[1]


def read_plan_file(path: Path) -> tuple[bytes, Plan]:
    """Read a plan's file once: what is checked is what is sent.

    Raises:
        PlanError: With everything that is wrong with it.
    """
    from federation.plan.read import MAX_PLAN_BYTES, read_plan

    with path.open("rb") as file:
        content = file.read(MAX_PLAN_BYTES + 1)
    return content, read_plan(content)


def require_federation(stub: Any, asked: str) -> None:
    """Refuse to go on with another federation's coordinator.

    Raises:
        CommandError: It is not.
        grpc.RpcError: It has none yet.
    """
    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S

    found = stub.GetFederation(admin_pb2.GetFederationRequest(), timeout=CALL_TIMEOUT_S).name
    if found != asked:
        raise CommandError(
            f"this coordinator's federation is {found!r}, not {asked!r}",
            code="federation_unknown",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale federation show; --data names another coordinator's directory",
        )


def _beyond_terms(data: Path, federation: str, parsed: Plan) -> tuple[str, ...]:
    """Why the terms of the federation refuse a plan; empty if they do not."""
    from server.config import CoordinatorConfig
    from server.errors import FederationTermsError
    from server.members.terms import require_federation as require_known
    from server.members.terms import require_plan_within
    from server.store import Store
    from server.store.served import database_in_force

    store = Store(database_in_force(CoordinatorConfig.load(data)))
    try:
        terms = require_known(store, federation)
    finally:
        store.close()
    try:
        require_plan_within(terms, parsed)
    except FederationTermsError as error:
        return (str(error),)
    return ()


def _dimensions(
    parsed: Plan, adapter: Path | None, dimension: int | None, shape: ModelShape | None
) -> tuple[int, int]:
    if dimension is not None and adapter is None:
        return dimension, dimension
    from federation.adapter.encoding import decode_adapter
    from federation.adapter.layout import Layout
    from federation.forecast.forecast import shared_dimension

    if adapter is not None:
        layout = Layout.from_tensors(
            decode_adapter(adapter.read_bytes(), max_bytes=MAX_ADAPTER_BYTES)
        )
        return shared_dimension(parsed, layout), layout.dimension
    if shape is not None:
        layout = shape.lora_layout(
            parsed.model.lora_rank,
            parsed.model.target,
            value_head=parsed.recipe.shares_value_head,
        )
        return shared_dimension(parsed, layout), layout.dimension
    raise CommandError(
        "how big is the upload?",
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step=(
            "give --base-config FILE_OR_DIR, --adapter FILE, or --dimension with the number of "
            "uploaded coordinates"
        ),
    )


def _roster(data: Path) -> tuple[Roster, tuple[Member, ...], Mapping[str, tuple[str, ...]]]:
    """The roster in force, how its silos stand, and what those that may take part declared."""
    from server.config import CoordinatorConfig
    from server.members.presence import may_take_part, members_of
    from server.store import Store
    from server.store.served import database_in_force

    store = Store(database_in_force(CoordinatorConfig.load(data)))
    try:
        signed, silos = store.rosters.current(), store.silos.list()
    finally:
        store.close()
    if signed is None:
        raise CommandError(
            "no roster is published yet",
            code="not_published",
            exit_code=Exit.ARGUMENTS,
            next_step="give --silos and --colluding, or publish a roster first",
        )
    families = {silo.silo_id: silo.families for silo in silos}
    declared = {name: families.get(name, ()) for name in may_take_part(signed, silos)}
    return signed.roster, members_of(signed, silos), declared


def _absent(parsed: Plan, members: tuple[Member, ...]) -> tuple[str, str]:
    """Why the roster's silos cannot fill a round, and why they would not now; empty if they do."""
    from server.members.silence import shortage, silence

    quorum = parsed.rounds.ready_quorum(parsed.secure_aggregation.n_min)
    short = shortage(members, quorum)
    return short, "" if short else silence(members, quorum, time.time())


def _describe(output: Format, parsed: Plan, forecast: Forecast) -> None:
    show_result(
        output,
        f"{parsed.name}: mode {forecast.mode}, {parsed.rounds.count} rounds, "
        f"{parsed.releases} aggregations, {forecast.silos} silos",
    )
    show_result(
        output,
        f"secure aggregation: {forecast.threshold} must answer, {max(forecast.drops, 0)} may drop, "
        f"{forecast.colluding} may collude",
    )
    if parsed.selection.policy != "all":
        show_result(
            output,
            f"selection: a round asks {forecast.asked} of {forecast.silos} silos "
            f"({parsed.selection.policy}); what follows is about those, and no amplification is "
            "claimed",
        )
    _describe_groups(output, forecast)
    show_result(
        output,
        f"noise multiplier z = {forecast.noise_multiplier:g}; each silo adds "
        f"σ = {forecast.silo_sigma:.4g} grid units to an upload",
    )
    for unit, total in forecast.epsilon_total.items():
        show_result(
            output,
            f"{unit}-level ε: {forecast.epsilon_round[unit]} a round, {total} for "
            f"{forecast.charged_releases} charged attempts at δ = {parsed.privacy.delta:g} "
            f"({ADJACENCY})",
        )
    takes = f"silos: {_count(forecast.silos_for_min_cosine)}"
    if parsed.privacy.record is not None:
        takes += f", or expected units: {_count(forecast.units_for_min_cosine)}"
    show_result(
        output,
        f"expected cosine of the noisy mean: at most {forecast.predicted_cosine:.3g} a step; the "
        f"plan's floor of {parsed.privacy.min_cosine:g} takes {takes}",
    )
    show_result(
        output, f"bytes a silo and round: {forecast.bytes_up:,} up, {forecast.bytes_down:,} down"
    )
    show_result(
        output,
        f"ring headroom: {forecast.ring_headroom_bits:.1f} bits, with at most "
        f"{forecast.max_units} clipped vectors in a silo's sum",
    )


def _describe_groups(output: Format, forecast: Forecast) -> None:
    mine, most = forecast.groups, forecast.most_groups
    if mine is not None:
        sizes = f"{mine.least}" if mine.least == mine.most else f"{mine.least} or {mine.most}"
        show_result(
            output,
            f"groups: {mine.count} of {sizes} silos, {mine.rule} of their means, {mine.byzantine} "
            f"may be ruined; {mine.divisor} silos share a group's noise, and the combined mean has "
            f"{mine.noise:.3g} times the noise of one sum of all",
        )
    if most is None and mine is not None:
        show_result(output, f"groups: {forecast.asked} silos allow none of this plan")
    if most is not None and (mine is None or mine.count != most.count):
        show_result(
            output,
            f"groups: {forecast.asked} silos allow up to {most.count}, of {most.least} at least, "
            f"with {most.noise:.3g} times the noise of one sum of all",
        )


def _compare(output: Format, parsed: Plan, others: tuple[Alternative, ...]) -> None:
    privacy = parsed.privacy
    sampled = next((row for row in others if row.expected_units is not None), None)
    show_result(
        output,
        f"the same plan in the other modes, each with the least noise for ε = "
        f"{privacy.epsilon_cap:g} at δ = {privacy.delta:g} ({ADJACENCY}); silos or batch: "
        f"what a cosine of {privacy.min_cosine:g} would take",
    )
    if sampled is not None:
        show_result(
            output,
            f"at record level: q = {sampled.sampling_rate:.4g}, B̄ = {sampled.expected_units}, "
            f"{sampled.steps_per_round} steps a round",
        )
    show_result(
        output,
        _ROW.format("mode", "unit", "z", "ε round", "ε total", "cosine", "silos", "batch").rstrip(),
    )
    for row in others:
        if row.reason:
            show_result(output, f"{row.mode:<18} -     {row.reason}")
            continue
        bare = row.unit is None
        show_result(
            output,
            _ROW.format(
                row.mode,
                row.unit or "-",
                "-" if bare else f"{row.noise_multiplier:.4g}",
                "-" if bare else f"{row.epsilon_round:.4g}",
                "-" if bare else f"{row.epsilon_total:.4g}",
                f"{row.predicted_cosine:.3g}",
                _count(row.silos_for_min_cosine),
                "-" if row.expected_units is None else _count(row.units_for_min_cosine),
            ).rstrip(),
        )


def _count(value: int | None) -> str:
    return "none" if value is None else str(value)


def _plain(value: Any) -> Any:
    """A figure for JSON, which has no infinity and no NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
