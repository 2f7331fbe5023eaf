"""docs/protocol-encodings.md and the tables of docs/protocol.md say what the code does.

Each statement is made by the code and read back with a decoder of its own; its domain, the names,
order, types and lengths of its fields, and their values, must be those of the document's table.
"""

import ast
import hashlib
import importlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dp.config import Mode, PrivacySpec, RecordSpec
from federation.chain.groups import groups_of, halves_of
from federation.version import NEWEST_PROTOCOL, OLDEST_PROTOCOL
from secagg import canonical, digest_tree, hybrid, merkle, messages, suite, wire
from secagg.descriptor import SUITES
from secagg.errors import Check
from silo_agent.policy.descriptor import DESCRIPTOR_RULES
from tests.kit.federation import statements
from tests.kit.federation.statements import CTX, HD, STATEMENTS, Statement, digest_of
from tests.kit.paths import ROOT

ENCODINGS = ROOT / "docs" / "protocol-encodings.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
PACKAGES = ("secagg", "dp", "federation", "ops", "evolution", "server", "silo_agent")
DOMAIN = re.compile(r"chorale/(?:v[123]/[a-z0-9/-]+|initial-adapter/v1)")
NO_STATEMENT = {
    "chorale/v1/privacy-spec",
    "chorale/v1/gauge/",
    "chorale/initial-adapter/v1",
    "chorale/v1/work-seed",
}
"""Hashed in another form than the canonical one; looked at by tests of their own."""


# Reading the document -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    heading: str
    rows: tuple[dict[str, str], ...]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(name for name in re.findall(r"`([^`]+)`", self.heading) if DOMAIN.match(name))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables(text: str) -> Iterator[Section]:
    """Every table with the heading above it; one row is a dict by the table's first line."""
    heading, lines = "", text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line
        if line.startswith("|---") or (line.startswith("| ---") and number):
            names = cells(lines[number - 1])
            rows = []
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(names, cells(row), strict=True)))
            yield Section(heading, tuple(rows))


@cache
def sections(path: Path = ENCODINGS) -> tuple[Section, ...]:
    return tuple(tables(path.read_text()))


def table(*columns: str, path: Path = ENCODINGS) -> tuple[dict[str, str], ...]:
    """The rows of the one table with these columns."""
    (found,) = [one for one in sections(path) if one.rows and tuple(one.rows[0]) == columns]
    return found.rows


@cache
def shapes() -> dict[str, Section]:
    return {one.heading.split()[1]: one for one in sections() if one.heading.startswith("#### ")}


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def code(cell: str) -> str:
    return cell.strip("`")


# Reading what the code encodes --------------------------------------------------------------------


def decode(content: bytes) -> Any:
    value, rest = _decode(content)
    assert rest == b""
    return value


def _decode(content: bytes) -> tuple[Any, bytes]:
    tag, length = content[:1], int.from_bytes(content[1:9], "big")
    payload, rest = content[9 : 9 + length], content[9 + length :]
    assert len(payload) == length
    match tag:
        case b"t":
            items = []
            while payload:
                item, payload = _decode(payload)
                items.append(item)
            return tuple(items), rest
        case b"s":
            return payload.decode(), rest
        case b"y":
            return payload, rest
        case b"b":
            return {b"\x00": False, b"\x01": True}[payload], rest
        case b"i":
            number = int.from_bytes(payload, "big", signed=True)
            assert length == (abs(number).bit_length() + 8) // 8
            return number, rest
        case b"f":
            return struct.unpack(">d", payload)[0], rest
    raise AssertionError(tag)


def fields_of(section: Section, version: int) -> list[tuple[str, str]]:
    """(field, type) of a table in one version, with what is spread."""
    found = []
    for row in section.rows:
        if int(row.get("from") or 1) > version or int(row.get("in") or version) != version:
            continue
        if row["type"].startswith("fields of "):
            found += fields_of(shapes()[row["type"].removeprefix("fields of ")], version)
        else:
            found.append((row["field"], row["type"]))
    return found


def in_order(value: Any, kind: str, version: int, where: str) -> Any:
    """A value as it must be encoded, shapes as tuples; its type and length are the table's."""
    if kind in shapes():
        rows = fields_of(shapes()[kind], version)
        assert value.keys() == {name for name, _ in rows}, where
        return tuple(in_order(value[name], inner, version, where + name) for name, inner in rows)
    if kind.startswith("tuple of "):
        assert type(value) is tuple, where
        inner = kind.removeprefix("tuple of ")
        return tuple(in_order(item, inner, version, where) for item in value)
    if kind.startswith("bytes"):
        assert type(value) is bytes, where
        sizes = [int(size) for size in re.findall(r"\d+", kind)]
        assert not sizes or len(value) in sizes, where
    else:
        expected = {"str": str, "int": int, "float": float, "bool": bool}[kind]
        assert type(value) is expected, where
    return value


def fields_in_order(statement: Statement) -> tuple[Any, ...]:
    """The fields of a statement as its table orders them."""
    (section,) = [one for one in sections() if statement.domain in one.domains]
    rows = fields_of(section, statement.version)
    missing = {name for name, _ in rows} - statement.values.keys()
    assert {kind.split()[0] for name, kind in rows if name in missing} <= {"optional"}
    assert statement.values.keys() <= {name for name, _ in rows}
    return tuple(
        in_order(statement.values[name], kind.removeprefix("optional "), statement.version, name)
        for name, kind in rows
        if name in statement.values
    )


# The statements --------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.domain)
def test_a_statement_is_encoded_as_its_table_says(statement):
    values = fields_in_order(statement)
    if len(statement.made) == 32:
        assert statement.made == canonical.digest(statement.domain, *values)
    else:
        assert decode(statement.made) == (statement.domain, *values)


@cache
def source_domains() -> frozenset[str]:
    """Every domain that a string of the code names; docstrings do not count."""
    found: set[str] = set()
    for path in sorted(path for room in PACKAGES for path in (ROOT / room).rglob("*.py")):
        if "chorale/" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        prose = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in prose:
                continue
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and (match := DOMAIN.match(text)):
                found.add(match[0])
    return frozenset(found)


def test_the_documented_domains_are_those_of_the_code():
    documented = [domain for section in sections() for domain in section.domains]
    documented += [
        domain
        for line in ENCODINGS.read_text().splitlines()
        if line.startswith("### Seeds: ")
        for domain in re.findall(r"`([^`]+)`", line)
    ]
    assert len(documented) == len(set(documented))
    assert set(documented) == source_domains()


def test_every_statement_has_a_sample():
    assert {each.domain for each in STATEMENTS} | NO_STATEMENT == source_domains()


def test_the_privacy_part_is_hashed_as_its_table_says():
    def prefixed(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    kept = RecordSpec(sampling_rate=0.25, expected_units=8, steps_per_round=3, delta_clip_l2=2.0)
    spec = PrivacySpec(
        mode=Mode.RECORD_LOCAL,
        unit="task",
        clip_l2=1.5,
        noise_multiplier=1.0,
        delta=1e-5,
        epsilon_cap=8.0,
        metrics_noise_multiplier=4.0,
        record=kept,
    )
    record_value = struct.pack(">dQQ", 0.25, 8, 3) + prefixed(struct.pack(">d", 2.0))
    record_value += struct.pack(">d", 0.0)
    content = prefixed(b"chorale/v1/privacy-spec")
    for row in table("name", "value"):
        value = getattr(spec, row["name"])
        if row["name"] == "record":
            encoded = record_value
        elif row["value"] == "text":
            encoded = str(value).encode()
        else:
            encoded = struct.pack({"f64": ">d", "u64": ">Q"}[row["value"]], value)
        content += prefixed(row["name"].encode()) + prefixed(encoded)
    assert spec.sha256() == hashlib.sha256(content).digest()


# Keys, digests, limits ----------------------------------------------------------------------------

SECRET, KEM_SHARED, CIPHERTEXT = digest_of("secret"), digest_of("K"), b"ciphertext"
NAMES = {
    "sender": b"silo-b",
    "recipient": b"silo-a",
    "low": b"silo-a",
    "high": b"silo-b",
    "silo": b"silo-a",
    "H(mask_kem)": hashlib.sha256(CIPHERTEXT).digest(),
    "H(box_kem)": hashlib.sha256(CIPHERTEXT).digest(),
}


def derived_by_the_code(number: int, purpose: str) -> tuple[bytes, bytes]:
    """(secret, derived key) of one row, by the function that the protocol uses."""
    low, high = "silo-a", "silo-b"
    both = SECRET + KEM_SHARED
    if number == 1:
        names = {"box": (high, low), "mask": (low, high), "self": (low,)}[purpose]
        return SECRET, suite.derive_key(SECRET, purpose, CTX, *names)
    if purpose in {"dh-mask", "kem-mask", "dh-box", "kem-box"}:
        length = 64 if purpose.startswith("kem") else 32
        seed = hybrid.derive(SECRET, purpose, HD, low, length=length)
        make = hybrid.mask_keys if purpose.endswith("mask") else hybrid.box_keys
        keys = make(SECRET, HD, low)
        if length == 64:
            kem = hybrid.MLKEM768PrivateKey.from_seed_bytes(seed)
            assert keys.kem_public == kem.public_key().public_bytes_raw()
        else:
            assert keys.agreement_public == suite.agreement_public_key(seed)
        return SECRET, seed
    return {
        "pair": (SECRET, hybrid.pair_secret(SECRET, CTX, low, high)),
        "seal": (KEM_SHARED, hybrid.seal_key(KEM_SHARED, CTX, low, high, CIPHERTEXT)),
        "mask": (both, hybrid.pair_mask_key(SECRET, KEM_SHARED, CTX, low, high)),
        "box": (both, hybrid.box_key(SECRET, KEM_SHARED, CTX, (high, low), CIPHERTEXT)),
        "self": (SECRET, hybrid.self_mask_key(SECRET, CTX, low)),
    }[purpose]


def test_keys_are_derived_as_the_table_says():
    rows = table("suite", "purpose", "secret", "bound", "names", "bytes", "key")
    documented = {
        number: {code(row["purpose"]) for row in rows if int(row["suite"]) == number}
        for number in (suite.SUITE, hybrid.SUITE)
    }
    assert documented == {1: set(suite.PURPOSES), 2: set(hybrid.PURPOSES)}
    for row in rows:
        number, purpose = int(row["suite"]), code(row["purpose"])
        secret, found = derived_by_the_code(number, purpose)
        info = f"chorale/v{number}/{purpose}".encode() + {"ctx": CTX, "H(D)": HD}[row["bound"]]
        for name in row["names"].split(", "):
            info += len(NAMES[name]).to_bytes(2, "big") + NAMES[name]
        expected = HKDF(hashes.SHA256(), int(row["bytes"]), None, info).derive(secret)
        assert found == expected, row


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 5])
def test_an_upload_is_named_as_the_page_says(size):
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    chunks = [content[at : at + (1 << 20)] for at in range(0, size, 1 << 20)]
    leaves = b"".join(
        hashlib.sha256(b"\x00" + struct.pack(">QI", index, len(chunk)) + chunk).digest()
        for index, chunk in enumerate(chunks)
    )
    head = b"\x01" + struct.pack(">IBIQQ", 2, 1, 1 << 20, len(chunks), size)
    assert digest_tree.root_of(leaves, size, digest_tree.SHA256) == sha256(head + leaves)
    assert (
        b"".join(
            digest_tree.leaf(index, chunk, digest_tree.SHA256) for index, chunk in enumerate(chunks)
        )
        == leaves
    )


def test_a_rounds_groups_follow_from_the_digests():
    roster = bytes(32)
    silos = tuple(f"silo-{number}" for number in range(8))
    drawn = sorted(
        silos, key=lambda silo: canonical.digest("chorale/v2/groups", "run-1", 3, roster, silo)
    )
    found = groups_of(silos, 3, run_id="run-1", round_number=3, roster_sha256=roster)
    assert [set(group) for group in found] == [set(drawn[part::3]) for part in range(3)]


def test_a_rounds_halves_follow_from_the_digests():
    roster = bytes(32)
    silos = tuple(f"silo-{number}" for number in range(8))
    drawn = sorted(
        silos,
        key=lambda silo: (
            silo not in silos[:3],
            canonical.digest("chorale/v2/halves", "run-1", 3, roster, silo),
        ),
    )
    found = halves_of(silos, silos[:3], run_id="run-1", round_number=3, roster_sha256=roster)
    assert [set(half) for half in found] == [set(drawn[part::2]) for part in range(2)]


def test_r1_has_the_tree_of_the_page():
    a, b, c = (merkle.leaf_hash(content) for content in (b"a", b"b", b"c"))
    assert a == sha256(b"\x00a")
    assert merkle.root([a, b, c]) == sha256(b"\x01" + sha256(b"\x01" + a + b) + c)
    assert merkle.path([a, b, c], 0) == (b, c)


def test_limits_are_those_of_the_code():
    for row in table("constant", "value", "of"):
        module, name = code(row["constant"]).rsplit(".", 1)
        value = getattr(importlib.import_module(module), name)
        assert str(value) == row["value"], row


def test_versions_suites_and_digests_are_those_of_the_code():
    protocols = table("protocol", "aggregations", "suite", "what it has")
    assert [int(row["protocol"]) for row in protocols] == [
        *range(OLDEST_PROTOCOL, NEWEST_PROTOCOL + 1)
    ]
    pairs = table("version", "suite", "keys of a silo", "form of R1", "the upload is named by")
    assert {int(row["version"]): int(row["suite"]) for row in pairs} == SUITES
    digests = {int(row["digest id"]): code(row["h"]) for row in table("digest id", "h", "")}
    assert digests == digest_tree.DIGESTS


def test_whoever_checks_a_field_of_a_descriptor_is_there():
    rows = table("field", "type", "bounds", "who checks", "from")
    known = {check.value for check in Check} | {rule.name for rule in DESCRIPTOR_RULES}
    for row in rows:
        assert row["who checks"], row
        assert set(re.findall(r"`([a-z_]+)`", row["who checks"])) <= known, row


def test_every_check_has_a_row_that_says_what_fails_it():
    rows = table("check", "what fails it", "where", "test", path=PROTOCOL)
    named_checks = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row["check"])]
    assert len(named_checks) == len(set(named_checks))
    assert set(named_checks) == {check.value for check in Check}


# What R0 and R1 weigh -----------------------------------------------------------------------------

SILOS = tuple(f"silo-{number:03d}" for number in range(200))


def headers_of(recipient: int) -> messages.BoxDelivery:
    digest = statements.HEADER.boxes[0]
    return messages.BoxDelivery(
        headers=tuple(
            replace(
                statements.HEADER,
                sender=sender,
                boxes=tuple(replace(digest, recipient=peer) for peer in SILOS if peer != sender),
            )
            for sender in SILOS
        ),
        ciphertexts={name: bytes(82) for name in SILOS if name != SILOS[recipient]},
    )


def boxes_of(sender: int) -> messages.ShareBoxes:
    box = messages.ShareBox(
        recipient=SILOS[0],
        ciphertext=bytes(82),
        self_seed_share_sha256=bytes(32),
        mask_key_share_sha256=bytes(32),
    )
    return messages.ShareBoxes(
        sender=SILOS[sender],
        boxes=tuple(replace(box, recipient=peer) for peer in SILOS if peer != SILOS[sender]),
        self_seed_commitment=bytes(32),
        own_self_seed_share_sha256=bytes(32),
        signature=bytes(64),
    )


def leaf_of(sender: int, recipient: int) -> messages.ShareLeaf:
    if sender < recipient:
        return replace(statements.LEAF, recipient=SILOS[recipient])
    return replace(
        statements.LEAF,
        recipient=SILOS[recipient],
        mask_kem=b"",
        sealed=b"",
        pair_secret_sha256=b"",
    )


def leaves_of(sender: int) -> messages.ShareLeaves:
    root = replace(statements.SHARE_ROOT, sender=SILOS[sender], leaf_count=199)
    leaves = tuple(leaf_of(sender, peer) for peer in range(200) if peer != sender)
    return messages.ShareLeaves(root=root, leaves=leaves)


@cache
def path_at(index: int) -> tuple[bytes, ...]:
    return merkle.path([bytes(32)] * 199, index)


def leaf_delivery_of(recipient: int) -> messages.LeafDelivery:
    return messages.LeafDelivery(
        roots=tuple(replace(statements.SHARE_ROOT, sender=name, leaf_count=199) for name in SILOS),
        leaves={
            SILOS[sender]: messages.DeliveredLeaf(
                leaf=leaf_of(sender, recipient), path=path_at(recipient - (sender < recipient))
            )
            for sender in range(200)
            if sender != recipient
        },
    )


def test_messages_weigh_what_the_table_says():
    def bundles(bundle: messages.KeyBundle) -> messages.KeyBundles:
        one = replace(bundle, families=("craft",))
        return messages.KeyBundles(bundles=tuple(replace(one, silo_id=name) for name in SILOS))

    old, new = bundles(statements.BUNDLE), bundles(statements.HYBRID_BUNDLE)
    found = {
        "R0 of a silo": [wire.key_bundle_to_proto(one.bundles[0]) for one in (old, new, new)],
        "all bundles, to each silo": [wire.key_bundles_to_proto(one) for one in (old, new, new)],
        "R1 of a silo": [
            wire.share_boxes_to_proto(boxes_of(0)),
            *(wire.share_leaves_to_proto(leaves_of(sender)) for sender in (0, 199)),
        ],
        "R1 to a silo": [
            wire.box_delivery_to_proto(headers_of(0)),
            *(wire.leaf_delivery_to_proto(leaf_delivery_of(one)) for one in (0, 199)),
        ],
    }
    rows = table("message", "v1", "v2, lowest id", "v2, highest id", path=PROTOCOL)
    documented = {row["message"]: list(row.values())[1:] for row in rows}
    assert documented == {
        name: [f"{len(one.SerializeToString()):,}" for one in sent] for name, sent in found.items()
    }


# Where a check is, and which test plays an attack -------------------------------------------------


def test_each_check_is_made_where_its_row_says():
    elsewhere = []
    for row in table("check", "what fails it", "where", "test", path=PROTOCOL):
        places = [ROOT / place for place in re.findall(r"`([\w/]+(?:\.py|/))`", row["where"])]
        files = [path for place in places for path in (sorted(place.rglob("*.py")) or [place])]
        text = "".join(path.read_text() for path in files)
        for check in re.findall(r"`([a-z_]+)`", row["check"]):
            raised = {"malformed": "MalformedMessageError", "parameter": "ParameterError"}
            if raised.get(check, f"Check.{check.upper()}") not in text and files:
                elsewhere.append(check)
        assert files or row["where"] == "every state", row
    assert elsewhere == []


ATTACK = re.compile(r"(?P<number>[AaPp]\d\d)?(?P<first>[a-z]{1,2})(?:–(?P<last>[a-z]{1,2}))?")


def attacks_of(cell: str, files: dict[str, Path]) -> Iterator[tuple[Path, str]]:
    """(file, id) of each test that a cell names, as in ``C A02g–j · R a01b a01c · G``."""
    for part in cell.split(" · "):
        letter, *words = part.split()
        number = ""
        for word in words if letter in files else ():
            match = ATTACK.fullmatch(word)
            assert match is not None, cell
            number = match["number"] or number
            first, last = match["first"], match["last"] or match["first"]
            for end in range(ord(first[-1]), ord(last[-1]) + 1):
                yield files[letter], f"{number}{first[:-1]}{chr(end)}".lower()


def test_each_attack_is_played_by_the_tests_of_its_row():
    text = PROTOCOL.read_text()
    listed = re.findall(r"(?:·|Files:)\s([A-Z])\s\[[^\]]+\]\(\.\./(tests/[\w/]+\.py)\)", text)
    files = {letter: ROOT / path for letter, path in listed}
    assert len(files) == len(listed)
    (found,) = [
        one.rows for one in sections(PROTOCOL) if one.rows and "attack" in list(one.rows[0])[:2]
    ]
    named = [pair for row in found for pair in attacks_of(row["tests"], files)]
    assert len(named) > 150
    for path, attack in named:
        assert re.search(rf"\b(?:test_)?{attack}[-_]", path.read_text().lower()), (path, attack)
