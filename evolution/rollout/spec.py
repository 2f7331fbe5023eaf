"""Which engine plays a silo's episodes, and with what: the silo's own choice, never the plan's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["EngineSpec"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """See the module; read from ``[rollout]`` of ``silo.toml``."""

    kind: Literal["hf", "openai"] = "hf"
    """``hf`` runs the model in this process; ``openai`` asks a vLLM server beside it."""
    workers: int = 1
    """``hf``: processes that share the episodes of a round; 1 plays in this process."""
    device: str = "auto"
    """``hf``: ``auto`` takes a GPU if there is one."""
    url: str = ""
    """``openai``: the server, on loopback or with TLS, for example ``http://127.0.0.1:8000``."""
    model: str = ""
    """``openai``: the name under which the server knows the base model."""
    api_key_file: Path | None = None
    """``openai``: file with the server's API key."""
    adapter_dir: Path | None = None
    """``openai``: where adapters are written for the server to load; both read the same path."""
    timeout_s: float = 120.0
    """``openai``: for one answer."""
    max_in_flight: int = 64
    """``openai``: conversations that wait for an answer at once."""
