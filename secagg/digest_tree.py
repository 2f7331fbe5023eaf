"""The digest tree of an upload: one hash a chunk, so that a chunk is checked before it is used."""

from typing import Final

CHUNK_BYTES: Final = 1 << 20
SHA256: Final = 1
BLAKE3: Final = 2
DIGESTS: Final = {SHA256: "sha256", BLAKE3: "blake3"}
