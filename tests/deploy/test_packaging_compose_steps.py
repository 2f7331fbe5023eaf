"""The compose file's own steps, run in their order: from nothing to a published roster.

The scripts run with the shell that runs them in a container, with the paths of this test in the
place of the container's, and with the real coordinator. Run twice, they change nothing. Covered:
the scripts, the order that ``depends_on`` gives them, who sees what. Not covered: containers.
"""

import re
import signal
import socket
import ssl
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from lab.loopback import free_port
from ops.probes.metrics import MetricsAccess
from ops.probes.server import Probes
from ops.probes.tls import ProbeTls
from tests.kit.paths import ROOT
from tests.kit.waiting import until

pytestmark = pytest.mark.long

COMPOSE = ROOT / "deploy" / "compose"
BIN = Path(sys.executable).parent
LIMIT_S = 120


class Machine:
    """Volumes as directories; each service sees the ones that it mounts, under its own paths."""

    def __init__(self, directory):
        self.directory = directory
        self.services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
        self.ports = [free_port() for _ in range(3)]
        (directory / "scripts").mkdir()
        (directory / "tmp").mkdir()

    def volume(self, name):
        place = self.directory / "volumes" / name
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place

    def places(self, service):
        """Container path to path here, the longest first."""
        found = {"/opt/chorale/share/base-model": ROOT / "lab" / "base_model"}
        for mounted in self.services[service].get("volumes", ()):
            source, target = mounted.split(":")[:2]
            found[target] = COMPOSE / source if source[0] == "." else self.volume(source)
        return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))

    def environment(self, service):
        main, enrol, probes = self.ports
        data = self.places(service).get("/var/lib/chorale", self.directory / "none") / "data"
        return {
            "PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(self.directory / "tmp"),
            "LC_ALL": "C.UTF-8",
            "CHORALE_DATA": str(data), "CHORALE_SILO_DATA": str(data),
            "CHORALE_COORDINATOR_LISTEN": f"127.0.0.1:{main}",
            "CHORALE_COORDINATOR_ENROL_LISTEN": f"127.0.0.1:{enrol}",
            "CHORALE_COORDINATOR_PROBES_LISTEN": f"127.0.0.1:{probes}",
            # In the containers' network the coordinator is found by this name.
            "CHORALE_COORDINATOR_COORDINATOR_ADDRESS": f"localhost:{main}",
            "CHORALE_COORDINATOR_ENROL_ADDRESS": f"localhost:{enrol}",
        }  # fmt: skip

    def script(self, service):
        """The service's script, with paths of this machine."""
        shell, script, *arguments = self.services[service]["command"]
        assert shell == "sh"
        places = self.places(service)
        text = (places["/steps"] / Path(script).name).read_text()
        for container, here in places.items():
            text = re.sub(rf"{container}(?![\w-])", str(here), text)
        left = re.findall(r"(?:/var/lib|/exchange|/etc/chorale|/opt/chorale)\S*", text)
        left = [path for path in left if not path.startswith(str(self.directory))]
        assert not left, f"{service} uses what it does not mount: {left}"
        place = self.directory / "scripts" / f"{service}.sh"
        place.write_text(text)
        return [str(place), *arguments]

    def runs(self, service):
        done = subprocess.run(
            ["sh", *self.script(service)],
            env=self.environment(service), cwd=self.directory / "tmp", capture_output=True,
            text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{service}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def serves(self):
        log = (self.directory / "coordinator.log").open("ab")
        with log:
            daemon = subprocess.Popen(
                [BIN / self.services["coordinator"]["command"][0], "serve"],
                env=self.environment("coordinator"), stdout=log, stderr=log,
            )  # fmt: skip
        health = ROOT / "deploy" / "images" / "health.py"
        url = f"http://127.0.0.1:{self.ports[2]}/readyz"
        asking = [sys.executable, "-IS", health, url]
        until(
            lambda: not subprocess.run(asking, check=False, capture_output=True).returncode,
            "the coordinator is ready",
            told=(self.directory / "coordinator.log").read_text,
            within_s=60,
        )
        return daemon

    def asks(self, *words):
        done = subprocess.run(
            [BIN / "chorale", *words], env=self.environment("coordinator"),
            capture_output=True, text=True, check=True, cwd=self.directory / "tmp",
        )  # fmt: skip
        return done.stdout + done.stderr


def order(services):
    """The steps up to the roster, as Docker Compose starts them."""
    graph = {name: set(service.get("depends_on", ())) for name, service in services.items()}
    for name, service in services.items():
        # Merged in YAML, and read here without Compose: one's own goes before the anchor's.
        graph[name] |= (
            {"coordinator"} if "coordinator" in service.get("network_mode", "") else set()
        )
    wanted, waiting = set(), ["publish-roster"]
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting += graph[name] - wanted
    return [name for name in TopologicalSorter(graph).static_order() if name in wanted]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_steps_make_a_federation_and_repeating_them_changes_nothing(machine):
    steps = order(machine.services)
    assert len(steps) == 15
    daemon, said = None, {}
    try:
        for step in steps:
            if step == "coordinator":
                daemon = machine.serves()
            else:
                said[step] = machine.runs(step)
        assert "epoch 1" in machine.asks("roster", "export", "--out", "first.json")
        silos = machine.asks("silo", "list")
        assert re.findall(r"(?m)^(\S+)\s+rostered", silos) == [
            "silo-a",
            "silo-b",
            "silo-c",
            "silo-d",
        ]
        keys = secrets_of(machine)
        # What a person wrote into a policy stays.
        policy = machine.volume("silo-b") / "data" / "policy.toml"
        policy.write_text(policy.read_text() + "# ours\n")
        edited = policy.read_text()

        for step in steps:
            if step != "coordinator":
                said[step] = machine.runs(step)
        assert secrets_of(machine) == keys
        assert "stays as it is" in said["join-b"]
        assert policy.read_text() == edited
        assert machine.asks("silo", "list").count("rostered") == 4
        machine.asks("roster", "export", "--out", "again.json")
        tmp = machine.directory / "tmp"
        assert (tmp / "again.json").read_bytes() == (tmp / "first.json").read_bytes()
        only_where_it_belongs(machine, keys)
    finally:
        if daemon is not None:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    assert daemon.returncode == 0


def test_the_silos_show_their_metrics_with_what_the_step_makes(machine):
    machine.runs("metrics-access")
    made = machine.volume("metrics-access")
    content = {path.name: path.read_bytes() for path in made.iterdir()}
    assert content.keys() == {"probes.pem", "probes.key", "token"}
    assert (made / "probes.key").stat().st_mode & 0o077 == 0
    machine.runs("metrics-access")
    assert {path.name: path.read_bytes() for path in made.iterdir()} == content
    tls = ProbeTls.of_files(made / "probes.pem", made / "probes.key")
    access = MetricsAccess(host="0.0.0.0", encrypted=True, token_file=made / "token")
    probes = Probes(
        listen="127.0.0.1:0", registry=CollectorRegistry(), checks={}, metrics=access, tls=tls
    )
    probes.start()
    try:
        context = ssl.create_default_context(cafile=made / "probes.pem")
        raw = socket.create_connection(("127.0.0.1", probes.port))
        with raw, context.wrap_socket(raw, server_hostname="silo-c") as connection:
            token = content["token"].strip()
            connection.sendall(
                b"GET /metrics HTTP/1.0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
            )
            assert b" 200 " in connection.recv(64)
    finally:
        probes.close()


def secrets_of(machine):
    """Every private key of the federation, by its volume."""
    root = machine.volume("root-key") / "root" / "root.key"
    found = {"root-key": root.read_bytes()}
    found["coordinator"] = (machine.volume("coordinator") / "data" / "protocol.key").read_bytes()
    for silo in ("silo-a", "silo-b", "silo-c", "silo-d"):
        key = machine.volume(silo) / "data" / "identity" / "protocol.key"
        found[silo] = key.read_bytes()
    assert len(set(found.values())) == 6
    return found


def only_where_it_belongs(machine, keys):
    """No volume holds another one's key."""
    for place in sorted((machine.directory / "volumes").iterdir()):
        volume = place.name
        for path in place.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                held = {name for name, key in keys.items() if key in content}
                assert held <= {volume}, path
