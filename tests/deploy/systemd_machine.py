"""A machine whose first process is the real systemd, in namespaces of its own.

Its root is this machine's, read through an overlay that keeps every change in memory, so accounts,
units and data of a test are gone with it. Of units it knows those that are installed into it and a
few empty targets: nothing of this machine's own is started. Its network is a loopback device.

Needs root, which continuous integration has; ``unavailable`` says what is missing elsewhere.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
import time
from pathlib import Path

from tests.kit.waiting import until

INIT = Path("/lib/systemd/systemd")
CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
UNITS = "/etc/chorale-machine"
PACKAGES = "/opt/packages"
"""Where the tests' own packages are, for services that may not look into a home."""
TARGETS = ("sysinit", "basic", "network-online", "multi-user", "shutdown", "machine")
BOOT = """
set -eu
# Changes go to memory; what lies below is this machine's, and stays as it is.
mount -t tmpfs tmpfs "$STAGE"
mkdir "$STAGE/upper" "$STAGE/work" "$STAGE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$STAGE/upper,workdir=$STAGE/work" "$STAGE/root"
cd "$STAGE/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs dev
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts dev/mqueue
mount -t tmpfs tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=0666
ln -s pts/ptmx dev/ptmx
touch dev/console
mount --bind "$CONSOLE" dev/console
mkdir -p opt/packages opt/given
mount --bind "$PACKAGES" opt/packages
mount --bind "$GIVEN" opt/given
ip link set lo up
mkdir old
pivot_root . old
umount -l old
# Credentials of services are mounted elsewhere first, and arrive by propagation.
mount --make-rshared /
exec /lib/systemd/systemd --system --unit=machine.target --log-target=console --show-status=0
"""


def unavailable() -> str:
    """Why there can be no such machine here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    for tool in ("unshare", "nsenter", "ip", "pivot_root"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if not INIT.exists():
        return "needs systemd"
    if _cgroup_root() is None:
        return "needs version 2 of control groups"
    done = subprocess.run(
        ["unshare", "-f", "-p", "-m", "-u", "-i", "-n", "-C", "mount", "-t", "tmpfs", "x", "/mnt"],
        capture_output=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else f"namespaces are refused: {done.stderr.decode()}"


def _cgroup_root() -> Path | None:
    return next((place for place in CGROUPS if (place / "cgroup.controllers").exists()), None)


class SystemdMachine:
    """Running from ``__init__`` to ``close``."""

    def __init__(self, directory: Path, *, given: Path) -> None:
        """Boot.

        Args:
            directory: An empty one, for this machine's console and mount points.
            given: What it finds in /opt/given.
        """
        self._stage = directory / "stage"
        self._stage.mkdir()
        root = _cgroup_root()
        assert root is not None
        self._cgroup = root / f"chorale-machine-{os.getpid()}"
        self._cgroup.mkdir()
        self._master, slave = os.openpty()
        self.console = directory / "console"
        environment = {
            **os.environ, "STAGE": str(self._stage), "CONSOLE": os.ttyname(slave),
            "PACKAGES": sysconfig.get_paths()["purelib"], "GIVEN": str(given),
            "SYSTEMD_UNIT_PATH": f"/etc/systemd/system:{UNITS}", "container": "chorale-test",
        }  # fmt: skip
        with (directory / "boot").open("wb") as boot:
            self._outer = self._started(environment, boot)
        os.close(slave)
        os.set_blocking(self._master, False)
        self._directory = directory
        until(
            self._booted,
            "the machine boots",
            told=lambda: (directory / "boot").read_text() + self.said(),
            within_s=30,
        )

    def _started(self, environment, boot) -> subprocess.Popen:
        return subprocess.Popen(
            ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', self._cgroup,
             "unshare", "-f", "-p", "-m", "-u", "-i", "-n", "-C", "--kill-child",
             "bash", "-c", _with_units()],
            env=environment, stdin=subprocess.DEVNULL, stdout=boot, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _pid(self) -> int:
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text()
        return int(children.split()[0]) if children.split() else 0

    def _booted(self) -> bool:
        if self._outer.poll() is not None or not self._pid():
            return False
        if not Path(f"/proc/{self._pid()}/exe").resolve().name.startswith("systemd"):
            return False
        return self.runs("systemctl", "is-active", "machine.target", code=None).returncode == 0

    def runs(
        self, *words: str, code: int | None = 0, text: str = ""
    ) -> subprocess.CompletedProcess:
        """Run a command inside, as root, with nothing of this process's environment."""
        done = subprocess.run(
            ["nsenter", "--all", f"--target={self._pid()}", "env", "-i",
             "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", *words],
            capture_output=True, text=True, check=False, timeout=120, input=text,
        )  # fmt: skip
        assert code is None or done.returncode == code, (
            f"{words}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        )
        return done

    def types(self, line: str) -> subprocess.CompletedProcess:
        """Run a line as it is printed for people; root needs no sudo for itself."""
        words = line.removeprefix("sudo ")
        if words.startswith("-u "):
            _, user, words = words.split(" ", 2)
            return self.runs("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
                             "sh", "-c", words)  # fmt: skip
        return self.runs("sh", "-c", words)

    def property(self, unit: str, name: str) -> str:
        """What systemd says of a unit."""
        return self.runs("systemctl", "show", unit, f"--property={name}", "--value").stdout.strip()

    def said(self) -> str:
        """The console, as far as it was written."""
        with self.console.open("ab") as console:
            while True:
                try:
                    console.write(os.read(self._master, 65536))
                except OSError:
                    break
        return self.console.read_text(errors="replace")

    def close(self) -> None:
        """Kill everything inside; its file systems go with it."""
        if pid := self._pid():
            os.kill(pid, signal.SIGKILL)
        self._outer.wait(30)
        os.close(self._master)
        # Groups of killed processes empty a moment later.
        for _ in range(50):
            for group in sorted(self._cgroup.rglob("*/"), key=lambda g: -len(g.parts)):
                _remove(group)
            if _remove(self._cgroup):
                break
            time.sleep(0.1)


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


def _with_units() -> str:
    """The boot, with the few targets that units refer to."""
    lines = [f"mkdir -p .{UNITS}"]
    for name in TARGETS:
        unit = f"[Unit]\\nDescription={name}\\nDefaultDependencies=no\\n"
        lines.append(f"printf '{unit}' >.{UNITS}/{name}.target")
    # Whatever is enabled on this machine is not to be started in that one.
    lines.append("rm -rf etc/systemd/system && mkdir etc/systemd/system")
    return BOOT.replace("mkdir old\n", "\n".join([*lines, "mkdir old\n"]))
