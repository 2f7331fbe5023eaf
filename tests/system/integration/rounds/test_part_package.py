"""Packages with parts of their own, installed by pip, in a federation of real processes.

Three runs of Fed-SE with the credit of docs/parts.md in the place of its own: without noise; under
``record_local`` at sites that have not read the package, which refuse; and there again once each
names the digest that its refusal said. Then one in mode ``silo`` with a sampler that reads results,
which ``record_local`` refuses whatever a site has read.

Not failures: a round in which nothing has an advantage. Failures: a plan that is read without the
package, a site that takes part without its word, a sampler that is shown nothing in mode ``silo``
or anything in ``record_local``, a run that ends otherwise.
"""

import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from evolution.memory.memory import Memory
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, silo_toml
from lab.loopback import LoopbackError, LoopbackFederation
from tests.kit.evolution import part_packages
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("part_package"), pytest.mark.long]

PARTS = """
[evolve.parts]
credit = { name = "rloo", package = "chorale-rloo", scale = 0.5 }
"""


RETRY = """
[evolve.parts]
sampler = { name = "again", package = "chorale-retry" }
"""

OBJECTIVE = re.compile(r"(?m)^parts = \{ (objective = \{.*\}) \}\n")


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    sites = [
        str(part_packages.install(tmp_path_factory.mktemp("package"), sources))
        for sources in (part_packages.documented(), part_packages.RETRY)
    ]
    path = os.pathsep.join([*sites, os.environ.get("PYTHONPATH", "")])
    with LoopbackFederation(
        directory=tmp_path_factory.mktemp("federation"), environment={"PYTHONPATH": path}
    ) as made:
        made.found()
        made.start_coordinator()
        for silo_id in SILOS:
            made.enrol(silo_id, base_model=BASE_MODEL)
        made.publish_roster(colluding=1)
        yield made


def write(loopback, privacy, parts=PARTS, *, rounds=1):
    """Plan, first adapter, and each silo's files as ``policy init`` proposes them."""
    settings = DemoSettings(privacy=privacy, rounds=rounds, episodes=64, held_out=0)
    toml = plan_toml(settings, base=str(BASE_MODEL), base_sha256=base_sha256(BASE_MODEL))
    toml = toml.replace("accept_low_cosine = false", "accept_low_cosine = true")
    plan, adapter = (loopback.directory / f"{privacy}.{end}" for end in ("toml", "safetensors"))
    # Where the recipe names an objective, it stands beside the package's parts.
    objective = "".join(f"{named}\n" for named in OBJECTIVE.findall(toml))
    plan.write_text(OBJECTIVE.sub("", toml) + parts + objective)
    recipe = settings.recipe
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    accepted = ("--accept-no-privacy",) if privacy is Privacy.NONE else ()
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        text = silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        (directory / "silo.toml").write_text(text)
        (directory / "policy.toml").unlink(missing_ok=True)
        loopback.silo("policy", "init", "--plan", str(plan), "--data", str(directory), *accepted)
    return plan, adapter


def after_none(loopback, silo_id):
    """The site's word that noise may follow a run without it."""
    path = loopback.silo_dir(silo_id) / "policy.toml"
    text = path.read_text()
    assert text.count("# after_none = true\n") == 1
    path.write_text(text.replace("# after_none = true\n", "after_none = true\n"))


def start(loopback):
    for silo_id in SILOS:
        (loopback.directory / "logs" / f"{silo_id}.log").unlink(missing_ok=True)
        loopback.start_silo(silo_id)
    for silo_id in SILOS:
        log = partial(loopback.log, silo_id)
        until(lambda said=log: "coordinator_version" in said(), f"{silo_id} calls")


def stop(loopback):
    for silo_id in filter(loopback.alive, SILOS):
        loopback.kill(silo_id)


def test_whoever_lacks_the_package_is_told_what_to_install(loopback):
    plan, _ = write(loopback, Privacy.NONE)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "server.cli.main", "run", "plan", str(plan)),
            *("--silos", "4", "--format", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 4, done.stdout
    message = done.stdout
    assert "evolve" in message
    assert "unknown credit 'rloo'" in message
    assert "install chorale-rloo" in message


def test_a_federation_learns_with_a_credit_of_a_package(loopback):
    plan, adapter = write(loopback, Privacy.NONE)
    start(loopback)
    try:
        run_id = loopback.start_run(plan, adapter, token="none")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [done["outcome"] for done in rounds] == ["aggregated"]
        selected = [
            json.loads(line)["metrics"]["selected"]
            for silo_id in SILOS
            for line in (loopback.silo_dir(silo_id) / "rounds.jsonl").read_text().splitlines()
        ]
        assert len(selected) == len(SILOS)
        assert sum(selected) > 0
    finally:
        stop(loopback)


def test_at_record_level_each_site_has_to_name_what_it_has_read(loopback):
    plan, adapter = write(loopback, Privacy.RECORD_LOCAL)
    with pytest.raises(LoopbackError, match="refused by rule evolver_dp_compat") as refused:
        loopback.silo("policy", "check", str(plan), "--data", str(loopback.silo_dir(SILOS[0])))
    (digest,) = set(re.findall(r'chorale-rloo = \W*"([0-9a-f]{64})', str(refused.value)))
    for silo_id in SILOS:
        path = loopback.silo_dir(silo_id) / "policy.toml"
        # These silos took part in a run without noise before.
        after_none(loopback, silo_id)
        text = path.read_text()
        assert text.count("record_parts = {}\n") == 1
        path.write_text(
            text.replace("record_parts = {}\n", f'record_parts = {{ chorale-rloo = "{digest}" }}\n')
        )
    start(loopback)
    try:
        run_id = loopback.start_run(plan, adapter, token="record")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [done["outcome"] for done in rounds] == ["aggregated"]
    finally:
        stop(loopback)


def memories(loopback, silo_id):
    return set((loopback.silo_dir(silo_id) / "evolve").rglob("successes.sqlite"))


def test_a_sampler_that_reads_results_runs_in_mode_silo(loopback):
    plan, adapter = write(loopback, Privacy.SILO, RETRY, rounds=2)
    text = plan.read_text()
    assert text.count("\nwindow = 1\n") == 1
    plan.write_text(text.replace("\nwindow = 1\n", "\nwindow = 2\n"))
    for silo_id in SILOS:
        after_none(loopback, silo_id)
        # Two runs were charged today.
        policy = loopback.silo_dir(silo_id) / "policy.toml"
        text = policy.read_text()
        assert text.count("max_attempts_per_day = 3\n") == 1
        policy.write_text(text.replace("max_attempts_per_day = 3\n", "max_attempts_per_day = 9\n"))
    before = {silo_id: memories(loopback, silo_id) for silo_id in SILOS}
    start(loopback)
    try:
        run_id = loopback.start_run(plan, adapter, token="silo")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [done["outcome"] for done in rounds] == ["aggregated", "aggregated"]
    finally:
        stop(loopback)
    tasks = 64 // 4
    for silo_id in SILOS:
        (path,) = memories(loopback, silo_id) - before[silo_id]
        with Memory(path) as memory:
            first, second = (memory.groups(round_index=number) for number in (1, 2))
        unsolved = {
            group.task.task_id
            for group in first
            if not any(one.success for one in group.trajectories)
        }
        assert 0 < len(unsolved) < len(first) == tasks
        # None of them would be again by chance more than now and then: a quarter has 52 tasks.
        assert unsolved <= {group.task.task_id for group in second}


def test_a_sampler_that_reads_results_is_refused_at_record_level(loopback):
    with pytest.raises(LoopbackError, match="sampler 'again' couples 'all'") as refused:
        write(loopback, Privacy.RECORD_LOCAL, RETRY)
    assert "evolve.parts.sampler" in str(refused.value)
    assert "choose another part, or a mode that protects whole silos" in str(refused.value)
