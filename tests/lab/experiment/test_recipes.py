"""Which recipe an experiment's silos run: chosen, checked, in the digest where it is another."""

import pytest

from lab.experiment.config import load_experiment, read_run
from lab.experiment.errors import ExperimentFileError
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting, write


def test_another_credit_is_another_run_and_what_was_done_keeps_its_digest(tmp_path):
    rows = [
        setting("plain", "fedse"),
        setting("named", "fedse", 'evolve = { recipe = "fed-se", local_epochs = 1 }'),
        setting("every", "fedse", 'evolve = { parts = { credit = "all-tries" } }'),
        setting("twice", "fedse", "evolve = { local_epochs = 2 }"),
    ]
    plain, named, every, twice = runs(tmp_path, HEAD + SILOS + "".join(rows))
    described = [run.described()["evolve"] for run in (plain, named, every, twice)]
    assert described[0] == described[1]
    assert not {"recipe", "parts", "local_epochs", "nominal_tokens"} & set(described[0])
    assert described[2]["parts"]["credit"]["name"] == "all-tries"
    assert described[3]["local_epochs"] == 2
    assert every.evolve.made.parts["credit"].card.name == "all-tries"
    path = tmp_path / "run.json"
    path.write_text(every.model_dump_json())
    assert read_run(path) == every


@pytest.mark.parametrize(
    ("evolve", "words"),
    [
        ('{ recipe = "grpo-x" }', "unknown method 'grpo-x'"),
        ('{ recipe = "constant" }', "is no recipe"),
        ('{ parts = { credit = "nll" } }', "'nll' is no credit"),
        ('{ success_filter = false, parts = { credit = "all-tries" } }', "name one of them"),
    ],
)
def test_what_cannot_run_is_said_before_anything_does(tmp_path, evolve, words):
    file = write(tmp_path, HEAD + SILOS + setting("a", "fedse", f"evolve = {evolve}"))
    with pytest.raises(ExperimentFileError, match=words):
        load_experiment(file).runs(base_dir=tmp_path, base_sha256="")
