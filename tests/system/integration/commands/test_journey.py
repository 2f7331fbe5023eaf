"""The whole journey, typed as an admin and four operators type it, on an installed wheel.

Two installations: the coordinator's is a new environment with the wheel and what it asks for, and
has no torch; the silos' has the wheel too and finds the heavy packages where the tests have theirs.
Nobody's commands see another one's directory, and everybody works in a directory of their own, with
the commands of the operator's handbook and no option that it does not show, but for free ports.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.loopback import free_port
from tests.kit.paths import ROOT
from tests.kit.waiting import until
from tests.system.integration.commands import tutorial

pytestmark = pytest.mark.long

SILOS = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
PLAN = (ROOT / "deploy" / "examples" / "plan-record-local.toml").read_text()
COMMAND_S = 240


def install(directory: Path, wheel: Path, *, whole: bool) -> Path:
    """A new environment with the wheel; if not whole, the rest is the tests' own."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-warn-conflicts"]
    pip += ["--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(pip if whole else [*pip, "--no-deps"], check=True)
    if not whole:
        (site,) = directory.glob("lib/python*/site-packages")
        # Behind the environment's own: the project under test is the wheel.
        (site / "heavy.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return directory / "bin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--wheel-dir", directory, ROOT],
        check=True,
    )  # fmt: skip
    (wheel,) = directory.glob("chorale-*.whl")
    coordinator = install(directory / "coordinator", wheel, whole=True)
    silo = install(directory / "silo", wheel, whole=False)
    for python, heavy in ((coordinator / "python", False), (silo / "python", True)):
        said = subprocess.run(
            [python, "-c", "import torch, server; print(server.__file__)"],
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (said.returncode == 0) == heavy, said.stderr
        assert str(ROOT) not in said.stdout
    return coordinator, silo


@dataclass
class Person:
    """Somebody at a keyboard: an installation, a directory, and what was typed."""

    bin: Path
    home: Path
    typed: list[str] = field(default_factory=list)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(mode=0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CHORALE"))}
        self.environment = {**kept, "HOME": str(self.home), "OMP_NUM_THREADS": "1"}

    def types(self, line: str, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        self.typed.append(line)
        words = line.split()
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.home, env=self.environment, capture_output=True, text=True,
            timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert code is None or done.returncode == code, (
            f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done

    def asks(self, line: str) -> dict:
        envelope = json.loads(self.types(f"{line} --format json").stdout)
        assert envelope["status"] == "ok"
        return envelope["data"]

    def starts(self, line: str) -> subprocess.Popen[bytes]:
        self.typed.append(line)
        words = line.split()
        log = (self.home / f"{words[0]}.log").open("ab")
        with log:
            daemon = subprocess.Popen(
                [str(self.bin / words[0]), *words[1:]],
                cwd=self.home, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        self.daemons.append(daemon)
        return daemon

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.home.glob("*.log"))

    def stops(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def run_toml(base: Path, digest: str, *, name: str) -> str:
    """The shipped example for record-level privacy, as small as a test needs it."""
    changes = {
        "name": f'"{name}"', "base": f'"{base}"', "base_sha256": f'"{digest}"',
        "episodes_per_round": "24", "window": "1", "noise_multiplier": "1.6",
        "sampling_rate": "0.5", "expected_units": "3", "steps_per_round": "2", "n_min": "3",
        "count": "2", "ready_deadline_s": "150", "ready_after_s": "30", "phase_deadline_s": "20",
    }  # fmt: skip
    text = PLAN
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    text = text.replace("phase_deadline_s = 20", "phase_deadline_s = 20\nquorum = 3")
    # So small a run learns nothing under noise, and says so beforehand.
    return text.replace("min_cosine = 0.5", "min_cosine = 0.5\naccept_low_cosine = true")


@pytest.fixture
def people(installed, tmp_path):
    for_coordinator, for_silos = installed
    everyone = {
        "root": Person(for_coordinator, tmp_path / "root-holder"),
        "admin": Person(for_coordinator, tmp_path / "admin"),
        **{silo: Person(for_silos, tmp_path / silo) for silo in SILOS},
    }
    yield everyone
    for person in everyone.values():
        person.stops()


def founded(people) -> tuple[Person, int]:
    """Root, coordinator, federation, four members, a roster."""
    root, admin = people["root"], people["admin"]
    main, enrol, probes = (free_port() for _ in range(3))
    root.types("chorale root init --dir root")
    shutil.copy(root.home / "root" / "root.pub", admin.home / "root.pub")
    admin.types(
        "chorale init --host 127.0.0.1 --root-certificate root.pub --dir chorale-data "
        f"--listen 127.0.0.1:{main} --enrol-listen 127.0.0.1:{enrol} "
        f"--probes-listen 127.0.0.1:{probes}"
    )
    admin.types("chorale doctor")
    admin.starts("chorale-coordinator serve")
    until(lambda: ready(probes), "the coordinator is ready")
    admin.types(
        "chorale federation create oncology --min-silos 3 --colluding 1 --epsilon-cap 8 "
        "--delta 1e-5"
    )
    for silo in SILOS:
        invite = admin.types(f"chorale invite oncology {silo} --ttl 24h").stdout.strip()
        people[silo].types(f"chorale-silo join {invite} --base-model {ROOT / 'lab/base_model'}")
    sign_roster(people)
    return admin, probes


def sign_roster(people) -> None:
    root, admin = people["root"], people["admin"]
    admin.types("chorale roster propose")
    shutil.move(admin.home / "roster.json", root.home / "roster.json")
    root.types("chorale root sign roster.json --dir root --yes")
    shutil.move(root.home / "roster.signed.json", admin.home / "roster.signed.json")
    admin.types("chorale roster publish roster.signed.json")


def prepared(silo: Person, index: int, plan: str) -> None:
    """What an operator edits and checks before the daemon runs."""
    config = silo.home / "silo-data" / "silo.toml"
    text = re.sub(r"(?m)^(environments|evaluate|seed|probes_listen)\b.*\n", "", config.read_text())
    config.write_text(
        f'environments = ["craft"]\nevaluate = false\nseed = {index}\n'
        f'probes_listen = "127.0.0.1:0"\n{text}'
    )
    tomllib.loads(config.read_text())
    (silo.home / "run.toml").write_text(plan)
    refused = silo.types("chorale-silo policy check run.toml", code=1)
    assert "refused by rule" in refused.stdout
    silo.types("chorale-silo policy init --plan run.toml")
    silo.types("chorale-silo policy check run.toml")
    silo.types("chorale-silo doctor")


def test_from_nothing_to_an_adapter_and_out_again(people):
    admin, probes = founded(people)
    digest = people["hospital-a"].asks("chorale-silo status")["base_sha256"]
    plan = run_toml(ROOT / "lab" / "base_model", digest, name="first")
    for index, silo in enumerate(SILOS):
        prepared(people[silo], index, plan)
        people[silo].starts("chorale-silo run")
    (admin.home / "run.toml").write_text(plan)
    forecast = admin.asks("chorale run plan run.toml")
    assert 0 < forecast["epsilon_total"]["task"]["epsilon"] <= 8
    run = admin.asks("chorale run start run.toml -f oncology --submit-token T")["run_id"]
    assert admin.asks("chorale run start run.toml -f oncology --submit-token T")["run_id"] == run

    watched = admin.types(f"chorale run watch {run} --format jsonl").stdout.splitlines()
    statuses = [json.loads(line) for line in watched]
    assert statuses[-1]["run"]["state"] == "finished"
    done = [r for status in statuses for r in status.get("finished", ())]
    assert [(r["round"], r["outcome"]) for r in done] == [(1, "aggregated"), (2, "aggregated")]
    assert all(len(r["survivors"]) >= 3 for r in done)

    admin.types(f"chorale adapter list {run}")
    best = admin.types(f"chorale adapter export {run} --round best -o out/")
    # So few episodes may drown in the figures' own noise, and then no round is said to be the best.
    said = best.stdout + best.stderr
    assert ("no round is told from the others" in said) != ("with this adapter" in said)
    card = (admin.home / "out" / "README.md").read_text()
    assert "oncology" in card
    loads = (
        "import sys, warnings; warnings.simplefilter('ignore'); from peft import PeftModel; "
        "from transformers import AutoModelForCausalLM as M; "
        "PeftModel.from_pretrained(M.from_pretrained(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run(
        [people["hospital-a"].bin / "python", "-c", loads, ROOT / "lab" / "base_model",
         admin.home / "out"],
        check=True, capture_output=True,
    )  # fmt: skip
    budget = admin.asks("chorale budget")
    assert [r["run_id"] for r in budget["runs"]] == [run]
    assert {head["silo_id"] for head in budget["heads"]} == set(SILOS)
    admin.types("chorale audit verify")
    admin.types("chorale audit export --out audit.jsonl")
    admin.types("chorale doctor")
    for silo in SILOS:
        person = people[silo]
        (spent,) = [u for u in person.asks("chorale-silo budget")["units"] if u["unit"] == "task"]
        assert 0 < spent["epsilon_spent"]["epsilon"] <= 8
        person.types("chorale-silo audit verify")
        person.types("chorale-silo runs")
        person.types(f"chorale-silo preview {run}")
        person.types("chorale-silo doctor")

    # One is revoked: its live daemon is refused at its next call, the others go on without it.
    admin.types("chorale silo revoke hospital-d --reason left-the-consortium")
    log = people["hospital-d"].log
    until(lambda: "certificate_revoked" in log(), "hospital-d hears of it", told=log, within_s=90)
    states = {s["silo_id"]: s["state"] for s in admin.asks("chorale silo list")["silos"]}
    assert states == {**dict.fromkeys(SILOS[:3], "rostered"), "hospital-d": "revoked"}
    sign_roster(people)

    # A second run waits for approval by hand at one site, is paused, resumed, and aborted.
    again = run_toml(ROOT / "lab" / "base_model", digest, name="second")
    (admin.home / "second.toml").write_text(again)
    second = admin.asks("chorale run start second.toml -f oncology --submit-token U")["run_id"]
    admin.types(f"chorale run pause {second}")
    assert state_of(admin, second) == "paused"
    admin.types(f"chorale run resume {second}")
    admin.types(f"chorale run abort {second}")
    assert state_of(admin, second) == "aborted"

    # One leaves, and takes what is its own along.
    people["hospital-c"].types("chorale-silo leave --drain --revoke --wipe --yes")
    states = {s["silo_id"]: s["state"] for s in admin.asks("chorale silo list")["silos"]}
    assert states["hospital-c"] == "revoked"
    assert not (people["hospital-c"].home / "silo-data" / "identity").exists()

    # Nothing of the root was ever on the coordinator's side, and nobody saw a traceback.
    secret = (people["root"].home / "root" / "root.key").read_bytes()
    for path in admin.home.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes(), path
    for person in people.values():
        assert "Traceback" not in person.log()
    assert ready(probes)


def state_of(admin: Person, run: str) -> str:
    (found,) = [r for r in admin.asks("chorale run list")["runs"] if r["run_id"] == run]
    return found["state"]


def test_the_tutorial_says_what_its_commands_say(installed, tmp_path):
    """docs/tutorial.md, typed on the silos' installation, which has the coordinator's commands."""
    _, for_silos = installed
    laptop = tutorial.Laptop(
        home=tmp_path / "checkout" / "try", bin=for_silos, ports=tutorial.free_ports()
    )
    try:
        differ = [
            f"$ {command}\n{said}\nthe page has:\n{wanted}"
            for command, wanted, said in tutorial.typed(laptop, tutorial.PAGE.read_text())
            if not tutorial.fits(said, wanted)
        ]
        assert not differ, "\n\n".join(differ)
        assert "adapter_model.safetensors" in {path.name for path in laptop.home.rglob("*")}
    finally:
        laptop.stops()


@pytest.mark.parametrize(
    ("said", "page", "same"),
    [
        ("round 1: 31.2 %\n", "round 3: 4 %\n", True),
        ("key 1f3c:77a0:aa31\n", "key 8b1a:9953:c461\n", True),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a\nc\n", "a\n…\nc\n", True),
        ("a\nb\n", "a\n…\nc\n", False),
        ("refused\n", "accepted\n", False),
        ("a\nb\n", "a\n", False),
    ],
)
def test_an_output_is_held_to_the_page_but_for_its_figures(said, page, same):
    assert tutorial.fits(said, page) == same
