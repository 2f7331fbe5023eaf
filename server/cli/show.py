"""``chorale run show``: a run's releases, whose contributions each sum holds, and what they open.

Covered: what the coordinator recorded. A sum that was quarantined, skipped or left out of its
release has no part in the chain, but the coordinator has seen it once R4 is closed, so its
survivors count for the rank as well. Not covered: sums of a release that is not over; signatures
and links, which ``chorale adapter export`` and ``chorale verify-transcript`` check; sums of other
runs over the same data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from federation.text import printable
from ops.cli.envelope import Format, Output, show_result, succeed
from server.cli.bisect import half_line
from server.cli.program import DEFAULT_DATA, NOT_POST_QUANTUM, Data, answering

if TYPE_CHECKING:
    from chorale.v1 import admin_pb2
    from chorale.v1.admin_pb2_grpc import AdminServiceStub
    from federation.chain.record import AdapterRecord, Place

__all__ = ["show"]

QUARANTINED: Final = "quarantined"

_Finished = Mapping[tuple[int, int], "admin_pb2.RoundStatus"]


def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Show a run's rounds: whom each asked where that is chosen, cohort, survivors of each sum.

    Beside them the suite, each outcome, and the cohorts' rank.

    The rank says how many independent sums all sums of the run open together: sums of different
    cohorts can be subtracted. 1 is one cohort throughout; as many as there are silos shows each
    silo's contribution, up to what contributions changed between the sums. Without noise nothing
    else hides it.
    """
    with answering(output):
        from federation.chain.cohorts import cohorts_of_sums
        from federation.wire import record_from_proto
        from server.cli.adapter import records_of
        from server.cli.client import connect

        with connect(data) as stub:
            records = [record_from_proto(message) for message in records_of(stub, run_id)]
            state, finished = _finished(stub, run_id)
            mode = _mode(stub, run_id)
        releases = [_release(record, finished) for record in records]
        found = cohorts_of_sums(_cohorts(releases))
        suite = records[0].suite
        show_result(output, f"{run_id}  {state}  mode {mode}  suite v{suite}")
        for release in releases:
            show_result(output, *_described(release, steps=any(r.step for r in records)))
        show_result(output, found.sentence())
        if not records[0].is_hybrid:
            show_result(output, NOT_POST_QUANTUM)
        succeed(
            output,
            {
                "run_id": run_id,
                "state": state,
                "mode": mode,
                "suite": suite,
                "releases": releases,
                "cohorts": {
                    "sums": found.sums,
                    "distinct": found.distinct,
                    "silos": list(found.silos),
                    "rank": found.rank,
                    "alone": list(found.alone),
                    "sentence": found.sentence(),
                },
            },
        )


def _finished(stub: AdminServiceStub, run_id: str) -> tuple[str, _Finished]:
    """The run's state, and what it tells of the releases that are over, by round and step."""
    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S

    told: dict[tuple[int, int], admin_pb2.RoundStatus] = {}
    state = ""
    # The stubs do not know that a stream can be hung up.
    statuses: Any = stub.WatchRun(admin_pb2.WatchRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)
    for status in statuses:
        state = status.run.state
        told |= {(done.round, done.step): done for done in status.finished}
        # Each release that is over has a record, and the stream tells them in order.
        if status.run.round == 0 or (status.run.round, status.run.step) in told:
            statuses.cancel()
            break
    return state, told


def _mode(stub: AdminServiceStub, run_id: str) -> str:
    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S

    runs = stub.GetBudget(admin_pb2.GetBudgetRequest(), timeout=CALL_TIMEOUT_S).runs
    return next((run.mode for run in runs if run.run_id == run_id), "unknown")


def _release(record: AdapterRecord, finished: _Finished) -> dict[str, Any]:
    from server.cli.client import plain

    place: Place = record.place
    told = finished.get(place)
    outcome = record.kind if told is None else told.outcome or record.kind
    parts: list[dict[str, Any]] = [
        {
            "part": part.part,
            "survivors": list(part.survivors),
            "descriptor_sha256": part.descriptor_sha256.hex(),
            "sum_sha256": part.sum_sha256.hex(),
        }
        for part in record.parts
    ]
    return {
        "round": record.round,
        "step": record.step,
        "kind": record.kind,
        "outcome": outcome,
        "attempt": 0 if told is None else told.attempt,
        "chosen": [] if told is None else list(told.chosen),
        "chosen_why": "" if told is None else told.chosen_why,
        "cohort": [] if told is None else list(told.cohort),
        "parts": parts,
        "quarantined_survivors": (
            list(told.survivors) if told is not None and outcome == QUARANTINED else []
        ),
        "halves": [] if told is None else [plain(half) for half in told.halves],
        "unused": _unused(record, told),
        "adapter_sha256": record.adapter_sha256.hex(),
        "restored_round": record.restored_round,
    }


def _cohorts(releases: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Survivors of every sum that the coordinator has seen."""
    for release in releases:
        yield from (part["survivors"] for part in release["parts"])
        if release["quarantined_survivors"]:
            yield release["quarantined_survivors"]
        yield from (half["survivors"] for half in release["halves"] if half["survivors"])
        yield from (each["survivors"] for each in release["unused"])


def _unused(record: AdapterRecord, told: admin_pb2.RoundStatus | None) -> list[dict[str, Any]]:
    """Sums of a release that the coordinator could open and that are not in its record.

    One that was quarantined whole, and a half of a bisected round, is told by itself.
    """
    if told is None:
        return []
    shown = {part.survivors for part in record.parts}
    shown |= {tuple(half.survivors) for half in told.halves}
    if told.outcome == QUARANTINED:
        shown.add(tuple(told.survivors))
    return [
        {"part": each.part, "attempt": each.attempt, "survivors": list(each.survivors)}
        for each in told.opened
        if tuple(each.survivors) not in shown
    ]


def _described(release: Mapping[str, Any], *, steps: bool) -> Iterator[str]:
    step = f"  step {release['step']:>3}" if steps else ""
    head = f"round {release['round']:>3}{step}  {release['outcome']:<11}"
    parts = release["parts"]
    if release["restored_round"] is not None:
        yield f"{head}  back to round {release['restored_round']}"
    elif release["quarantined_survivors"]:
        yield f"{head}  {_silos(release['quarantined_survivors'], release['cohort'])}; not applied"
    elif release["halves"]:
        yield f"{head}  in halves; nothing applied"
        yield from (half_line(half) for half in release["halves"])
    elif not parts:
        yield head.rstrip()
    elif len(parts) == 1:
        yield f"{head}  {_silos(parts[0]['survivors'], release['cohort'])}"
    else:
        yield f"{head}  {len(parts)} sums"
        for part in parts:
            yield f"  part {part['part']:>2}  {_silos(part['survivors'], ())}"
    if release["chosen"]:
        yield f"  asked {', '.join(release['chosen'])}: {printable(release['chosen_why'])}"
    for each in release["unused"]:
        yield f"  part {each['part']:>2}  {_silos(each['survivors'], ())}; opened, not applied"


def _silos(survivors: Sequence[str], cohort: Sequence[str]) -> str:
    lost = sorted(set(cohort) - set(survivors))
    return f"{len(survivors)} silos: {', '.join(survivors)}" + (
        f"; lost {', '.join(lost)}" if lost else ""
    )
