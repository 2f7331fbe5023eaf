"""The ledger's records as JSON objects, and back with every field verified.

    genesis    {format, id, opening: null, or what was spent before (``dp.ledger.opening``)}
    joined     {run, round, step, part, attempt, descriptor_sha256}
    trained    {run, round, mode, charges, adapter_sha256, spec_sha256, day}
    spent      {run, round, step, part, attempt, mode, charges, d, descriptor_sha256, day}
    signed_r3  {run, round, step, part, attempt}, and of a sum without noise {survivors: [id, …]},
               in ascending order (earlier releases neither write nor read that field)

    day        of the debit: whole days since 1970 in UTC, a function of the clock alone
    charges    [{unit, block, q, z, steps, delta, rdp: [R(α) for α in ORDERS]}, …]

``dp.ledger.journal`` adds ``seq`` and ``prev_sha256`` to each. The opening is part of the first
record, so that no crash leaves a ledger that has one without the other.

Format 2, of earlier releases, is read and appended to as it is. It differs from format 3 in this:
its genesis has no ``opening``, and its charges have no ``block``. Such a charge may hold vector
and metrics block in one joint z; it is read as a vector's, which costs the units inside at least as
much: 4/z² + 2/z_m² ≤ 4/z_joint². What is appended has blocks, which earlier releases refuse to
read.

Invariants of reading:
    1. A record has exactly the fields of its kind, each of its very type: no bool for an integer,
       no integer for a float, digests in lower-case hexadecimal.
    2. What could not have been charged cannot be read: the entry is made again and refuses.
    3. The divergences are those of the charge beside them, to 1e-12 relative. They are summed as
       they were written, so that what was spent does not change with a machine's logarithm.

Covered: form and arithmetic of one record. Not covered: order and budget (``dp.ledger.ledger``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dp.accounting.charge import Charge
from dp.accounting.rdp import ORDERS, Divergences
from dp.config import Mode
from dp.errors import LedgerCorruptError, LedgerFormatError
from dp.ledger.entry import DIGEST_BYTES, Identity, LedgerEntry, TrainingEntry
from dp.ledger.opening import Carried, carried_fields, cohort_of, read_carried

FORMAT: Final = 3
_FORMAT_WITHOUT_BLOCKS: Final = 2
ID_BYTES: Final = 16
_RELATIVE: Final = 1e-12
_CHAIN_KEYS: Final = frozenset({"seq", "prev_sha256", "kind"})
_IDENTITY_KEYS: Final = frozenset({"run", "round", "step", "part", "attempt"})
_JOINED_KEYS: Final = _IDENTITY_KEYS | {"descriptor_sha256"}
_SPENT_KEYS: Final = _JOINED_KEYS | {"mode", "charges", "d", "day"}
_TRAINED_KEYS: Final = frozenset(
    {"run", "round", "mode", "charges", "adapter_sha256", "spec_sha256", "day"}
)
_SIGNED_KEYS: Final = _IDENTITY_KEYS | {"survivors"}
_CHARGE_KEYS: Final = frozenset({"unit", "block", "q", "z", "steps", "delta", "rdp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Debit:
    """A charge with the divergences that were written for it."""

    charge: Charge
    """What was charged."""
    rdp: Divergences
    """What it added to the total."""


def debits_of(charges: tuple[Charge, ...]) -> tuple[Debit, ...]:
    """Charges with their divergences as they are now computed."""
    return tuple(Debit(charge=charge, rdp=charge.rdp) for charge in charges)


def genesis_record(ledger_id: bytes, opening: Carried | None) -> dict[str, Any]:
    """The first record."""
    return {
        "kind": "genesis",
        "format": FORMAT,
        "id": ledger_id.hex(),
        "opening": None if opening is None else carried_fields(opening),
    }


def joined_record(identity: Identity, descriptor_sha256: bytes) -> dict[str, Any]:
    """Keys are shown for an identity."""
    return {
        "kind": "joined",
        **Identity(*identity)._asdict(),
        "descriptor_sha256": descriptor_sha256.hex(),
    }


def spent_record(entry: LedgerEntry, debits: tuple[Debit, ...], *, day: int) -> dict[str, Any]:
    """An attempt that reaches upload."""
    return {
        "kind": "spent",
        **entry.identity._asdict(),
        "mode": entry.mode.value,
        "charges": [_charge_fields(debit) for debit in debits],
        "d": entry.dimension,
        "descriptor_sha256": entry.descriptor_sha256.hex(),
        "day": day,
    }


def trained_record(entry: TrainingEntry, debits: tuple[Debit, ...], *, day: int) -> dict[str, Any]:
    """A local training that begins."""
    return {
        "kind": "trained",
        "run": entry.run,
        "round": entry.round,
        "mode": entry.mode.value,
        "charges": [_charge_fields(debit) for debit in debits],
        "adapter_sha256": entry.adapter_sha256.hex(),
        "spec_sha256": entry.spec_sha256.hex(),
        "day": day,
    }


def signed_record(identity: Identity, cohort: tuple[str, ...] | None = None) -> dict[str, Any]:
    """R3 is signed for an identity; ``cohort`` is whose sum without noise it is."""
    named = {} if cohort is None else {"survivors": list(cohort)}
    return {"kind": "signed_r3", **Identity(*identity)._asdict(), **named}


def read_genesis(record: Mapping[str, Any]) -> Carried | None:
    """What was spent before the ledger began, from its first record.

    Raises:
        LedgerFormatError: If the ledger is of a format that cannot be read.
        LedgerCorruptError: If it is no genesis record.
        SpecError: If its opening is of another form.
    """
    version = _integer(record, "format") if "format" in record else None
    if version == _FORMAT_WITHOUT_BLOCKS:
        _require_keys(record, frozenset({"format", "id"}))
        _hexadecimal(record, "id", ID_BYTES)
        return None
    if version is not None and version != FORMAT:
        raise LedgerFormatError(
            f"this ledger is of format {version}, this release reads formats "
            f"{_FORMAT_WITHOUT_BLOCKS} and {FORMAT}: keep the file as the account of what was "
            "spent, lower the caps in the silo's policy by the epsilon that the release that wrote "
            "it shows, and start the silo again with a new data directory"
        )
    _require_keys(record, frozenset({"format", "id", "opening"}))
    _hexadecimal(record, "id", ID_BYTES)
    opening = record["opening"]
    return None if opening is None else read_carried(opening)


def read_joined(record: Mapping[str, Any]) -> tuple[Identity, bytes]:
    """Identity and descriptor digest of a ``joined`` record."""
    _require_keys(record, _JOINED_KEYS)
    return _identity(record), _hexadecimal(record, "descriptor_sha256", DIGEST_BYTES)


def read_spent(record: Mapping[str, Any]) -> tuple[LedgerEntry, tuple[Debit, ...]]:
    """Entry and debits of a ``spent`` record."""
    _require_keys(record, _SPENT_KEYS)
    debits = read_debits(record["charges"])
    entry = LedgerEntry(
        **_identity(record)._asdict(),
        mode=Mode(_text(record, "mode")),
        charges=tuple(debit.charge for debit in debits),
        dimension=_integer(record, "d"),
        descriptor_sha256=_hexadecimal(record, "descriptor_sha256", DIGEST_BYTES),
    )
    return entry, debits


def read_trained(record: Mapping[str, Any]) -> tuple[TrainingEntry, tuple[Debit, ...]]:
    """Entry and debits of a ``trained`` record."""
    _require_keys(record, _TRAINED_KEYS)
    debits = read_debits(record["charges"])
    entry = TrainingEntry(
        run=_text(record, "run"),
        round=_integer(record, "round"),
        mode=Mode(_text(record, "mode")),
        charges=tuple(debit.charge for debit in debits),
        adapter_sha256=_hexadecimal(record, "adapter_sha256", DIGEST_BYTES),
        spec_sha256=_hexadecimal(record, "spec_sha256", DIGEST_BYTES),
    )
    return entry, debits


def read_day(record: Mapping[str, Any]) -> int:
    """Day of a ``spent`` or a ``trained`` record."""
    return _integer(record, "day")


def read_signed(record: Mapping[str, Any]) -> tuple[Identity, tuple[str, ...] | None]:
    """Identity of a ``signed_r3`` record, and whose sum it is where that had no noise."""
    if "survivors" not in record:
        _require_keys(record, _IDENTITY_KEYS)
        return _identity(record), None
    _require_keys(record, _SIGNED_KEYS)
    return _identity(record), cohort_of(record["survivors"])


def read_debits(value: object) -> tuple[Debit, ...]:
    """The ``charges`` of a ``spent`` or a ``trained`` record.

    Raises:
        LedgerCorruptError: If a field is of another form, or the divergences are not the charge's.
        SpecError: If nothing can be charged like this.
    """
    if not isinstance(value, list):
        raise LedgerCorruptError("a ledger record holds no list of charges")
    return tuple(_debit(one) for one in value)


def _debit(value: object) -> Debit:
    if not isinstance(value, dict) or set(value) | {"block"} != _CHARGE_KEYS:
        raise LedgerCorruptError("a ledger record holds a charge of unknown form")
    charge = Charge(
        # Safety: Charge refuses a unit that is not one of its kinds.
        unit=_text(value, "unit"),  # type: ignore[arg-type]
        q=_real(value["q"]),
        z=_real(value["z"]),
        steps=_integer(value, "steps"),
        delta=_real(value["delta"]),
        # Safety: Charge refuses a block that is not one of its own.
        block=_text(value, "block") if "block" in value else "vector",  # type: ignore[arg-type]
    )
    figures = value["rdp"]
    if not isinstance(figures, list) or len(figures) != len(ORDERS):
        raise LedgerCorruptError("a ledger record holds no valid divergences")
    rdp = np.array([_real(figure) for figure in figures], dtype=np.float64)
    expected = charge.rdp
    # Infinities would agree with anything; no cap lets them be written.
    finite = np.isfinite(expected).all() and np.isfinite(rdp).all()
    if not (finite and (np.abs(rdp - expected) <= _RELATIVE * expected).all()):
        raise LedgerCorruptError("a ledger record's divergences are not those of its charge")
    return Debit(charge=charge, rdp=rdp)


def _charge_fields(debit: Debit) -> dict[str, Any]:
    charge = debit.charge
    return {
        "unit": charge.unit,
        "block": charge.block,
        "q": float(charge.q),
        "z": float(charge.z),
        "steps": charge.steps,
        "delta": float(charge.delta),
        "rdp": debit.rdp.tolist(),
    }


def _require_keys(record: Mapping[str, Any], keys: frozenset[str]) -> None:
    if set(record) - _CHAIN_KEYS != keys:
        raise LedgerCorruptError("a ledger record has not the fields of its kind")


def _identity(record: Mapping[str, Any]) -> Identity:
    numbers = (_integer(record, name) for name in ("round", "step", "part", "attempt"))
    identity = Identity(_text(record, "run"), *numbers)
    identity.require_valid()
    return identity


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if type(value) is not str:
        raise LedgerCorruptError(f"{name} of a ledger record is not a text")
    return value


def _integer(record: Mapping[str, Any], name: str) -> int:
    value = record[name]
    if type(value) is not int:
        raise LedgerCorruptError(f"{name} of a ledger record is not an integer")
    return value


def _real(value: object) -> float:
    if type(value) is not float:
        raise LedgerCorruptError("a figure of a ledger record is not a float")
    return value


def _hexadecimal(record: Mapping[str, Any], name: str, size: int) -> bytes:
    value = _text(record, name)
    digest = bytes.fromhex(value)
    if len(digest) != size or digest.hex() != value:
        raise LedgerCorruptError(f"{name} of a ledger record is not {size} bytes")
    return digest
