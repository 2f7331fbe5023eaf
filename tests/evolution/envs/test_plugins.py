"""A third party's environment by entry point: found, played, and refused where it must be."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from evolution.envs.catalogue import BUILT_IN, ENVIRONMENTS, Catalogue
from evolution.envs.tasks import Split
from evolution.errors import EnvironmentPluginError, UnknownEnvironmentError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import SiloConfig, foreign_specs
from silo_agent.errors import ConfigError
from tests.kit.evolution.foreign_worlds import Engine
from tests.kit.paths import ROOT

DOCUMENT = ROOT / "docs" / "environments.md"


def third_party() -> str:
    """The example of docs/environments.md, word for word."""
    _, _, rest = DOCUMENT.read_text().partition("```python\n")
    code, _, _ = rest.partition("```")
    return code


def install(site: Path, code: str, points: dict[str, str], module: str = "compass") -> None:
    """What `pip install` leaves behind."""
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[chorale.environments]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "compass", raising=False)
    yield directory
    sys.modules.pop("compass", None)


def test_the_documented_example_is_short_and_is_played_through_the_catalogue(site: Path):
    code = third_party()
    assert 10 < len(code.splitlines()) <= 30
    install(site, code, {"compass": "compass:Compass"})
    known = Catalogue(plugins=["compass"])
    assert "compass" in known
    assert "compass" in known.names
    assert "compass" not in sys.modules
    assert known.family("compass") == "directions"
    tasks = known.make("compass").task_ids(Split.TRAIN)[:8]
    played = run_episodes(
        Engine(lambda text: f"move {text.splitlines()[-1].split()[2]}"),
        [Task(environment="compass", task_id=task) for task in tasks],
        temperature=0.0,
        seed=0,
        make_environment=known.make,
    )
    assert [t.success for t in played.trajectories] == [True] * 8
    wrong = run_episodes(
        Engine(lambda text: "move left"),
        [Task(environment="compass", task_id=task) for task in tasks],
        temperature=0.0,
        seed=0,
        make_environment=known.make,
    )
    assert {t.success for t in wrong.trajectories} == {True, False}


def test_a_silo_names_it_in_its_file(site: Path, tmp_path: Path):
    install(site, third_party(), {"compass": "compass:Compass"})
    file = tmp_path / "silo.toml"
    file.write_text('environments = ["compass", "craft"]\nplugins = ["compass"]\n')
    config = SiloConfig.load(tmp_path)
    assert config.families() == ("craft", "directions")
    assert config.catalogue() is config.catalogue()
    # An installed package alone changes nothing: the operator must list it.
    file.write_text('environments = ["compass"]\n')
    with pytest.raises(ConfigError, match="unknown environment 'compass'"):
        SiloConfig.load(tmp_path)
    file.write_text('plugins = ["evenodd"]\n')
    with pytest.raises(ConfigError, match=r"no installed package has 'evenodd'.* there: compass"):
        SiloConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("class Compass", "class Other"), "cannot be imported"),
        (('name = "compass"', 'name = "craft"'), "its name"),
        (('family = "directions"', 'family = "other"'), "its family"),
        (("max_steps = 1", 'max_steps = "1"'), "its max_steps"),
        (("class Compass(Environment)", "class Compass"), "no subclass"),
        (("from ", "raise RuntimeError\nfrom ", 1), "cannot be imported"),
    ],
)
def test_what_cannot_be_used_is_refused(site: Path, change: tuple, problem: str):
    code = third_party()
    spoilt = code.replace(*change)
    assert spoilt != code
    install(site, spoilt, {"compass": "compass:Compass"})
    with pytest.raises(EnvironmentPluginError, match=problem):
        Catalogue(plugins=["compass"]).make("compass")


def test_a_package_for_an_earlier_version_is_told_what_to_import(site: Path):
    code = third_party().replace("from evolution.envs import", "from silo_agent.envs import")
    install(site, code, {"compass": "compass:Compass"})
    with pytest.raises(EnvironmentPluginError, match=r"silo_agent\.envs.* from evolution\.envs$"):
        Catalogue(plugins=["compass"]).make("compass")


def test_nobody_takes_over_a_name(site: Path):
    code = third_party()
    install(site, code, {"craft": "compass:Compass", "compass": "compass:Compass"})
    with pytest.raises(EnvironmentPluginError, match="Chorale's own"):
        Catalogue(plugins=["craft"])
    install(site, code, {"compass": "evil:Compass"}, module="evil")
    with pytest.raises(EnvironmentPluginError, match="two installed packages"):
        Catalogue(plugins=["compass"])
    for name in ("../x", "", "openenv:x", "A"):
        with pytest.raises(EnvironmentPluginError):
            Catalogue(plugins=[name])


def test_a_catalogue_knows_its_names_and_no_others():
    assert set(BUILT_IN.names) == set(ENVIRONMENTS)
    with pytest.raises(UnknownEnvironmentError, match="chess"):
        BUILT_IN.make("chess")
    with pytest.raises(UnknownEnvironmentError, match="chess"):
        BUILT_IN.family("chess")
    assert BUILT_IN.make("craft").family == BUILT_IN.family("craft") == "craft"


def test_a_catalogue_can_be_sent_to_a_worker_process():
    table = {
        "id": "FrozenLake-v1",
        "instruction": "go",
        "max_steps": 3,
        "success": {"reward_at_least": 1.0},
        "actions": ["left", "down", "right", "up"],
    }
    sent = pickle.dumps(Catalogue(foreign=foreign_specs({"gym:lake": table})))
    known = pickle.loads(sent)  # noqa: S301  # our own
    environment = known.make("gym:lake")
    assert (environment.name, environment.family, environment.max_steps) == ("gym:lake", "lake", 3)
    assert environment.labels == ("all",)
    assert environment.reset(1_008_000)[0] == "0"
    environment.close()


def test_no_adapter_is_imported_before_its_environment_is_made():
    code = (
        "import sys, silo_agent.config, evolution.envs.catalogue\n"
        "print(sorted({'websockets', 'httpx2', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
