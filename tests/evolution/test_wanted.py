"""Work that nobody wants any more ends between two of its steps."""

import threading

import pytest

from evolution.errors import NotWantedError
from evolution.local_time import require_wanted, while_wanted
from evolution.model.lora import initial_adapter
from evolution.rollout.episodes import run_episodes
from evolution.train.sft import SftTrainer
from evolution.train.trainer import TrainerSpec
from tests.kit.evolution.frail import TASKS, Engine, Frail
from tests.kit.evolution.sft import ALPHA, NLL, PLAN, RANK, ROWS


def for_so_many(steps):
    left = [steps]

    def wanted():
        left[0] -= 1
        return left[0] >= 0

    return wanted


def test_it_is_asked_only_within_and_only_on_its_thread():
    require_wanted()
    with while_wanted(lambda: False):
        with pytest.raises(NotWantedError):
            require_wanted()
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(require_wanted()))
        thread.start()
        thread.join()
        assert elsewhere == [None]
    require_wanted()


class Counting(Engine):
    answers = 0

    def generate(self, prompts, sampling):
        self.answers += 1
        return super().generate(prompts, sampling)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_exploring_ends_between_two_turns(turns):
    engine = Counting()
    with while_wanted(for_so_many(turns)), pytest.raises(NotWantedError):
        run_episodes(
            engine, TASKS, temperature=0.0, seed=0, batch_size=4, make_environment=lambda _: Frail()
        )
    assert engine.answers == turns


def test_training_ends_between_two_batches(tiny_base):
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32", spec=TrainerSpec())
    adapter = initial_adapter(tiny_base, RANK, ALPHA, 0)
    trainer.reset(adapter)
    with while_wanted(for_so_many(1)), pytest.raises(NotWantedError):
        trainer.train(ROWS, NLL, PLAN, trainable=frozenset(adapter))
