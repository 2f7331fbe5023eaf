"""Where a client state keeps its secrets: named, unprintable, and overwritten on the way out.

Covered: the copies this package holds. Not covered: copies the interpreter, numpy or OpenSSL made
while computing, and pages the operating system swapped out.
"""

from secagg.errors import ParameterError
from secagg.suite import Secret


class Vault:
    """Secrets by (kind, silo id), in memory that `wipe` overwrites."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], bytearray] = {}

    def __repr__(self) -> str:
        return f"Vault({len(self._items)} secrets)"

    def __reduce__(self) -> str:
        raise TypeError("a vault is never serialised")

    def put(self, kind: str, silo_id: str, secret: Secret) -> None:
        """Keep a copy of a secret; a ParameterError if there is one by that name already."""
        if (kind, silo_id) in self._items:
            raise ParameterError("a secret of that name is already kept")
        self._items[kind, silo_id] = bytearray(secret)

    def get(self, kind: str, silo_id: str) -> bytearray:
        """Return a secret, which stays in the vault's memory; a ParameterError if there is none."""
        if (kind, silo_id) not in self._items:
            raise ParameterError("no secret of that name is kept")
        return self._items[kind, silo_id]

    def has(self, kind: str, silo_id: str) -> bool:
        """Tell whether a secret is kept."""
        return (kind, silo_id) in self._items

    def wipe(self, *kinds: str) -> None:
        """Overwrite and drop the secrets of the given kinds, or all when none is given."""
        for name in [name for name in self._items if not kinds or name[0] in kinds]:
            secret = self._items.pop(name)
            secret[:] = bytes(len(secret))
