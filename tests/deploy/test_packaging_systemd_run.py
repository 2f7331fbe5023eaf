"""The units under the real systemd: installed, founded and started by the printed commands.

A machine of the tests' own runs systemd as its first process; chorale is installed into it from its
wheel. Covered: both daemons start, serve, are restarted and stop under the whole sandbox; local
training works there; and what the sandbox forbids fails for code that runs inside it, although the
same code can do it outside. Not covered: GPUs; the network of other machines.
"""

import json
import re
import shutil
import textwrap
import time

import pytest

from tests.deploy import systemd_machine
from tests.kit.deploy.packaged import build_wheel, system_python
from tests.kit.paths import ROOT
from tests.kit.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("packaging_systemd")]

COORDINATOR, SILO = "chorale-coordinator", "chorale-silo"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    reason = systemd_machine.unavailable()
    if reason:
        pytest.skip(reason)
    python = system_python()
    if python is None:
        pytest.skip("needs a Python of this version that is not in a home directory")
    directory = tmp_path_factory.mktemp("machine")
    given = tmp_path_factory.mktemp("given")
    wheel = build_wheel(given)
    shutil.copytree(ROOT / "lab" / "base_model", given / "base")
    given.chmod(0o755)
    started = systemd_machine.SystemdMachine(directory, given=given)
    try:
        started.runs(python, "-m", "venv", "/opt/chorale")
        started.runs("/opt/chorale/bin/pip", "install", "--quiet", "--no-deps", "--no-index",
                     f"/opt/given/{wheel.name}")  # fmt: skip
        # Behind the environment's own packages: chorale is the wheel's.
        started.runs(
            "sh", "-c", "echo /opt/packages >$(echo /opt/chorale/lib/*/site-packages)/x.pth"
        )
        yield started
    finally:
        started.close()


def deploys(machine, command, out):
    """The envelope's data of a deploy command, typed inside."""
    done = machine.runs(f"/opt/chorale/bin/{command}", "deploy", "systemd", "--out", out,
                        "--format", "json")  # fmt: skip
    return json.loads(done.stdout)["data"]


def answers(machine, port, path):
    """The status of a GET inside the machine; 0 without an answer."""
    asking = (
        "import http.client as h, sys; c = h.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
        "c.request('GET', sys.argv[2]); print(c.getresponse().status)"
    )
    done = machine.runs("/opt/chorale/bin/python", "-c", asking, str(port), path, code=None)
    return int(done.stdout or 0)


@pytest.fixture(scope="module")
def coordinator(machine):
    """Deployed, founded and started as the command says."""
    data = deploys(machine, "chorale", "/opt/written/coordinator")
    assert data["warnings"] == []
    machine.runs("/opt/chorale/bin/chorale", "root", "init", "--dir", "/opt/root")
    machine.runs("install", "-D", "-m", "644", "/opt/root/root.pub", "/opt/public/root.pub")
    for step in data["next_steps"]:
        machine.types(step.replace("root.pub", "/opt/public/root.pub"))
    until(lambda: answers(machine, 7445, "/readyz") == 200, "the coordinator is ready")
    return machine


def admin(machine, *words):
    done = machine.types(
        f"sudo -u chorale /opt/chorale/bin/chorale {' '.join(words)} --data /var/lib/chorale "
        "--format json"
    )
    return json.loads(done.stdout)["data"]


def test_the_coordinator_serves_as_its_own_account_without_rights(coordinator):
    assert coordinator.property(f"{COORDINATOR}.service", "ActiveState") == "active"
    pid = coordinator.property(f"{COORDINATOR}.service", "MainPID")
    status = coordinator.runs("cat", f"/proc/{pid}/status").stdout
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000",
                 "CapBnd:\t0000000000000000"):  # fmt: skip
        assert line in status
    user = coordinator.runs("id", "-u", "chorale").stdout.strip()
    assert f"Uid:\t{user}\t{user}" in status
    kept = coordinator.runs("stat", "-c", "%a %U", "/var/lib/chorale").stdout.split()
    assert kept == ["700", "chorale"]
    assert answers(coordinator, 7445, "/metrics") == 200
    admin(coordinator, "federation", "create", "oncology")


def test_a_backup_is_made_as_the_timer_starts_it(coordinator):
    assert coordinator.property("chorale-backup.timer", "ActiveState") == "active"
    coordinator.runs("systemctl", "start", "chorale-backup.service")
    assert coordinator.property("chorale-backup.service", "Result") == "success"
    (made,) = coordinator.runs("ls", "/var/lib/chorale-backups").stdout.split()
    assert re.fullmatch(r"coordinator-\d{8}T\d{6}Z\.backup", made)
    kept = coordinator.runs("stat", "-c", "%a %U", "/var/lib/chorale-backups").stdout.split()
    assert kept == ["700", "chorale"]


def test_it_is_started_again_when_it_is_killed_and_stops_in_order(coordinator):
    unit = f"{COORDINATOR}.service"
    coordinator.runs("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
    until(lambda: coordinator.property(unit, "NRestarts") == "1", "the unit is started again")
    until(lambda: answers(coordinator, 7445, "/readyz") == 200, "it is ready")
    begun = time.monotonic()
    coordinator.runs("systemctl", "stop", unit)
    assert time.monotonic() - begun < 15
    assert coordinator.property(unit, "Result") == "success"
    last = coordinator.runs("tail", "-n", "1", "/var/lib/chorale/audit.jsonl").stdout
    assert "coordinator_stopped" in last
    coordinator.runs("systemctl", "start", unit)
    until(lambda: answers(coordinator, 7445, "/readyz") == 200, "it is ready")


@pytest.fixture(scope="module")
def silo(coordinator):
    """A member's daemon beside it, deployed and joined as the command says."""
    data = deploys(coordinator, "chorale-silo", "/opt/written/silo")
    names = {s["name"] for s in (admin(coordinator, "federation", "show"),)}
    assert names == {"oncology"}
    # The server's certificate is for the printed example's host, which is this machine here.
    coordinator.runs("sh", "-c", "echo '127.0.0.1 localhost coord.example.org' >/etc/hosts")
    invite = admin(coordinator, "invite", "oncology", "hospital-a")["invite"]
    coordinator.runs("cp", "-r", "/opt/given/base", "/srv/base")
    for step in data["next_steps"]:
        if " join " in step:
            line = step.replace("/srv/models/BASE", "/srv/base").replace(
                "join", f"join {invite}", 1
            )
            coordinator.types(line)
            config = "/var/lib/chorale-silo/silo.toml"
            coordinator.runs("sed", "-i", 's/^environments = .*/environments = ["craft"]/', config)
        else:
            coordinator.types(step)
    return coordinator


def test_a_silo_serves_and_reaches_the_coordinator(silo):
    unit = f"{SILO}.service"
    address = "/var/lib/chorale-silo/probes.address"
    until(
        lambda: silo.runs("test", "-e", address, code=None).returncode == 0,
        "the silo has an address",
    )
    port = int(silo.runs("cat", address).stdout.rpartition(":")[2])
    until(lambda: answers(silo, port, "/readyz") == 200, "the silo is ready")
    until(
        lambda: any(s["last_seen_unix_s"] for s in admin(silo, "silo", "list")["silos"]),
        "the silo is heard of",
    )
    silo.runs("systemctl", "stop", unit)
    assert silo.property(unit, "Result") == "success"


def in_the_sandbox_of(machine, unit, command, *, name):
    """Run a command as a unit's process: the unit itself, but for what it starts."""
    text = machine.runs("cat", f"/etc/systemd/system/{unit}.service").stdout
    text, count = re.subn(r"(?m)^ExecStart=.*$", f"ExecStart={command}", text)
    assert count == 1
    text, count = re.subn(r"(?m)^Type=(exec|notify)$", "Type=oneshot", text)
    assert count == 1
    text = text.replace("Restart=on-failure\n", "")
    out = f"/run/{name}"
    text = text.replace("[Service]\n", f"[Service]\nStandardOutput=truncate:{out}\n"
                        f"StandardError=append:{out}.err\n")  # fmt: skip
    machine.runs("tee", f"/etc/systemd/system/{name}.service", text=text)
    machine.runs("systemctl", "daemon-reload")
    done = machine.runs("systemctl", "start", name, code=None)
    said = machine.runs("cat", out, code=None).stdout
    complaint = machine.runs("cat", f"{out}.err", code=None).stdout
    return done.returncode, said, complaint


def test_local_training_works_in_the_silos_sandbox(silo):
    plan = (ROOT / "deploy" / "compose" / "plan.toml").read_text()
    plan = plan.replace("episodes_per_round = 600", "episodes_per_round = 8")
    plan = plan.replace("/opt/chorale/share/base-model", "/srv/base")
    silo.runs("tee", "/srv/plan.toml", text=plan)
    silo.types("sudo -u chorale-silo /opt/chorale/bin/chorale-silo policy init "
               "--plan /srv/plan.toml --data /var/lib/chorale-silo")  # fmt: skip
    code, said, complaint = in_the_sandbox_of(
        silo, SILO,
        "/opt/chorale/bin/chorale-silo doctor --dry-round --data /var/lib/chorale-silo "
        "--format json", name="dry-round",
    )  # fmt: skip
    assert said, complaint
    steps = {step["name"]: step for step in json.loads(said)["data"]["steps"]}
    assert steps["dry_round"]["outcome"] == "ok", (steps, complaint)
    assert code == 0, complaint


ATTACKS = textwrap.dedent(
    """
    import ctypes, mmap, os, socket, sys

    libc = ctypes.CDLL(None, use_errno=True)
    mine = os.path.join(sys.argv[1], "attempt")
    open(mine, "w").close()
    settimeofday = {"x86_64": 164, "aarch64": 170}[os.uname().machine]

    def call(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    attempts = {
        "write /etc": lambda: open("/etc/chorale-was-here", "w"),
        "write /usr": lambda: open("/usr/chorale-was-here", "w"),
        "write /opt": lambda: open("/opt/chorale/chorale-was-here", "w"),
        "write /srv": lambda: open("/srv/chorale-was-here", "w"),
        "read a home": lambda: os.stat("/root/secret"),
        "see another's /tmp": lambda: os.stat("/tmp/of-the-machine"),
        "see another process": lambda: os.stat("/proc/1/status"),
        "use a device": lambda: os.open("/dev/chorale-log", os.O_WRONLY),
        "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "mount": lambda: call(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
        "new user namespace": lambda: call(libc.unshare(0x10000000)),
        "become root": lambda: os.setuid(0),
        # Without a time it asks for the permission and sets nothing; the C library would not call.
        "set the clock": lambda: call(libc.syscall(settimeofday, None, None)),
        "change the host name": lambda: socket.sethostname("changed"),
        "trace a process": lambda: call(libc.ptrace(0, 0, 0, 0)),
        "set-uid file": lambda: os.chmod(mine, 0o4755),
        "real-time priority": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "write kernel settings": lambda: open("/proc/sys/vm/swappiness", "r+"),
        "code in writable memory": lambda: mmap.mmap(-1, 4096, prot=7),
    }
    for name, attempt in attempts.items():
        # In a process of its own: one that succeeds changes what the next may do.
        child = os.fork()
        if child == 0:
            try:
                attempt()
            except OSError:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        verdict = {0: "succeeded", 1: "refused"}.get(os.waitstatus_to_exitcode(status), "died")
        print(name, verdict, sep="\\t", flush=True)
    """
)
ALLOWED = {COORDINATOR: set(), SILO: {"code in writable memory"}}
"""What a sandbox leaves possible: torch compiles while it runs."""


@pytest.mark.parametrize("unit", [COORDINATOR, SILO])
def test_the_sandbox_holds_against_what_runs_in_it(silo, unit):
    data_dir = silo.property(f"{unit}.service", "WorkingDirectory")
    silo.runs("tee", "/opt/attacks.py", text=ATTACKS)
    silo.runs("touch", "/root/secret", "/tmp/of-the-machine")
    # The kernel's log, which no unit of ours lists, under a name that everybody may write to.
    silo.runs("sh", "-c", "test -e /dev/chorale-log || mknod -m 666 /dev/chorale-log c 1 11")
    outside = silo.runs("/opt/chorale/bin/python", "/opt/attacks.py", "/srv").stdout
    code, said, complaint = in_the_sandbox_of(
        silo, unit, f"/opt/chorale/bin/python /opt/attacks.py {data_dir}", name=f"attack-{unit}"
    )
    assert code == 0, complaint
    inside = dict(line.split("\t") for line in said.splitlines())
    assert len(inside) == 19
    assert {name for name, verdict in inside.items() if verdict != "refused"} == ALLOWED[unit]
    # As root outside each of them works, or a refusal would show nothing.
    assert dict(line.split("\t") for line in outside.splitlines()) == dict.fromkeys(
        inside, "succeeded"
    )


def test_a_credential_is_for_its_service_alone(silo):
    """The drop-in for PostgreSQL: what libpq would read, with the mode that it insists on."""
    silo.runs("mkdir", "-p", "/etc/chorale")
    silo.runs("install", "-m", "600", "/dev/stdin", "/etc/chorale/pgpass", text="a:5432:*:b:c\n")
    place = f"/etc/systemd/system/shown-{COORDINATOR}.service.d"
    silo.runs("mkdir", "-p", place)
    drop_in = ROOT / "deploy" / "systemd" / "drop-ins" / "coordinator-postgresql.conf"
    silo.runs("tee", f"{place}/postgresql.conf", text=drop_in.read_text())
    code, said, complaint = in_the_sandbox_of(
        silo, COORDINATOR, "/bin/sh -c 'cat $PGPASSFILE && stat -Lc \"%%a %%U\" $PGPASSFILE'",
        name=f"shown-{COORDINATOR}",
    )  # fmt: skip
    assert code == 0, complaint
    assert said == "a:5432:*:b:c\n400 chorale\n"
    refused = silo.types("sudo -u chorale-silo cat /etc/chorale/pgpass || echo refused").stdout
    assert refused == "refused\n"


def test_groups_of_devices_reach_through_the_drop_in(silo):
    """The drop-in for GPUs whose nodes belong to a group."""
    # Where udev is not installed nobody has made the group yet.
    silo.runs("sh", "-c", "getent group render || groupadd --system render")
    silo.runs("sh", "-c", "install -m 640 -g render /dev/null /srv/of-a-group")
    for name, drop_in, verdict in (("plain", "", 1), ("grouped", "silo-amd-gpu.conf", 0)):
        if drop_in:
            text = (ROOT / "deploy" / "systemd" / "drop-ins" / drop_in).read_text()
            silo.runs("mkdir", "-p", f"/etc/systemd/system/{name}.service.d")
            silo.runs("tee", f"/etc/systemd/system/{name}.service.d/gpu.conf", text=text)
        code, _, complaint = in_the_sandbox_of(silo, SILO, "/bin/cat /srv/of-a-group", name=name)
        assert bool(code) == bool(verdict), complaint
