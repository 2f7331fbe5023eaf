"""How rounds are counted."""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_ROUND"]

FIRST_ROUND: Final = 1
"""Rounds count from one; record 0 is the initial adapter and record r is what round r made."""
