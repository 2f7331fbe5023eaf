"""Looking for secrets in what a process holds: encodings, places, and the bytes on the wire.

A needle is looked for as it is and as it would look in hexadecimal, base64 and UTF-16. A haystack
is a name and bytes; a database is read row by row as well, for a value may be spread over pages.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

Needles = dict[str, bytes]
Haystacks = dict[str, bytes]


# Needles ----------------------------------------------------------------------------------------


def forms(name: str, secret: bytes) -> Needles:
    """Every way in which a secret of at least six bytes is looked for."""
    assert len(secret) >= 6, name
    found = {
        "raw": secret,
        "hex": secret.hex().encode(),
        "HEX": secret.hex().upper().encode(),
    }
    for shift in range(3):
        # What base64 of a longer text that holds the secret has in common at this alignment.
        whole = base64.b64encode(bytes(shift) + secret + bytes(2))
        part = whole[4 * ((shift + 2) // 3) : 4 * ((shift + len(secret)) // 3)]
        found[f"base64+{shift}"] = part
        found[f"base64url+{shift}"] = part.translate(bytes.maketrans(b"+/", b"-_"))
    if secret.isascii():
        found["utf-16"] = secret.decode().encode("utf-16-le")
    return {f"{name} as {form}": text for form, text in found.items() if len(text) >= 6}


def key_needles(name: str, pem: Path) -> Needles:
    """A private key: its number, its DER form, and the lines of its file."""
    key = load_pem_private_key(pem.read_bytes(), None)
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    if hasattr(key, "private_bytes_raw"):
        number = key.private_bytes_raw()
    else:
        number = key.private_numbers().private_value.to_bytes(32, "big")
    lines = [line for line in pem.read_bytes().splitlines() if not line.startswith(b"-----")]
    found = forms(name, number)
    found[f"{name} as DER"] = der
    return found | {f"{name} as PEM {i}": line for i, line in enumerate(lines) if len(line) > 20}


def number_needles(name: str, value: float) -> Needles:
    """A figure with enough digits to be told from others."""
    text = repr(float(value))
    digits = text.replace(".", "").replace("-", "").strip("0")
    if "e" in text or len(digits) < 7:
        return {}
    return {
        f"{name} as text": text[: text.index(".") + 8].encode(),
        f"{name} as double": struct.pack("<d", value),
        f"{name} as big-endian double": struct.pack(">d", value),
    }


# Haystacks --------------------------------------------------------------------------------------


def memory(pid: int) -> list[bytes]:
    """Every readable mapping of a process; of a daemon, root alone may read it."""
    parts = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as mem:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if match is None or "[vvar" in line or "[vsyscall]" in line:
                continue
            start, end = (int(text, 16) for text in match.groups())
            try:
                mem.seek(start)
                parts.append(mem.read(end - start))
            except (OSError, ValueError, OverflowError):
                continue
    return parts


def files(directory: Path, *, without: Iterable[str] = ()) -> Haystacks:
    """Every file below a directory, by its path there."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and name not in set(without):
            found[name] = path.read_bytes()
    return found


def database(path: Path) -> Haystacks:
    """Every row of every table: strings, bytes, and numbers as text; the log ahead included."""
    found = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
        for (table,) in connection.execute(names).fetchall():
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()  # noqa: S608
            found[table] = b"\n".join(_value(value) for row in rows for value in row)
    return found


def _value(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    text = str(value)
    if text[:1] in "[{":
        # JSON writes what is not ASCII, and what might be taken for a tag, in other letters.
        with suppress(ValueError):
            text += "\n" + json.dumps(json.loads(text), ensure_ascii=False)
    return text.encode()


def hits(haystacks: Mapping[str, bytes], needles: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Which needle is where."""
    return {
        (place, what)
        for place, content in haystacks.items()
        for what, needle in needles.items()
        if needle in content
    }


# The wire ---------------------------------------------------------------------------------------


def streams(capture: Path) -> dict[tuple[int, int, int], bytes]:
    """What each side of each TCP connection sent: by stream, source port and destination port."""
    listed = subprocess.run(
        [
            "tshark", "-r", str(capture), "-n", "-Y", "tcp.len > 0", "-T", "fields",
            *("-e", "tcp.stream", "-e", "tcp.srcport", "-e", "tcp.dstport"),
            *("-e", "tcp.seq", "-e", "tcp.payload"),
        ],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    parts: dict[tuple[int, int, int], list[tuple[int, bytes]]] = defaultdict(list)
    for line in listed.splitlines():
        stream, source, destination, sequence, payload = line.split("\t")
        parts[int(stream), int(source), int(destination)].append(
            (int(sequence), bytes.fromhex(payload))
        )
    return {side: _joined(sent) for side, sent in parts.items()}


def _joined(parts: list[tuple[int, bytes]]) -> bytes:
    whole = b""
    for sequence, payload in sorted(parts, key=lambda part: part[0]):
        at = sequence - 1
        assert at <= len(whole), "the capture lost packets"
        whole += payload[len(whole) - at :]
    return whole


def not_tls(sent: bytes) -> str:
    """What is wrong with bytes that are not a series of TLS records; empty for those that are."""
    at = 0
    while at < len(sent):
        kind, major, minor, size = struct.unpack_from(">BBBH", sent[at : at + 5].ljust(5, b"\0"))
        if kind not in {20, 21, 22, 23} or major != 3 or minor > 4 or not 0 < size <= 2**14 + 256:
            return f"byte {at}: {sent[at : at + 40]!r}"
        at += 5 + size
    # A connection that is cut may end within a record.
    return ""
