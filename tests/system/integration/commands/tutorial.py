"""docs/tutorial.md, typed command by command: by a test, and to write its output anew.

``make tutorial`` types it and writes what was said under each command, and the picture. What
differs from run to run (digests, fingerprints, times, figures) is compared by its kind.

Covered: every ``console`` block, in order, in one directory beside the checkout's files; a ``toml``
block is a file, named in its first line. Not covered: the installation, which the test has its own
way for.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deploy.browser import Browser
from lab.loopback import free_port
from tests.kit.paths import ROOT
from tests.kit.waiting import until

PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = ROOT / "docs" / "img" / "status.png"
BLOCK = re.compile(r"(?ms)^```(console|toml)\n(.*?)^```$")
DAEMONS = ("chorale-coordinator serve", "chorale-silo run ")
PORTS = (7443, 7444, 7445)
COMMAND_S = 1200
READY_S = 180
RUN = re.compile(r"(?m)^run (\S+-[0-9a-f]{8})$")
ELSE = "…"
"""A line of the page that stands for any lines."""
_ALIKE = (
    (re.compile(r"\b[0-9a-f]{4}(?::[0-9a-f]{4})+\S*"), "FINGERPRINT"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+\S+)?( UTC)?"), "TIME"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{6,}\b"), "ID"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?"), "N"),
    (re.compile(r"[▁▂▃▄▅▆▇█░]+"), "BAR"),
    (re.compile(r" {2,}"), " "),
)


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of each block that is typed."""
    return BLOCK.findall(page)


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a block with the output under it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            command, said = found[-1]
            found[-1] = command, f"{said}{line}\n"
    return found


def alike(text: str) -> list[str]:
    """An output's lines, with what differs from run to run as what it is."""
    for pattern, name in _ALIKE:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def fits(said: str, page: str) -> bool:
    """Whether an output is what the page says, where ``…`` stands for any lines."""
    wanted = [r"(?:.*\n)*?" if line == ELSE else re.escape(line) + r"\n" for line in alike(page)]
    return re.fullmatch("".join(wanted), "".join(f"{line}\n" for line in alike(said))) is not None


@dataclass
class Laptop:
    """One directory, one shell, and the daemons of the other terminals."""

    home: Path
    bin: Path
    ports: tuple[int, int, int] = PORTS
    run: str = ""
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    took_s: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        for name in ("lab", "deploy"):
            (self.home.parent / name).symlink_to(ROOT / name)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CHORALE"))}
        self.environment = {
            **kept,
            "PATH": f"{self.bin}:{kept['PATH']}",
            "COLUMNS": "96",
            "OMP_NUM_THREADS": "1",
        }

    def writes(self, block: str) -> None:
        name = block.split("\n", maxsplit=1)[0].removeprefix("# ")
        (self.home / name).write_text(block)

    def types(self, command: str) -> str:
        """What a command says; a daemon is left running, and says so."""
        for port, free in zip(PORTS, self.ports, strict=True):
            command = command.replace(f":{port}", f":{free}")
        if command.startswith("chorale init ") and self.ports != PORTS:
            listens = ("listen", "enrol-listen", "probes-listen")
            command += "".join(
                f" --{name} 127.0.0.1:{port}"
                for name, port in zip(listens, self.ports, strict=True)
            )
        command = re.sub(r"\bRUN\b", self.run or "RUN", command)
        begun = time.monotonic()
        said = self.starts(command) if command.startswith(DAEMONS) else self.ends(command)
        self.took_s.append((time.monotonic() - begun, command))
        sys.stderr.write(f"{self.took_s[-1][0]:7.1f} s  {command}\n")
        if command.startswith("chorale run start") and (found := RUN.search(said)):
            self.run = found[1]
        for port, free in zip(PORTS, self.ports, strict=True):
            said = said.replace(f":{free}", f":{port}")
        return said.replace(f"{self.home}/", "").replace(str(self.home), ".")

    def ends(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.home, env=self.environment, text=True, timeout=COMMAND_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, done.stdout
        return "".join(
            f"{line.rstrip()}\n" for line in done.stdout.splitlines() if not line.startswith('{"')
        )

    def starts(self, command: str) -> str:
        """Start a daemon, and wait until its probes say that it is ready."""
        program, *words = command.split()
        log = self.home / f"terminal-{len(self.daemons)}.log"
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                [self.bin / program, *words],
                cwd=self.home, env=self.environment, stdout=out, stderr=out,
            )  # fmt: skip
        self.daemons.append(daemon)
        where = self.home / words[-1] / "probes.address"

        def ready() -> bool:
            assert daemon.poll() is None, log.read_text()
            if program == "chorale-coordinator":
                return self.answers(f"127.0.0.1:{self.ports[2]}")
            return where.exists() and self.answers(where.read_text().strip())

        until(ready, f"{command} is ready", told=log.read_text, within_s=READY_S)
        return ""

    @staticmethod
    def answers(address: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def draws(self, picture: Path) -> None:
        with Browser() as opened:
            opened.open(f"http://127.0.0.1:{self.ports[2]}/", width=1100)
            opened.capture(picture)

    def costs(self) -> list[str]:
        """Processor time and the most memory of each daemon."""
        lines = []
        for daemon in self.daemons:
            held = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text())
            ticks = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            used_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            said = "?" if held is None else f"{int(held[1]) / 1024:.0f} MiB at most"
            lines.append(f"{daemon.args[0].name}: {used_s:.0f} s of a core, {said}")
        return lines

    def stops(self) -> None:
        for daemon in self.daemons:
            daemon.send_signal(signal.SIGINT)
        for daemon in self.daemons:
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def free_ports() -> tuple[int, int, int]:
    return free_port(), free_port(), free_port()


def typed(laptop: Laptop, page: str) -> Iterator[tuple[str, str, str]]:
    """Type every block of a page: each command, what the page says under it, what was said."""
    for kind, block in blocks(page):
        if kind == "toml":
            laptop.writes(block)
            continue
        for command, wanted in commands(block):
            yield command, wanted, laptop.types(command)


def shortened(said: str, page: str) -> str:
    """An output that fits, with only the lines that the page shows."""
    lines, shown = iter(said.splitlines()), []
    for line in page.splitlines():
        if line.strip() and line != ELSE:
            line = next(new for new in lines if alike(new) == alike(line))  # noqa: PLW2901
        shown.append(f"{line}\n")
    return "".join(shown)


def anew(page: str, said: Iterator[tuple[str, str, str]]) -> str:
    """The page with what was said; what still fits stays as short as it is there."""
    written, at = [], 0
    for command, wanted, output in said:
        old = f"$ {command}\n{wanted}"
        begins = page.index(old, at)
        fitting = fits(output, wanted)
        if not fitting:
            sys.stderr.write("           this says something else than the page\n")
        kept = shortened(output, wanted) if fitting else output
        written += [page[at:begins], f"$ {command}\n{kept}"]
        at = begins + len(old)
    return "".join((*written, page[at:]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make tutorial", description="Type docs/tutorial.md.")
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent)
    bin_dir = parser.parse_args().bin
    with tempfile.TemporaryDirectory() as directory:
        laptop = Laptop(home=Path(directory) / "try", bin=bin_dir, ports=free_ports())
        try:
            page = PAGE.read_text()
            PAGE.write_text(anew(page, typed(laptop, page)))
            laptop.draws(PICTURE)
            sys.stderr.writelines(f"{line}\n" for line in laptop.costs())
        finally:
            laptop.stops()


if __name__ == "__main__":
    main()
