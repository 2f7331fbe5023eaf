"""The compose file: read by Docker Compose itself, and held to what it promises.

``docker-compose config`` checks it against the compose specification and resolves it; no engine is
asked. The steps' scripts run for real in ``test_packaging_compose_steps.py``.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from evolution.model.identity import base_sha256
from federation.plan.charges import charges_of_run
from federation.plan.read import read_plan
from silo_agent.config import SiloConfig
from silo_agent.policy.document import Policy
from silo_agent.policy.proposal import write_for_plan
from tests.kit.deploy import dockerfile
from tests.kit.deploy.commands import PROGRAMS, require_command
from tests.kit.deploy.tools import require
from tests.kit.paths import ROOT

DIRECTORY = ROOT / "deploy" / "compose"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SILOS = ("silo-a", "silo-b", "silo-c", "silo-d")
DAEMONS = {"coordinator", *SILOS, "prometheus", "grafana"}
ROOT_HOLDERS = {"root-key", "sign-roster"}
IN_IMAGE = "/opt/chorale/share/base-model"


def composed(directory=DIRECTORY, *more, **environment):
    """What Docker Compose makes of a file."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    files = [word for name in ("compose.yaml", *more) for word in ("--file", directory / name)]
    return subprocess.run(
        [Path(sys.executable).with_name("docker-compose"), *files, "config", "--format", "json"],
        capture_output=True, text=True, check=False, env={**kept, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def project():
    done = composed()
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def services(project):
    return project["services"]


def test_compose_takes_the_file_with_and_without_builds():
    done = composed(DIRECTORY, "compose.override.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    built = {name: s["build"] for name, s in json.loads(done.stdout)["services"].items()
             if "build" in s}  # fmt: skip
    assert set(built) == {"root-key", "join-a"}
    for build in built.values():
        assert Path(build["context"]) == ROOT
        found = dockerfile.read(ROOT / build["dockerfile"])
        assert set(build.get("args") or ()) <= set(found.arguments)


def test_compose_would_refuse_a_wrong_file(tmp_path):
    text = (DIRECTORY / "compose.yaml").read_text().replace("cap_drop:", "cap_dorp:", 1)
    (tmp_path / "compose.yaml").write_text(text)
    done = composed(tmp_path)
    assert done.returncode != 0
    assert "cap_dorp" in done.stderr


def test_every_service_is_shut_in(services):
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert not service.get("cap_add"), name
        assert service.get("user", "") not in {"root", "0"}, name
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory", "pids"}, name
        assert "max-size" in service["logging"]["options"], name
        for volume in service.get("volumes", ()):
            bound = volume["type"] == "bind"
            assert bool(volume.get("read_only")) >= bound, f"{name} writes {volume['source']}"
            assert "docker.sock" not in volume["source"], name


def test_nothing_listens_beyond_loopback(services):
    published = {
        (name, port["host_ip"], port["target"])
        for name, service in services.items()
        for port in service.get("ports", ())
    }
    assert published == {("prometheus", "127.0.0.1", 9090), ("grafana", "127.0.0.1", 3000)}


def test_silos_reach_the_coordinator_and_nothing_else(project, services):
    assert project["networks"]["federation"]["internal"] is True
    for name, service in services.items():
        if name == "prometheus":
            assert set(service["networks"]) == {"federation", "monitoring"}
        elif name == "grafana":
            assert set(service["networks"]) == {"monitoring"}
        elif "network_mode" in service:
            assert service["network_mode"] in {"none", "service:coordinator"}, name
        else:
            assert set(service["networks"]) == {"federation"}, name


def users_of(services, volume):
    return {
        name
        for name, service in services.items()
        for mounted in service.get("volumes", ())
        if mounted["type"] == "volume" and mounted["source"] == volume
    }


def test_nobody_sees_another_ones_keys(services):
    assert users_of(services, "root-key") == ROOT_HOLDERS
    for holder in ROOT_HOLDERS:
        assert services[holder]["network_mode"] == "none"
        assert "coordinator" not in {v["source"] for v in services[holder]["volumes"]}
    of_the_coordinator = users_of(services, "coordinator")
    for silo in SILOS:
        letter = silo[-1]
        assert users_of(services, silo) == {silo, f"join-{letter}"}
        assert users_of(services, f"invite-{letter}") == {f"invite-{letter}", f"join-{letter}"}
        assert not users_of(services, silo) & of_the_coordinator
    assert not of_the_coordinator & ROOT_HOLDERS


def test_images_are_pinned(services):
    for name, service in services.items():
        _, _, tag = service["image"].rpartition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), name
        if name not in {"prometheus", "grafana"}:
            kind = "silo" if name.startswith(("silo", "join")) else "coordinator"
            assert service["image"] == f"chorale-{kind}:{VERSION}"


def test_other_images_can_be_named():
    done = composed(CHORALE_SILO_IMAGE="registry.example.org/chorale-silo@sha256:" + "0" * 64)
    images = {s["image"] for s in json.loads(done.stdout)["services"].values()}
    assert "registry.example.org/chorale-silo@sha256:" + "0" * 64 in images


def test_steps_end_and_daemons_are_looked_after(services):
    for name, service in services.items():
        if name in DAEMONS:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] == "CMD", name
        else:
            assert service["restart"] == "no", name
    assert {n for n, s in services.items() if s["restart"] != "no"} == DAEMONS


def test_every_step_waits_for_what_it_needs(services):
    def before(name):
        found = set(services[name].get("depends_on", ()))
        return found | {earlier for direct in found for earlier in before(direct)}

    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            # network_mode: service:coordinator adds that one by itself.
            wanted = {"service_started"} if needed == "coordinator" else set()
            wanted |= {"service_healthy" if needed in DAEMONS else "service_completed_successfully"}
            assert how["condition"] in wanted, (name, needed)
    joins = {f"join-{silo[-1]}" for silo in SILOS}
    assert before("propose-roster") >= joins | {"federation", "coordinator", "found", "root-key"}
    assert before("silo-a") >= {"publish-roster", "sign-roster", "propose-roster"}
    assert before("first-run") >= set(SILOS)


# Commands -----------------------------------------------------------------------------------------


def test_every_command_exists(services):
    scripts = set()
    for name, service in services.items():
        words = service.get("command") or ()
        if name in {"prometheus", "grafana"}:
            continue
        if words[0] == "sh":
            mounted = {v["target"]: Path(v["source"]) for v in service["volumes"]}
            script = mounted["/steps"] / Path(words[1]).name
            assert script.exists(), script
            scripts.add(script)
        else:
            require_command(words)
    assert scripts == set((DIRECTORY / "steps").glob("*.sh"))


def commands_of(script):
    """Each call of ours in a script, with something in the place of what the shell fills in."""
    text = re.sub(r"\\\n", " ", script.read_text())
    # Where it reads and writes is the shell's business.
    text = re.sub(r" \d?[<>][^\s;)]+", "", text)
    for line in text.splitlines():
        for found in re.finditer(r"(?<![\w/.-])(" + "|".join(PROGRAMS) + r")( [^;)<>|&]*)", line):
            if not line.lstrip().startswith(("#", "echo")):
                words = re.sub(r'"?\$\w+"?(/[\w.]+"?)?', "something", found[0]).split()
                yield [word.strip('"') for word in words]


def test_every_command_of_every_script_exists():
    found = [
        words for script in (DIRECTORY / "steps").glob("*.sh") for words in commands_of(script)
    ]
    assert len(found) >= 11
    for words in found:
        require_command(words)


@pytest.mark.parametrize("script", sorted((DIRECTORY / "steps").glob("*.sh")), ids=lambda p: p.name)
def test_scripts_pass_shellcheck(script):
    require("shellcheck", "shellcheck")
    done = subprocess.run(
        ["shellcheck", "--severity=style", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert script.read_text().startswith("#!/bin/sh\n")
    assert os.access(script, os.X_OK)


# What they run with -------------------------------------------------------------------------------


def test_the_silos_settings_are_read_by_the_silo(services, tmp_path, monkeypatch):
    (tmp_path / "silo.toml").write_text("")
    image = dockerfile.read(ROOT / "deploy" / "images" / "silo.Dockerfile").environment()
    shards, seeds = set(), set()
    for silo in SILOS:
        for key, value in {**image, **services[silo]["environment"]}.items():
            if key.startswith("CHORALE"):
                monkeypatch.setenv(key, value)
        config = SiloConfig.load(tmp_path)
        (entry,) = config.environments
        shards.add((entry.environment, entry.shard_index, entry.shard_count))
        seeds.add(config.seed)
    assert shards == {("craft", index, 4) for index in range(4)}
    assert len(seeds) == 4


def test_prometheus_is_told_to_scrape_what_is_here(services):
    targets = ROOT / "deploy" / "prometheus" / "targets"
    named = {
        target
        for path in targets.glob("*.yml")
        for group in yaml.safe_load(path.read_text())
        for target in group["targets"]
    }
    ports = {"coordinator": 7445, **dict.fromkeys(SILOS, 7446)}
    assert named == {f"{name}:{port}" for name, port in ports.items()}
    words = services["prometheus"]["command"]
    (config,) = [w.partition("=")[2] for w in words if w.startswith("--config.file=")]
    (mounted,) = [v for v in services["prometheus"]["volumes"] if v["type"] == "bind"]
    path = Path(mounted["source"]) / Path(config).relative_to(mounted["target"])
    (job,) = [
        one
        for one in yaml.safe_load(path.read_text())["scrape_configs"]
        if one["job_name"] == "chorale-silo"
    ]
    # What one silo learned is shown to nobody else in the network.
    assert job["scheme"] == "https"
    shown = (job["tls_config"]["ca_file"], job["authorization"]["credentials_file"])
    for silo in SILOS:
        environment = services[silo]["environment"]
        assert environment["CHORALE_SILO_PROBES_LISTEN"] == "0.0.0.0:7446"
        names = ("PROBES_CERTIFICATE", "PROBES_TOKEN_FILE")
        assert tuple(environment[f"CHORALE_SILO_{name}"] for name in names) == shown
    assert users_of(services, "metrics-access") == {*SILOS, "prometheus", "metrics-access"}


def test_grafana_finds_what_is_provisioned(services):
    grafana = services["grafana"]
    mounted = {v["target"]: Path(v["source"]) for v in grafana["volumes"] if v["type"] == "bind"}
    provisioning = mounted["/etc/grafana/provisioning"]
    for path in provisioning.rglob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        for provider in content.get("providers", ()):
            dashboards = mounted[provider["options"]["path"]]
            assert len(list(dashboards.glob("*.json"))) == 2
        for source in content.get("datasources", ()):
            assert source["url"] == "http://prometheus:9090"
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/" + next(
        secret["source"] for secret in grafana["secrets"]
    )


def test_the_plan_fits_the_base_model_of_the_images():
    plan = read_plan((DIRECTORY / "plan.toml").read_bytes())
    assert plan.model.base == IN_IMAGE
    base = ROOT / "lab" / "base_model"
    assert plan.model.base_sha256 == base_sha256(base)
    copies = {
        name: dockerfile.read(ROOT / "deploy" / "images" / f"{name}.Dockerfile").final.of("COPY")
        for name in ("coordinator", "silo")
    }
    assert f"lab/base_model {IN_IMAGE}" in copies["silo"]
    assert f"lab/base_model/config.json {IN_IMAGE}/config.json" in copies["coordinator"]


def test_the_plan_is_what_the_silos_allow(tmp_path):
    plan = read_plan((DIRECTORY / "plan.toml").read_bytes())
    write_for_plan(tmp_path / "policy.toml", plan)
    assert Policy.load(tmp_path / "policy.toml").privacy.caps()["task"] <= 8
    assert charges_of_run(plan)
