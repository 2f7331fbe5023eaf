"""A whole round of real learning with planted secrets: none is found where it has no business.

Three silos explore a plug-in environment whose every text holds a marker, import demonstrations
that hold one, train the small base model, and upload under masks, over mutual TLS, in processes of
their own; the coordinator and the silos export spans. Afterwards everything that the coordinator
holds, says or is sent is searched, and so are the silos' logs.

Failures: a secret in the coordinator's log, files, database, metrics, status page or spans, in the
bytes on the wire, or in a log of a silo; a byte on the gRPC ports that is not in a TLS record; a
search that would not find what is there. Not failures: a secret in its own silo's directory, and
the coordinator's own keys in their own files.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from federation.membership.invite import parse_invite
from lab.demo.choices import Privacy
from lab.demo.recipe import RECIPES
from lab.demo.run import BASE_MODEL
from lab.loopback import LoopbackFederation, free_port
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.otlp_collector import Collector
from tests.kit.processes.leak_search import (
    database,
    files,
    forms,
    hits,
    key_needles,
    not_tls,
    number_needles,
    streams,
)
from tests.kit.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("leaks")]

SILOS = ("hospital-a", "hospital-b", "hospital-c")
HELD_OUT = 12
PLACES = ("log", "files", "database", "metrics", "spans")
KINDS = ("prompt", "observation", "subject", "error", "demonstration")


def marks(index):
    """Words that no program writes by itself, and a reward that nothing else comes to."""
    words = {kind: f"zq{kind}vx{index}81w" for kind in KINDS}
    return {**words, "reward": 0.731259467 + index / 1000}


# The federation ---------------------------------------------------------------------------------


class Planted(LoopbackFederation):
    """Silos have the plug-in and their records; every party has a collector of its own."""

    site: Path
    collectors: dict[str, Collector]
    secrets: list[bytes]
    """Of invites: the bytes that make one worth stealing."""

    def python(self, party):
        kind = "coordinator" if party == "coordinator" else "silo"
        words = self.collectors[kind].environment
        if kind == "silo":
            here = os.environ.get("PYTHONPATH", "")
            words = words | {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(self.site), here))),
                "WARD_RECORDS": str(self.records(party)),
            }
        return ("env", *(f"{name}={value}" for name, value in words.items()), sys.executable)

    def records(self, silo_id):
        return self.directory / "records" / f"{silo_id}.json"

    def chorale(self, *arguments):
        data = super().chorale(*arguments)
        if arguments[0] == "invite":
            self.secrets.append(parse_invite(data["invite"]).secret)
        return data


def install_plugin(site):
    """What `pip install` leaves behind."""
    site.mkdir()
    shutil.copy(Path(__file__).with_name("ward_environment.py"), site / "ward_environment.py")
    info = site / "ward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[chorale.environments]\nward = ward_environment:Ward\n")


def plan_toml():
    recipe = replace(RECIPES[Privacy.NONE], rounds=1, episodes=36, epochs=1)
    toml = recipe.toml(
        name="leaks",
        base=str(BASE_MODEL.resolve()),
        base_sha256=base_sha256(BASE_MODEL),
        environments=("ward",),
        seed=0,
        held_out=HELD_OUT,
    )
    toml = toml.replace('method = "fed-se"\n', 'method = "fed-se"\nuse_expert = true\n')
    # Each task has tries before and after its silo's model wrote about some.
    toml = toml.replace("\n[aggregation]", '\n[evolve.parts]\nplay = "principles"\n\n[aggregation]')
    # As much as can leave a silo leaves it.
    toml = toml.replace("\ngrid = ", "\nexact_figures = true\ngrid = ")
    return re.sub("phase_deadline_s = [0-9]+", "phase_deadline_s = 30", toml)


def configure(loopback, index, silo_id):
    directory, mine = loopback.silo_dir(silo_id), marks(index)
    (directory / "silo.toml").write_text(
        f'base_model = "{BASE_MODEL.resolve()}"\nplugins = ["ward"]\nenvironments = ["ward"]\n'
        f'threads = 1\nseed = {index + 1}\nprobes_listen = "127.0.0.1:0"\n'
    )
    turns = [
        {"from": "human", "loss": None, "value": "look after them"},
        {"from": "gpt", "loss": False, "value": "OK"},
        {"from": "human", "loss": None, "value": f"patient {mine['demonstration']} is here"},
        {"from": "gpt", "loss": True, "value": "look"},
    ]
    given = loopback.directory / "records" / f"{silo_id}.jsonl"
    lines = [{"conversations": turns, "item_id": f"ward_{n}"} for n in range(3)]
    given.write_text("\n".join(map(json.dumps, lines)) + "\n")
    at = ("--data", str(directory))
    plan = str(loopback.directory / "plan.toml")
    loopback.silo("policy", "init", "--plan", plan, "--accept-no-privacy", *at)
    loopback.silo("buffer", "import", str(given), "--environment", "ward", *at)


class Scraper(threading.Thread):
    """Reads what the coordinator's probe port says, again and again."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.over = port, threading.Event()
        self.said: dict[str, list[bytes]] = {"/metrics": [], "/": [], "/readyz": []}

    def run(self):
        while not self.over.wait(0.3):
            self.read()

    def read(self):
        # The page of the run is added while this goes on.
        for path, kept in tuple(self.said.items()):
            with (
                contextlib.suppress(OSError, urllib.error.HTTPError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer,
            ):
                kept.append(answer.read())


# The wire ---------------------------------------------------------------------------------------


class Capture:
    """tshark on the loopback interface, on the gRPC ports and one that speaks in clear."""

    def __init__(self, directory, ports):
        self.clear, self.file, self.reason = free_port(), directory / "wire.pcapng", ""
        filters = " or ".join(f"tcp port {port}" for port in (*ports, self.clear))
        words = ["tshark", "-i", "lo", "-f", filters, "-B", "64", "-q", "-w", str(self.file)]
        self.process = None
        if shutil.which("tshark") is None:
            self.reason = "tshark is not installed"
            return
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "Capturing on" in line:
                break
        else:
            self.process.wait()
            self.process, self.reason = None, f"tshark may not capture here: {''.join(said)[:300]}"
            return
        self.drain = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.drain.start()
        # It says so a moment before it does so: until a packet is in the file it is not.
        until(self._captures, "tshark captures", within_s=30)

    def _captures(self):
        self.speak(b"warming up")
        return self.file.exists() and self.file.stat().st_size >= 500

    def speak(self, content):
        """Send bytes in clear over a connection that is captured."""
        with socket.create_server(("127.0.0.1", self.clear)) as server:
            with socket.create_connection(("127.0.0.1", self.clear)) as client:
                peer, _ = server.accept()
                client.sendall(content)
            with peer:
                while peer.recv(4096):
                    pass

    def stop(self):
        if self.process is not None and self.process.returncode is None:
            # What was sent last is on its way to the file.
            time.sleep(2)
            self.process.terminate()
            self.process.wait(30)
            self.drain.join(10)
            self.process.stderr.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    directory = tmp_path_factory.mktemp("leaks")
    install_plugin(directory / "site")
    with (
        Collector() as theirs,
        Collector() as ours,
        Planted(directory=directory / "federation") as loopback,
    ):
        loopback.site = directory / "site"
        loopback.collectors, loopback.secrets = {"coordinator": theirs, "silo": ours}, []
        (loopback.directory / "records").mkdir()
        for index, silo_id in enumerate(SILOS):
            loopback.records(silo_id).write_text(json.dumps(marks(index)))
        capture = Capture(directory, (loopback.port, loopback.enrol_port))
        try:
            yield played(loopback, capture, theirs, ours)
        finally:
            capture.stop()


def played(loopback, capture, theirs, ours):
    loopback.found()
    loopback.start_coordinator()
    scraper = Scraper(loopback.probes_port)
    scraper.start()
    for silo_id in SILOS:
        loopback.enrol(silo_id, base_model=BASE_MODEL)
    loopback.publish_roster(colluding=1)
    plan, adapter = loopback.directory / "plan.toml", loopback.directory / "initial.safetensors"
    plan.write_text(plan_toml())
    recipe = RECIPES[Privacy.NONE]
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    for index, silo_id in enumerate(SILOS):
        configure(loopback, index, silo_id)
        loopback.start_silo(silo_id)
    run_id = loopback.start_run(plan, adapter, token="leaks")
    statuses = list(loopback.watch(run_id))
    assert statuses[-1]["run"]["state"] == "finished", (statuses[-1], loopback.log(SILOS[0]))
    await_judged(loopback)
    ours.until(lambda spans: sum(span.name == "evaluate" for span in spans) >= len(SILOS))
    while_it_runs = files(loopback.data_dir)
    rows = database(loopback.data_dir / "coordinator.db")
    scraper.said[f"/runs/{run_id}"] = []
    scraper.read()
    scraper.over.set()
    scraper.join()
    if capture.process is not None:
        capture.speak(marks(0)["prompt"].encode())
    capture.stop()
    loopback.stop()
    after = files(loopback.data_dir)
    return SimpleNamespace(
        loopback=loopback,
        capture=capture,
        ports={loopback.port, loopback.enrol_port},
        needles=needles(loopback),
        statuses=statuses,
        silo_logs={silo_id: loopback.log(silo_id).encode() for silo_id in SILOS},
        places={
            "log": {"coordinator": loopback.log("coordinator").encode()},
            "files": {f"{moment} {name}": content
                      for moment, found in (("running", while_it_runs), ("stopped", after))
                      for name, content in found.items()},
            "database": rows,
            "metrics": {path: b"\n".join(kept) for path, kept in scraper.said.items()},
            "spans": {"coordinator": b"\n".join(theirs.bodies)},
        },
        silo_spans=b"\n".join(ours.bodies),
    )  # fmt: skip


def await_judged(loopback):
    for silo_id in SILOS:
        file = loopback.silo_dir(silo_id) / "evaluation.jsonl"
        until(
            lambda file=file: file.exists() and '"round":1,' in file.read_text(),
            f"{silo_id} judges round 1",
            told=partial(loopback.log, silo_id),
        )


# What is looked for -----------------------------------------------------------------------------


def needles(loopback):
    """By where they come from: ``silo`` secrets, ``root``, ``invite``, and ``coordinator`` keys."""
    found = {"silo": {}, "root": {}, "invite": {}, "coordinator": {}}
    for index, silo_id in enumerate(SILOS):
        directory, mine = loopback.silo_dir(silo_id), marks(index)
        for kind in KINDS:
            found["silo"] |= forms(f"{silo_id}'s {kind}", mine[kind].encode())
        found["silo"] |= number_needles(f"{silo_id}'s reward", mine["reward"])
        for pem in sorted(directory.rglob("*.key")):
            found["silo"] |= key_needles(f"{silo_id}'s {pem.name}", pem)
        found["silo"] |= figures_of(silo_id, directory)
        ledger = (directory / LEDGER_FILE).read_bytes()
        found["silo"] |= {
            f"{silo_id}'s ledger at {at}": ledger[at : at + 96]
            for at in range(0, len(ledger) - 96, 96)
        }
    found["root"] |= key_needles("the root's key", loopback.root_dir / "root.key")
    for number, secret in enumerate(loopback.secrets):
        found["invite"] |= forms(f"invite {number}", secret)
    for pem in sorted(loopback.data_dir.rglob("*.key")):
        found["coordinator"] |= key_needles(str(pem.relative_to(loopback.data_dir)), pem)
    return found


def figures_of(silo_id, directory):
    """Norms, losses and counts as the silo's own reports have them."""
    found = {}
    for line in (directory / "rounds.jsonl").read_text().splitlines():
        report = json.loads(line)
        figures = {"delta_norm": report["delta_norm"], **report["metrics"], **report["duration_s"]}
        for name, value in figures.items():
            found |= number_needles(f"{silo_id}'s {name}", float(value))
        for name in ("episodes", "successes"):
            for space in ("", " "):
                # To the end, or a count would be found in a sum that begins with its digits.
                count = f'"ward":{space}{report[name]["ward"]}' + "}"
                found[f"{silo_id}'s {name}{space}"] = count.encode()
    return found


def everybody(story):
    return {what: needle for found in story.needles.values() for what, needle in found.items()}


def foreign(story):
    """What the coordinator must not even have in a file of its own."""
    return {k: v for kind in ("silo", "root", "invite") for k, v in story.needles[kind].items()}


# The findings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_is_at_the_coordinator(story, place):
    haystacks = story.places[place]
    assert any(haystacks.values()), "nothing was searched"
    if place == "metrics":
        # Metrics, status page and the run's own page were all there to be searched.
        assert all(haystacks.values()), sorted(haystacks)
    assert hits(haystacks, foreign(story)) == set()


def test_the_coordinators_keys_are_in_their_own_files_alone(story):
    own = {name.removesuffix(".key") for name in files(story.loopback.data_dir)}
    elsewhere = {
        (place, what)
        for group in story.places.values()
        for place, what in hits(group, story.needles["coordinator"])
        if not place.endswith(".key")
    }
    assert own
    assert elsewhere == set()


@pytest.mark.parametrize("silo_id", SILOS)
def test_no_secret_is_in_a_silos_log_or_spans(story, silo_id):
    """Its own figures stay in its own files, and its errors say what failed and not on what."""
    log = story.silo_logs[silo_id]
    assert hits({"log": log, "spans": story.silo_spans}, everybody(story)) == set()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    events = [line["event"] for line in lines]
    # The bad guest was there, and each of its ways was taken.
    assert events.count("episode_dropped") > 1
    libraries = {line["library"] for line in lines if line["event"] == "foreign_log"}
    assert {"ward", "warnings"} <= libraries
    assert b"message withheld" in log


def test_nothing_had_to_be_redacted(story):
    for log in (*story.silo_logs.values(), story.places["log"]["coordinator"]):
        lines = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
        assert lines
        assert not [line for line in lines if "redacted" in line]


def test_the_admin_is_shown_sums_alone(story):
    shown = json.dumps(story.statuses).encode()
    assert hits({"statuses": shown}, foreign(story)) == set()
    (done,) = [done for status in story.statuses for done in status.get("finished", ())]
    assert set(done["survivors"]) == set(SILOS)


def test_only_tls_is_on_the_wire(story):
    if story.capture.reason:
        assert not os.environ.get("CI_REQUIRES_TSHARK"), story.capture.reason
        pytest.skip(f"{story.capture.reason}; CI_REQUIRES_TSHARK makes this a failure")
    raw = story.capture.file.read_bytes()
    sides = streams(story.capture.file)
    grpc = {side: sent for side, sent in sides.items() if story.ports & set(side[1:])}
    assert len(grpc) > 20
    assert sum(map(len, grpc.values())) > 1_000_000
    for side, sent in grpc.items():
        assert not_tls(sent) == "", side
    # Each secret in the capture as it is, but for the control's own words.
    control = {side: sent for side, sent in sides.items() if side not in grpc}
    found = {what for _, what in hits({"capture": raw, **named(grpc)}, everybody(story))}
    said = {what for _, what in hits(named(control), everybody(story))}
    assert found == said == {"hospital-a's prompt as raw"}
    assert hits(named(grpc), everybody(story)) == set()
    assert any(not_tls(sent) for sent in control.values())


def named(sides):
    return {str(side): sent for side, sent in sides.items()}


# The search is able to find ---------------------------------------------------------------------


@pytest.mark.parametrize("index", range(3))
def test_every_secret_is_where_it_belongs(story, index):
    """In the silo's own directory or records: so each of these needles was a real one."""
    silo_id, loopback = SILOS[index], story.loopback
    mine = {k: v for k, v in story.needles["silo"].items() if k.startswith(f"{silo_id}'s ")}
    records = loopback.records(silo_id)
    haystacks = files(loopback.silo_dir(silo_id)) | {
        "records": records.read_bytes(),
        "rewards": records.with_suffix(".rewards").read_bytes(),
    }
    found = {what for _, what in hits(haystacks, mine)}
    for kind in ("observation", "subject", "demonstration"):
        assert f"{silo_id}'s {kind} as raw" in found
    kept = [place for place, what in hits(haystacks, mine) if "'s observation" in what]
    assert any("successes.sqlite" in place for place in kept)
    # Whose principles they are; what they say is the small base's own.
    whose = [
        place for place, what in hits(haystacks, mine) if what == f"{silo_id}'s subject as raw"
    ]
    assert any("principles.sqlite" in place for place in whose)
    assert f"{silo_id}'s reward as text" in found
    assert f"{silo_id}'s delta_norm as text" in found
    for key in ("leaf.key", "protocol.key"):
        assert any(what.startswith(f"{silo_id}'s {key} as PEM") for what in found)
    ledger = {what for what in mine if "'s ledger at" in what}
    assert ledger
    assert ledger <= found
    counted = {f"{silo_id}'s episodes", f"{silo_id}'s successes"}
    assert counted <= found


def test_what_is_planted_at_the_coordinator_is_found(story, tmp_path):
    mine, wanted = marks(1), story.needles["silo"]
    log = story.places["log"]["coordinator"]
    line = json.dumps({"event": "silo_joined", "silo": mine["prompt"]}).encode()
    assert hits({"log": log + line}, wanted) == {("log", "hospital-b's prompt as raw")}
    copy = tmp_path / "coordinator.db"
    shutil.copy(story.loopback.data_dir / "coordinator.db", copy)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("CREATE TABLE planted (a BLOB, b REAL, c TEXT)")
        row = (mine["subject"].encode().hex(), mine["reward"], json.dumps([mine["error"]]))
        connection.execute("INSERT INTO planted VALUES (?, ?, ?)", row)
        connection.commit()
    assert {what for _, what in hits(database(copy), wanted)} == {
        "hospital-b's subject as hex",
        "hospital-b's reward as text",
        "hospital-b's error as raw",
    }
    assert ("x", "hospital-b's reward as double") in hits(
        {"x": struct.pack("<d", mine["reward"])}, wanted
    )
    key = story.loopback.silo_dir(SILOS[1]) / "identity" / "protocol.key"
    assert hits({"x": key.read_bytes()[40:]}, wanted)


@pytest.mark.parametrize("shift", range(3))
def test_base64_is_found_at_every_alignment(shift):
    import base64

    wanted = forms("a", b"zqpromptvx081w")
    text = base64.b64encode(b"x" * shift + b"zqpromptvx081w, and more")
    assert hits({"x": text}, wanted)


def test_what_is_not_tls_is_told_from_what_is():
    record = b"\x17\x03\x03\x00\x05hello"
    assert not_tls(record * 3) == not_tls(record + record[:7]) == not_tls(b"") == ""
    for other in (b"GET / HTTP/1.1\r\n", record + b"plain", b"\x17\x03\x03\xff\xff", b"PRI * HTTP"):
        assert not_tls(other)
