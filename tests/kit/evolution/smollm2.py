"""The real pretrained model: where `make base-smollm2` has put it, or made for the run."""

from __future__ import annotations

from pathlib import Path

from evolution.model.identity import base_sha256
from lab.base.smollm2 import BASE_SHA256, import_smollm2
from tests.kit.paths import ROOT

MADE = ROOT / "bases" / "smollm2"


def base(scratch: Path) -> Path:
    """The base's directory; a minute where it has to be made."""
    if MADE.is_dir():
        assert base_sha256(MADE) == BASE_SHA256, f"remove {MADE}: it is another base"
        return MADE
    out = scratch / "smollm2"
    if not out.is_dir():
        import_smollm2(out)
    return out
