"""How the commands about an audit log answer, on either side: records, heads, a broken chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.cli.envelope import CommandError, Exit, Format, say, show_result, succeed

if TYPE_CHECKING:
    from federation.audit.head import AuditHead

__all__ = ["answer_copied", "answer_heads", "answer_records", "answer_verified"]


def answer_records(output: Format, records: Sequence[Mapping[str, Any]], *, note: str = "") -> None:
    """Print the newest records, and a note about those that are not among them."""
    for record in records:
        facts = "  ".join(f"{key}={value}" for key, value in record["details"].items())
        show_result(output, f"{record['index']:>5}  {record['at']}  {record['event']:<20} {facts}")
    if note:
        say(note)
    succeed(output, {"records": records})


def answer_verified(
    output: Format, verify: Callable[[], int], *, heads: int, keeper: str, code: str
) -> None:
    """Check a whole chain and say how long it is.

    ``verify`` gives the number of records, ``keeper`` is who kept so many heads of the chain, and
    ``code`` is that of a broken chain; one that ends in half a record is not broken.
    """
    records = _count(output, verify, code)
    if heads:
        show_result(output, f"{heads} heads that {keeper} kept are all in it")
    succeed(output, {"records": records, "heads": heads})


def answer_copied(output: Format, out: Path, verify: Callable[[], int], *, code: str) -> None:
    """Say that the log was copied to ``out``, broken or not, and check the copy.

    ``verify`` and ``code`` are as for :func:`answer_verified`.
    """
    show_result(output, f"wrote {out}")
    succeed(output, {"file": str(out), "records": _count(output, verify, code)})


def answer_heads(output: Format, out: Path, heads: Sequence[AuditHead], *, reader: str) -> None:
    """Say which heads were written to ``out``, and what command, run where, is to read them."""
    for head in heads:
        show_result(output, f"{head.writer:<40} record {head.index}  {head.sha256.hex()}")
    show_result(output, f"wrote {out}")
    say(f"next, {reader} --heads {out.name}")
    succeed(
        output,
        {
            "file": str(out),
            "heads": [
                {"writer": head.writer, "index": head.index, "sha256": head.sha256.hex()}
                for head in heads
            ],
        },
    )


def _count(output: Format, verify: Callable[[], int], code: str) -> int:
    with _broken(code):
        records = verify()
    show_result(output, f"{records} records, every one in place")
    return records


@contextmanager
def _broken(code: str) -> Iterator[None]:
    from federation.errors import AuditChainError, TornRecordError

    try:
        yield
    except TornRecordError as error:
        raise CommandError(
            str(error),
            code="audit_torn",
            exit_code=Exit.SERVER,
            hint="nobody changed it, and nothing that was acknowledged is missing",
            next_step="the daemon's next record goes over it, at the latest when it starts, and "
            "torn_write_cut says so in the log",
            data={"first_bad_record": error.index},
        ) from error
    except AuditChainError as error:
        raise CommandError(
            str(error),
            code=code,
            exit_code=Exit.SERVER,
            hint="keep the file as it is for your auditor; compare it with a backup",
            data={"first_bad_record": error.index},
        ) from error
