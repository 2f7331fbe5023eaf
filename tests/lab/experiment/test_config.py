import pytest

from lab.experiment.config import load_experiment, read_run
from lab.experiment.errors import ExperimentFileError
from lab.experiment.methods import METHODS, clusters
from tests.kit.lab.experiment_samples import HEAD, SILOS, setting, silo, write
from tests.kit.paths import ROOT

SHIPPED = sorted((ROOT / "experiments").glob("*.toml"))
SHA = "0" * 64
NINE = "".join(silo(k) for k in range(4)) + "".join(
    silo(k).replace(f"shard_index = {k}", "shard_index = 0") for k in range(4, 9)
)
GROUPS = "groups = { count = 3 }\n"
OWN = 'attack = {{ silo = "silo-1", clips = 3, direction = "{}", poisons = "{}" }}\n'
ATTACK = 'attack = { silo = "silo-1", clips = 12, direction = "reverse" }\n'


def resolved(tmp_path, text):
    loaded = load_experiment(write(tmp_path, text))
    return loaded.runs(base_dir=tmp_path, base_sha256=SHA)


def problems(tmp_path, text):
    with pytest.raises(ExperimentFileError) as caught:
        resolved(tmp_path, text)
    return caught.value.problems


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_are_read_and_resolve(path):
    loaded = load_experiment(path)
    runs = loaded.runs(base_dir=path.parent, base_sha256=SHA)
    assert len(runs) == len(loaded.setting) * len(loaded.seeds)
    base = path.parent / loaded.base
    # The base is here, or is one that a target of the Makefile fetches.
    assert (base / "config.json").exists() or base.resolve() == ROOT / "bases" / "smollm2"


def test_the_files_that_are_announced_are_shipped():
    names = [path.name for path in SHIPPED]
    assert names == [
        "agentic-tuning.toml",
        "agentic.toml",
        "aggregation-noise.toml",
        "aggregation-seeds.toml",
        "aggregation.toml",
        "desk.toml",
        "fedagent-alone.toml",
        "fedagent-market.toml",
        "fedagent-shards.toml",
        "fedagent-tuning.toml",
        "fedse-demonstrations.toml",
        "fedse-own.toml",
        "fedse-paper.toml",
        "fedse-registered.toml",
        "fedse-shards.toml",
        "fedse-shown.toml",
        "groups.toml",
        "parts-screen.toml",
        "parts.toml",
        "poisoning.toml",
        "words-grpo.toml",
        "words.toml",
    ]


def test_a_setting_overrides_what_it_names_and_nothing_else(tmp_path):
    extra = "rank = 4\nalpha = 8.0\nevolve = { window = 0 }\naggregation = { gauge = true }"
    text = HEAD + SILOS + setting("one", "fedse") + setting("two", "fedse", extra)
    one, two = resolved(tmp_path, text)
    assert (two.rank, two.alpha, two.evolve.window, two.aggregation.gauge) == (4, 8.0, 0, True)
    assert two.evolve.model_copy(update={"window": 1}) == one.evolve
    assert two.noise == one.noise
    assert one.sha256 != two.sha256


def test_every_seed_runs_every_setting_and_is_another_run(tmp_path):
    text = HEAD.replace("seeds = [0]", "seeds = [3, 4]") + SILOS
    found = resolved(tmp_path, text + setting("one", "fedse") + setting("two", "fedit"))
    assert [(run.seed, run.setting) for run in found] == [
        (3, "one"),
        (3, "two"),
        (4, "one"),
        (4, "two"),
    ]
    assert len({run.sha256 for run in found}) == 4


def test_where_the_base_lies_is_not_part_of_a_runs_identity(tmp_path):
    (run,) = resolved(tmp_path, HEAD + SILOS + setting("one", "fedse"))
    assert run.model_copy(update={"base": "/elsewhere"}).sha256 == run.sha256
    assert run.model_copy(update={"base_sha256": "1" * 64}).sha256 != run.sha256


def test_groups_and_an_attack_are_part_of_a_run_and_change_no_digest_of_one_without(tmp_path):
    text = HEAD + NINE + setting("one", "fedse") + setting("two", "fedse", GROUPS + ATTACK)
    one, two = resolved(tmp_path, text)
    # As the rows of runs before there were such settings have it.
    assert not {"groups", "attack"} & one.described().keys()
    assert two.described()["groups"] == {"count": 3, "byzantine": 1, "rule": "median"}
    assert two.described()["attack"]["clips"] == 12
    assert two.described()["attack"].keys() == {"silo", "clips", "direction"}
    bare = two.model_copy(update={"groups": None, "attack": None, "setting": "one"})
    assert bare.sha256 == one.sha256
    assert len({two.sha256, two.model_copy(update={"attack": None}).sha256, one.sha256}) == 3


def test_what_was_added_later_changes_no_digest_of_a_run_without_it(tmp_path):
    """Finished runs stand for the digest that they were written down with."""
    (run,) = resolved(tmp_path, HEAD + SILOS + setting("one", "fedse"))
    assert run.sha256 == "879983d02cc0dc5cd1612d14a5c2c746c056f8b86e6417c433bd0d5473a39238"
    assert not {"per_round", "dtype", "target", "rollout", "training", "plugins", "foreign"} & (
        run.described().keys()
    )
    tables = '[rollout]\ndevice = "cpu"\n[training]\nmicro_batch_tokens = 9\n[evolve]'
    text = (
        HEAD.replace(
            "[evolve]", f'dtype = "float32"\ntarget = "all-linear"\nper_round = 0\n{tables}'
        )
        + SILOS
    )
    (same,) = resolved(tmp_path, text + setting("one", "fedse"))
    assert same.sha256 == run.sha256
    assert same.training.micro_batch_tokens == 9


def test_tuning_is_judged_on_the_tasks_of_another_split(tmp_path):
    told = HEAD.replace("[judge]", '[judge]\nsplit = "pretrain"')
    runs = [resolved(tmp_path, text + SILOS + setting("one", "fedse"))[0] for text in (HEAD, told)]
    assert "split" not in runs[0].described()["judge"]
    assert runs[1].described()["judge"]["split"] == "pretrain"
    wrong = told.replace("pretrain", "train") + SILOS + setting("one", "fedse")
    (problem,) = problems(tmp_path, wrong)
    assert problem.startswith("judge.split")


def test_some_of_the_silos_are_a_run_of_their_own_and_a_setting_says_otherwise(tmp_path):
    text = HEAD.replace("[evolve]", "per_round = 4\n[evolve]") + NINE
    rows = [("a", "per_round = 0"), ("b", ""), ("c", "per_round = 5")]
    every, four, five = resolved(
        tmp_path, text + "".join(setting(name, "fedse", extra) for name, extra in rows)
    )
    assert (every.per_round, four.per_round, five.per_round) == (None, 4, 5)
    assert "per_round" not in every.described()
    assert four.described()["per_round"] == 4


def test_a_setting_says_how_many_demonstrations_each_silo_has(tmp_path):
    rows = [("a", ""), ("b", "demonstrations = 0"), ("c", "demonstrations = 32")]
    runs = resolved(
        tmp_path,
        HEAD + SILOS + "".join(setting(name, "fedse", extra) for name, extra in rows),
    )
    had, none, many = [[silo.demonstrations for silo in run.silos] for run in runs]
    assert any(had)
    assert set(none) == {0}
    assert set(many) == {32}
    assert len({run.sha256 for run in runs}) == 3
    wrong = problems(tmp_path, HEAD + SILOS + setting("a", "fedse", "demonstrations = -1"))
    assert wrong[0].startswith("setting.0.demonstrations")


def test_a_target_is_part_of_a_run_and_a_setting_names_another(tmp_path):
    text = HEAD.replace("[evolve]", 'target = ["v_proj"]\n[evolve]') + SILOS
    rows = [("a", ""), ("b", 'target = "all-linear"'), ("c", 'target = ["q_proj", "v_proj"]')]
    one, every, two = resolved(
        tmp_path, text + "".join(setting(name, "fedse", extra) for name, extra in rows)
    )
    assert one.described()["target"] == ["v_proj"]
    assert two.described()["target"] == ["q_proj", "v_proj"]
    assert "target" not in every.described()
    assert every.target == "all-linear"


def test_a_run_survives_its_file(tmp_path):
    tables = (
        'dtype = "bfloat16"\ntarget = ["v_proj"]\nper_round = 3\n[rollout]\nworkers = 2\n[evolve]'
    )
    text = HEAD.replace("[evolve]", tables) + NINE + setting("one", "fedse")
    (run,) = resolved(tmp_path, text)
    (tmp_path / "run.json").write_text(run.model_dump_json())
    assert read_run(tmp_path / "run.json") == run


@pytest.mark.parametrize(
    ("before", "after", "path", "says"),
    [
        ("episodes = 8", "epsiodes = 8", "evolve.epsiodes", "'episodes'"),
        ("rounds = 2", "round = 2", "round", "'rounds'"),
        ("shard_index = 1", "shard_idx = 1", "silo.1.shard_idx", "'shard_index'"),
        ("held_out = 16", "helt_out = 16", "judge.helt_out", "'held_out'"),
    ],
)
def test_unknown_keys_are_named_with_their_path_and_the_nearest_key(
    tmp_path, before, after, path, says
):
    text = (HEAD + SILOS + setting("one", "fedse")).replace(before, after)
    (found,) = [p for p in problems(tmp_path, text) if "unknown key" in p]
    assert found.startswith(f"{path}: ")
    assert f"nearest valid key is {says}" in found


def test_an_unknown_key_of_an_override_is_named_with_its_path(tmp_path):
    text = HEAD + SILOS + setting("one", "fedse", "evolve = { windw = 3 }")
    (found,) = problems(tmp_path, text)
    assert found.startswith(
        "setting.0.evolve.windw: unknown key; the nearest valid key is 'window'"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SILOS + setting("one", "fedsee"), "there is no method 'fedsee'; the nearest is 'fedse'"),
        (SILOS + setting("a", "fedse") * 2, "the name 'a' appears twice"),
        (SILOS + silo(0, environment="maze", count=1) + setting("a", "fedse"), "appears twice"),
        (silo(0) + silo(1) + setting("a", "fedse"), "a sum needs at least 3 silos"),
        (SILOS + silo(3, environment="mace") + setting("a", "fedse"), "no environment 'mace'"),
        (SILOS + silo(4, count=5) + setting("a", "fedse"), "use one of 1, 2, 4, 8, 16"),
        (SILOS + silo(4, count=4) + setting("a", "fedse"), "the last of 4 is 3, got 4"),
        (
            SILOS + silo(3, demonstrations=0) + setting("a", "fedit"),
            "learns from demonstrations alone, and silo 'silo-3'",
        ),
        (SILOS + setting("a", "fedse", "rounds = 0"), "needs at least one round"),
        (SILOS + setting("a", "fedse", "noise = { z = -1 }"), "setting.0.noise.z"),
        (SILOS + setting("a", "fedse", "sums = 'secret'"), "setting.0.sums"),
        (SILOS + setting("a", "fedse", GROUPS), "so 3 silos are at most 1 groups"),
        (
            NINE + setting("a", "fedse", "groups = { count = 3, byzantine = 2 }"),
            "5 groups outvote 2, 3 do not",
        ),
        (NINE + setting("a", "clustered", GROUPS), "no sum of all silos"),
        (NINE + setting("a", "local_evolution", ATTACK), "no sum of all silos"),
        (NINE + setting("a", "fedse", ATTACK.replace("silo-1", "silo-9")), "no silo 'silo-9'"),
        (
            NINE + setting("a", "fedse", GROUPS + "aggregation = { server_optimiser = 'fedadam' }"),
            "groups: aggregation.server_optimiser is one of",
        ),
        (
            NINE + setting("a", "fedse", GROUPS + "aggregation = { method = 'rolora' }"),
            "groups: aggregation.method is one of fedavg, not 'rolora'",
        ),
        (NINE + setting("a", "fedse", "per_round = 2"), "from 3, the fewest of a sum, to 8"),
        (NINE + setting("a", "fedse", "per_round = 9"), "all 9 silos take part; got 9"),
        (NINE + setting("a", "clustered", "per_round = 4"), "a cluster may have three silos"),
        (NINE + setting("a", "local_static", "per_round = 4"), "its silos share nothing"),
        (NINE + setting("a", "central_static", "per_round = 4"), "one learner, which has the data"),
        (NINE + setting("a", "pretrained", "per_round = 4"), "no rounds: set per_round = 0 here"),
        (NINE + setting("a", "fedse", GROUPS + "per_round = 8"), "so 8 silos are at most 2 groups"),
        (NINE + setting("a", "fedse", "groups = { rule = 'median' }"), "setting.0.groups.count"),
        (NINE + setting("a", "fedse", "attack = { clip = 3 }"), "nearest valid key is 'clips'"),
        (NINE + setting("a", "fedse", OWN.format("own", "spoon")), "'silo-1' has no label 'spoon'"),
        (NINE + setting("a", "fedse", OWN.format("flip", "plank")), "only a silo whose direction"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(tmp_path, text, says):
    assert any(says in problem for problem in problems(tmp_path, HEAD + text))


def test_a_file_that_is_no_toml_is_an_experiment_error(tmp_path):
    with pytest.raises(ExperimentFileError):
        load_experiment(write(tmp_path, "name = "))
    with pytest.raises(ExperimentFileError):
        load_experiment(tmp_path / "absent.toml")


def test_the_base_model_is_judged_without_rounds(tmp_path):
    (run,) = resolved(tmp_path, HEAD + SILOS + setting("one", "pretrained"))
    assert run.rounds == 0


def test_adapters_are_judged_when_the_file_says_and_after_the_last_round(tmp_path):
    head = HEAD.replace("rounds = 2", "rounds = 7").replace("every = 1\nsilos", "every = 3\nsilos")
    text = head.replace("silos_every = 1", "silos_every = 0")
    (run,) = resolved(tmp_path, text + SILOS + setting("one", "fedse"))
    judged = [[n for n in range(1, 8) if run.judged_after(n, shared=s)] for s in (True, False)]
    assert judged == [[3, 6, 7], [7]]


def test_families_of_three_are_clusters_and_the_rest_shares_one():
    craft, maze, both = (frozenset(f) for f in ({"craft"}, {"maze"}, {"craft", "maze"}))
    assert clusters([craft, maze, craft, craft, both]) == ((0, 2, 3), (1, 4))
    assert clusters([maze, maze, maze]) == ((0, 1, 2),)


def test_every_method_is_documented():
    import lab.experiment.methods

    assert all(name in (lab.experiment.methods.__doc__ or "") for name in METHODS)
