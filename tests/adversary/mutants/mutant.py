"""One mutant: a verification of the protocol switched off by a textual change, and who notices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A change of one file that some test must refuse to live with."""

    # Short and unique, e.g. "bundle-signature".
    name: str
    # Which verification is switched off.
    disables: str
    # Relative to the root of the repository.
    file: str
    # Must occur exactly once in the file.
    old: str
    new: str
    # Node ids; the first failing test must be one of them, whatever its parameters.
    tests: tuple[str, ...]
    # Must occur in the failure's text where the name of the test alone would say too little.
    phrase: str = ""

    def apply(self, root: Path) -> str:
        """Change the file below `root`; return its previous text.

        Raises:
            StaleMutantError: the old text does not occur exactly once.
        """
        path = root / self.file
        before = path.read_text(encoding="utf-8")
        found = before.count(self.old)
        if found != 1:
            raise StaleMutantError(f"{self.name}: old text occurs {found} times in {self.file}")
        if self.old == self.new:
            raise StaleMutantError(f"{self.name}: changes nothing")
        path.write_text(before.replace(self.old, self.new), encoding="utf-8")
        return before


class StaleMutantError(Exception):
    """The list no longer fits the source."""
