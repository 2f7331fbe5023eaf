"""An engine with nothing to load and nothing to close."""

from __future__ import annotations

from evolution.rollout.engine import RolloutEngine


class PlainEngine(RolloutEngine):
    """What is left to say is how it answers."""

    def load_adapter(self, version, tensors):
        raise NotImplementedError

    def close(self):
        pass
