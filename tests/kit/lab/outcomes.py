"""A finished demo's outcome from the silos' own files."""

from lab.demo.outcome import Outcome, pooled
from lab.demo.scenario import SILOS


def row(shard, successes, episodes, *, environment="craft", temperature=1.0, **extra):
    return {
        "environment": environment,
        "shard": shard,
        "temperature": temperature,
        "episodes": episodes,
        "successes": successes,
        **extra,
    }


def outcome_of(base, alone, together, episodes=832):
    def cells(successes):
        return pooled([row(0, successes, episodes), row(1, successes, episodes)])

    return Outcome(
        rates={"base": cells(base), "alone": cells(alone), "together": cells(together)},
        epsilon=12345.6,
        epsilon_unit="silo",
        epsilon_cap=1e9,
        delta=1e-5,
        rounds=[finished_round()],
        run_id="run-1",
        seconds={"together": 12.0},
        exported="demo-out/adapter",
        killed="silo-d",
    )


def finished_round(**changes):
    return {
        "round": 1,
        "outcome": "aggregated",
        "cohort": list(SILOS),
        "survivors": list(SILOS[:3]),
        "upload_bytes": 3 * 2048,
        "adapter_sha256": "ab" * 32,
        "timings": [{"phase": "training", "duration_s": 3.0}],
        "success": [{"family": "craft", "success_ratio": 0.25, "standard_error": 0.01}],
        **changes,
    }
