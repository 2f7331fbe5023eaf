"""The coordinator with mask removal switched off: the counterpart of a silo that adds none."""

from typing import Any

from secagg import prg
from server.cli.coordinator import main


def apply(self: Any, piece: Any) -> None:
    del self, piece


if __name__ == "__main__":
    prg.MaskStreams.apply = apply  # type: ignore[method-assign]
    main()
