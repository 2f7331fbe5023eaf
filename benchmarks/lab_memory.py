"""What a worker of the lab holds in memory: twenty silos of a 135 M model beside one silo.

    one     a silo by itself: the method ``local_evolution``
    all     twenty silos, four a round, summed under real masks
    killed  the same again, killed with SIGKILL in the middle of its second round and started anew

The model has the shape of SmolLM2-135M and random weights, and the tokenizer of the small base
model: its actions mean nothing, so episodes are as long as they may be. Every silo trains on a
demonstration. Each line is a process of its own, and its memory is the most that was resident at
once (``VmHWM`` of Linux). The third has to end with the rows and the adapter of the second, times
apart.

    make bench-lab-memory                                        three to ten minutes

Prints a table and, as its last line, the figures as JSON. Exit code 1 if all need more than 1.5
times what one needs, or if the killed run ends elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from evolution.model.causal_lm import load_tokenizer
from evolution.model.identity import base_sha256
from lab.experiment.config import Run, load_experiment
from lab.experiment.worker import ROWS, RUN

SMALL = Path(__file__).parents[1] / "lab" / "base_model"
SMOLLM2_135M = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1_536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
MOST = 1.5
"""What all silos may need, as a multiple of one silo's memory."""
_LOOK_S = 0.02

HEAD = """
name = "lab-memory"
base = "base"
rounds = {rounds}
seeds = [0]

[evolve]
episodes = {episodes}
tries_per_task = 1
max_new_tokens = 2
epochs = 1
learning_rate = 1e-4

[judge]
held_out = 1
held_out_other = 0
temperatures = [0.0]
every = 0
"""
SILO = """
[[silo]]
name = "silo-{index}"
environments = ["craft"]
shard_index = {shard}
shard_count = 4
demonstrations = 1
"""
ONE = '[[setting]]\nname = "one"\nmethod = "local_evolution"\n'
ALL = '[[setting]]\nname = "all"\nmethod = "fedse"\nsums = "masked"\nper_round = {per_round}\n'


@dataclass(kw_only=True, slots=True)
class Worker:
    """A process that runs one run, and what it came to."""

    peak_bytes: int = 0
    seconds: float = 0.0
    killed: bool = False


def random_base(directory: Path, shape: dict[str, int]) -> int:
    """A Llama of this shape with random weights, and the small base model's tokenizer.

    Returns the number of its parameters.
    """
    disable_progress_bar()
    tokenizer = load_tokenizer(SMALL)
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        **shape,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return int(model.num_parameters())


def run_of(text: str, directory: Path) -> Run:
    """The one run of an experiment file."""
    path = directory / "experiment.toml"
    path.write_text(text)
    base = directory / "base"
    (run,) = load_experiment(path).runs(base_dir=base, base_sha256=base_sha256(base))
    return run


def play(run: Run, directory: Path, *, kill_in: int = 0) -> Worker:
    """Run a worker in a directory to its end, or into the middle of a round, and kill it there."""
    directory.mkdir(exist_ok=True)
    (directory / RUN).write_text(run.model_dump_json())
    scratch = Path(tempfile.mkdtemp(dir=directory))
    found = Worker()
    started_s = time.perf_counter()
    with (
        (directory / "log.txt").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "lab.experiment.worker", str(directory)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
        ) as process,
    ):
        watch = threading.Thread(target=watched, args=(process, found), daemon=True)
        watch.start()
        for line in process.stdout or ():
            told = json.loads(line)
            print(f"    round {told['round']}, {told['wall_s']:.1f} s", flush=True)
            if kill_in == told["round"] + 1:
                wait_for(lambda: is_explored(scratch, kill_in - 1), process)
                process.send_signal(signal.SIGKILL)
                found.killed = True
    watch.join()
    found.seconds = time.perf_counter() - started_s
    if found.killed != (process.returncode == -signal.SIGKILL) or (
        not found.killed and process.returncode
    ):
        raise RuntimeError(f"the worker ended with {process.returncode}: see {log.name}")
    return found


def watched(process: subprocess.Popen[str], found: Worker) -> None:
    """Note the most memory that a process had resident, until it ends."""
    status = Path(f"/proc/{process.pid}/status")
    while True:
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return
        peak = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        if not peak:
            return  # It has ended and waits to be noticed.
        found.peak_bytes = max(found.peak_bytes, 1024 * int(peak[0]))
        time.sleep(_LOOK_S)


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until it happened.

    Raises:
        RuntimeError: The process ended before.
    """
    while not happened():
        if process.poll() is not None:
            raise RuntimeError("the worker ended before it could be killed in the middle")
        time.sleep(_LOOK_S)


def is_explored(scratch: Path, round_index: int) -> bool:
    """Whether a silo has written down what it is about to play in a round, counted from 0."""
    # A round's copy of the stores may go while it is looked for.
    with suppress(OSError, sqlite3.OperationalError):
        for path in scratch.rglob("successes.sqlite"):
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                query = "SELECT count(*) FROM explored WHERE round = ?"
                if database.execute(query, (round_index,)).fetchone()[0]:
                    return True
    return False


def end_of(directory: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows that a worker left, without times, and the digest of its adapter."""
    rows = [json.loads(line) for line in (directory / ROWS).read_text().splitlines()]
    adapter = (directory / "adapter-0.safetensors").read_bytes()
    untimed = [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]
    return untimed, hashlib.sha256(adapter).hexdigest()


def measure(directory: Path, shape: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """All three, in a directory; the figures."""
    parameters = random_base(directory / "base", shape)
    print(
        f"{parameters:,} parameters, float32, rank 8; {options.episodes} episodes a silo and round"
    )
    head = HEAD.format(rounds=options.rounds, episodes=options.episodes)
    silos = [SILO.format(index=index, shard=index % 4) for index in range(options.silos)]
    one = run_of(head + silos[0] + ONE, directory)
    every = run_of(head + "".join(silos) + ALL.format(per_round=options.per_round), directory)
    found: dict[str, Worker] = {}
    print("  one silo")
    found["one"] = play(one, directory / "one")
    print(f"  {options.silos} silos, {options.per_round} a round, masked")
    found["all"] = play(every, directory / "all")
    print("  the same, killed in round 2")
    play(every, directory / "killed", kill_in=2)
    print("  … and gone on")
    found["killed"] = play(every, directory / "killed")
    base_bytes = found["one"].peak_bytes
    print("worker      peak MiB   of one silo   seconds")
    for name, worker in found.items():
        peak, ratio = worker.peak_bytes, worker.peak_bytes / base_bytes
        print(f"{name:8s}  {peak / 2**20:10.0f}  {ratio:12.2f}  {worker.seconds:8.1f}")
    return {
        "parameters": parameters,
        "silos": options.silos,
        "per_round": options.per_round,
        "rounds": options.rounds,
        "peak_mib": {name: round(w.peak_bytes / 2**20) for name, w in found.items()},
        "ratio": round(found["all"].peak_bytes / base_bytes, 3),
        "ratio_gone_on": round(found["killed"].peak_bytes / base_bytes, 3),
        "gone_on_equal": end_of(directory / "all") == end_of(directory / "killed"),
    }


def main(arguments: Sequence[str] | None = None, *, shape: dict[str, int] = SMOLLM2_135M) -> None:
    """Measure and print; ``shape`` is the model's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--silos", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2, help="2 or more; one is killed in the 2nd")
    parser.add_argument("--episodes", type=int, default=1, help="of each silo in a round")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/status").exists():
        raise SystemExit("memory is read from /proc, which this system does not have")
    with tempfile.TemporaryDirectory(prefix="chorale-lab-memory-") as directory:
        (Path(directory) / "base").mkdir()
        figures = measure(Path(directory), shape, options)
    print(json.dumps(figures))
    if not figures["gone_on_equal"]:
        raise SystemExit("the run that was killed ended elsewhere")
    if max(figures["ratio"], figures["ratio_gone_on"]) > MOST:
        raise SystemExit(f"all silos need more than {MOST} times what one needs")


if __name__ == "__main__":
    main()
