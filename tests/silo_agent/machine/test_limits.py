"""Limits while work runs: time ends it between steps, disk keeps it from beginning, GPUs vanish."""

import threading

import numpy as np
import pytest

from evolution import local_time
from evolution.errors import LocalTimeError
from evolution.local_time import require_time
from evolution.memory.memory import Memory
from evolution.methods.constant import ConstantEvolver
from evolution.methods.population import EXPERT_FILE, MEMORY_FILE, open_run_memory
from evolution.rollout.episodes import run_episodes
from silo_agent.errors import ConfigError, DiskLimitError
from silo_agent.machine.limits import METHOD_STORES, counted_bytes, require_disk, restrict_gpus
from silo_agent.policy.document import LimitsSection
from tests.kit.evolution.frail import TASKS, Engine, Frail
from tests.kit.evolution.trajectories import won
from tests.kit.silo_agent.working_silo import WorkingSilo


def test_time_counts_only_within_a_limit_and_only_on_its_thread(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(local_time.time, "monotonic", lambda: now[0])
    require_time()
    with local_time.local_time(None):
        now[0] += 1e9
        require_time()
    with local_time.local_time(2.0):
        now[0] += 7200.0
        require_time()
        now[0] += 0.1
        with pytest.raises(LocalTimeError):
            require_time()
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(require_time()))
        thread.start()
        thread.join()
        assert elsewhere == [None]
    require_time()


class SlowEngine(Engine):
    """Every answer takes an hour."""

    def __init__(self, now):
        super().__init__()
        self.now = now
        self.answers = 0

    def generate(self, prompts, sampling):
        self.now[0] += 3600.0
        self.answers += 1
        return super().generate(prompts, sampling)


@pytest.mark.parametrize(("hours", "answers"), [(0.5, 1), (2.5, 3)])
def test_exploring_ends_at_the_turn_after_its_time(monkeypatch, hours, answers):
    now = [0.0]
    monkeypatch.setattr(local_time.time, "monotonic", lambda: now[0])
    engine = SlowEngine(now)
    # Three waves of two turns each would take six hours.
    with local_time.local_time(hours), pytest.raises(LocalTimeError):
        run_episodes(
            engine, TASKS, temperature=0.0, seed=0, batch_size=4, make_environment=lambda _: Frail()
        )
    assert engine.answers == answers


def test_disk_is_measured_without_following_links(tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "a").write_bytes(bytes(1000))
    (tmp_path / "b").write_bytes(bytes(234))
    inside = counted_bytes(tmp_path)
    (tmp_path / "link").symlink_to("/usr")
    assert inside == 1234
    assert counted_bytes(tmp_path) < inside + 100
    require_disk(tmp_path, LimitsSection())
    require_disk(tmp_path, LimitsSection(max_disk_bytes=5000))
    with pytest.raises(DiskLimitError, match="max_disk_bytes 1000"):
        require_disk(tmp_path, LimitsSection(max_disk_bytes=1000))


def test_what_has_a_size_that_follows_from_data_ends_no_work(tmp_path):
    """A real store that grows by successes, and a silo whose limit everything else just meets."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "a").write_bytes(bytes(5000))
    # Only at the top is it the silo's own.
    (tmp_path / "adapters" / "evolve").mkdir()
    (tmp_path / "adapters" / "evolve" / "b").write_bytes(bytes(500))
    limits = LimitsSection(max_disk_bytes=5500)
    state_dir = tmp_path / METHOD_STORES / "0123456789abcdef"
    sizes = []
    with open_run_memory(
        state_dir,
        expert_file=tmp_path / EXPERT_FILE,
        capacity=None,
        capacity_per_task=None,
        environments=("craft",),
    ) as successes:
        for count in (0, 5, 200):
            successes.add(won(number) for number in range(count))
            require_disk(tmp_path, limits)
            sizes.append((state_dir / MEMORY_FILE).stat().st_size)
    assert sizes[0] < sizes[2]
    assert sizes[2] > 5500
    with Memory(tmp_path / EXPERT_FILE) as given:
        given.add_expert([won()])
        (tmp_path / "rounds.jsonl").write_bytes(bytes(6000))
        (tmp_path / "evaluation.jsonl").write_bytes(bytes(6000))
        require_disk(tmp_path, limits)
    (tmp_path / "adapters" / "a").write_bytes(bytes(5001))
    with pytest.raises(DiskLimitError, match="max_disk_bytes 5500"):
        require_disk(tmp_path, limits)


@pytest.mark.parametrize(
    ("gpus", "before", "after"),
    [
        (None, {}, None),
        (None, {"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ((), {}, ""),
        ((), {"CUDA_VISIBLE_DEVICES": "3,4"}, ""),
        ((0, 2), {}, "0,2"),
        ((1,), {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}, "GPU-b"),
    ],
)
def test_gpus_that_may_not_be_used_are_hidden(gpus, before, after):
    environment = dict(before)
    restrict_gpus(LimitsSection(gpus=gpus), environment)
    assert environment.get("CUDA_VISIBLE_DEVICES") == after
    if gpus is not None:
        # The same numbers as nvidia-smi's.
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("shown", ["", "GPU-a"])
def test_a_gpu_that_the_environment_hides_cannot_be_allowed(shown):
    with pytest.raises(ConfigError, match=r"limits\.gpus names GPU 1"):
        restrict_gpus(LimitsSection(gpus=(1,)), {"CUDA_VISIBLE_DEVICES": shown})


def test_a_figure_of_numpy_is_none_of_a_policy():
    # Strict: a policy's numbers come from its file alone.
    with pytest.raises(ValueError, match="gpus"):
        LimitsSection(gpus=(np.int64(1),))


@pytest.fixture
def one(tmp_path):
    silo = WorkingSilo(tmp_path / "silo")
    yield silo
    silo.work.close()
    silo.ledger.close()


@pytest.mark.parametrize("limits", [{"max_disk_bytes": 1}, {"max_local_hours_per_round": 1e-12}])
def test_work_past_a_limit_fails_inside_and_looks_the_same_outside(one, monkeypatch, limits):
    """Ready as ever, with zeros that get full noise like any other vector."""
    one.work._limits = LimitsSection(**limits)
    evolve = ConstantEvolver.evolve

    def in_steps(self, work):
        require_time()
        return evolve(self, work)

    monkeypatch.setattr(ConstantEvolver, "evolve", in_steps)
    call = one.start()
    assert (call["run_id"], call["round_number"], call["families"]) == ("run-1", 1, ("constant",))
    done = one.work.finished("run-1", 1)
    assert done.delta.size > 0
    assert not done.delta.any()
    assert (done.episodes, done.successes) == ({}, {})
    assert one.errors() == 1
    one.work._limits = LimitsSection()
    one.start(2)
    assert one.work.finished("run-1", 2).delta.any()
