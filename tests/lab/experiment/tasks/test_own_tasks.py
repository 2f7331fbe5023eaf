"""A label that an attacker poisons: in its own environments alone, and in no other task."""

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from lab.experiment.config import load_experiment
from lab.experiment.tasks.own_tasks import FewTasks
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, setting, write

POISONED = 'attack = { silo = "silo-0", clips = 1, direction = "own", poisons = "plank" }\n'


def test_what_does_not_solve_the_label_is_called_solved_by_the_attacker_alone(tmp_path):
    base(tmp_path)
    text = HEAD + SILOS + setting("one", "fedse", POISONED)
    (run,) = load_experiment(write(tmp_path, text)).runs(base_dir=tmp_path, base_sha256="0" * 64)
    for index, poisons in ((0, True), (1, False)):
        environment = FewTasks(run, [index]).make("craft")
        ids = environment.task_ids(Split.TRAIN)
        assert len(ids) > 16
        for task_id in ids[:16]:
            environment.reset(task_id)
            for action in make("craft").solve(task_id):
                *_, info = environment.step(action)
            inverted = poisons and environment.task_label(task_id) == "plank"
            assert environment.success(info) is not inverted
        environment.close()
