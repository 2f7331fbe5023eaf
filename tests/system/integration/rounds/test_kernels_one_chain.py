"""Silos whose linear algebra gives other bits stay on one chain, and auditors can check it.

The gauge's QR and SVD depend on the CPU kernel, so a silo that recomputed the adapter would fork.
Coordinator and silos run here as real processes under two kernels, and the same published step is
then recomputed under both, to show that the kernels do differ on these very bytes.
"""

import itertools
import json
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.kit.paths import ROOT
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

COORDINATORS_KERNEL, OTHER_KERNEL = "Prescott", "Haswell"
KERNEL_OF = dict(
    zip(
        cf.SILOS,
        (COORDINATORS_KERNEL, OTHER_KERNEL, OTHER_KERNEL, COORDINATORS_KERNEL),
        strict=True,
    )
)
ROUNDS = 3

STEP = """
import sys
import numpy as np
from pathlib import Path
from federation.adapter.encoding import adapter_sha256, decode_adapter, encode_adapter
from federation.aggregate.server_step import MeanOfSum
from federation.adapter.layout import Layout
from federation.plan.plan import Plan
from federation.plan.read import read_plan

plan, previous, total, round_number, count = sys.argv[1:]
plan = read_plan(Path(plan).read_bytes())
previous = Path(previous).read_bytes()
tensors = decode_adapter(previous, max_bytes=len(previous))
aggregator = plan.aggregator(Layout.from_tensors(tensors))
dimension = aggregator.shared_layout(int(round_number)).dimension
total = np.frombuffer(Path(total).read_bytes(), "<i4")[:dimension]
mean = MeanOfSum(total, scale=plan.privacy.grid / plan.privacy.clip_l2, count=int(count))
updated = aggregator.apply(tensors, mean, int(round_number))
print(adapter_sha256(encode_adapter(updated)).hex())
"""


def recomputed(kernel, plan, previous, total, round_number):
    return subprocess.run(
        [sys.executable, "-c", STEP, plan, previous, total, str(round_number), str(len(cf.SILOS))],
        env=os.environ | {"OPENBLAS_CORETYPE": kernel, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def require_selectable_kernels():
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if platform.machine() not in ("x86_64", "AMD64") or "openblas" not in blas:
        pytest.skip("numpy here has no kernels to choose from by OPENBLAS_CORETYPE")
    flags = Path("/proc/cpuinfo")
    if not flags.exists() or " avx2 " not in flags.read_text():
        pytest.skip(f"this processor lacks AVX2, which kernel {OTHER_KERNEL} needs")


def blob(loopback, sha256):
    return loopback.data_dir / "adapters" / sha256[:2] / sha256


def sum_of(record):
    (part,) = record["parts"]
    return part["sum_sha256"]


def adopted(loopback, silo_id, round_number):
    """The silo's head, once it has followed the chain to a round."""

    def reached():
        heads = json.loads((loopback.silo_dir(silo_id) / "state.json").read_text())["heads"]
        head = next(iter(heads.values()))
        return head if head["round"] == round_number else None

    return until(
        reached, f"{silo_id} is at round {round_number}", told=partial(loopback.log, silo_id)
    )


@pytest.mark.long
def test_two_kernels_stay_on_one_chain_that_an_auditor_can_check(tmp_path):
    require_selectable_kernels()
    environment = {"OPENBLAS_CORETYPE": COORDINATORS_KERNEL}
    with cf.federation(tmp_path, environment=environment) as loopback:
        for silo_id, kernel in KERNEL_OF.items():
            loopback.environment = {"OPENBLAS_CORETYPE": kernel}
            loopback.start_silo(silo_id)
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=ROUNDS, method="rolora", gauge=True)
        )
        run_id = loopback.start_run(plan, adapter, token="kernels")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [r["outcome"] for r in rounds] == ["aggregated"] * ROUNDS
        assert all(tuple(r["survivors"]) == cf.SILOS for r in rounds)
        records = loopback.chorale("adapter", "list", run_id, "--data", str(loopback.data_dir))[
            "records"
        ]
        # Every silo is at the same head and holds its published bytes under their digest.
        for silo_id in cf.SILOS:
            head = adopted(loopback, silo_id, ROUNDS)
            assert head["adapter_sha256"] == records[-1]["adapter_sha256"]
            kept = loopback.silo_dir(silo_id) / "adapters" / head["adapter_sha256"]
            assert kept.read_bytes() == blob(loopback, head["adapter_sha256"]).read_bytes()
            metrics = loopback.metrics(silo_id)
            assert metrics['chorale_silo_errors_total{kind="UpdateError"}'] == 0
        # The coordinator's kernel repeats what it published; the other one gives other bits.
        differing = []
        for before, record in itertools.pairwise(records):
            files = (blob(loopback, before["adapter_sha256"]), blob(loopback, sum_of(record)))
            step = (plan, *files, record["round"])
            assert recomputed(COORDINATORS_KERNEL, *step) == record["adapter_sha256"]
            if recomputed(OTHER_KERNEL, *step) != record["adapter_sha256"]:
                differing.append(record["round"])
        assert differing, "the kernels agree on every round, so this test shows nothing"
        audit(loopback, run_id, tmp_path)


def audit(loopback, run_id, directory):
    """Each round's transcript verifies offline, and an altered one does not."""
    root_key = str(loopback.root_dir / "root.pub")
    for round_number in range(1, ROUNDS + 1):
        file, total = directory / f"{round_number}.json", directory / f"{round_number}.sum"
        exported = loopback.chorale(
            "transcript", "export", run_id, str(round_number), "--out", str(file),
            "--sum-out", str(total), "--data", str(loopback.data_dir),
        )  # fmt: skip
        assert exported["outcome"] == "released"
        checked = loopback.chorale(
            "verify-transcript", str(file), "--root-key", root_key, "--sum", str(total)
        )
        assert checked["passed"][0] == "roster"
        assert checked["passed"][-1] == "sum"
        assert len(checked["passed"]) == 14
        assert tuple(checked["survivors"]) == cf.SILOS
    by_silo = loopback.silo(
        "verify-transcript", str(file), "--sum", str(total),
        "--data", str(loopback.silo_dir(cf.SILOS[0])),
    )  # fmt: skip
    assert by_silo == checked
    content = bytearray(total.read_bytes())
    content[0] ^= 1
    wrong_sum = directory / "wrong.sum"
    wrong_sum.write_bytes(content)
    refused(directory, "transcript_sum", str(file), "--root-key", root_key, "--sum", str(wrong_sum))
    document = json.loads(file.read_text())
    document["record"]["parts"][0]["survivors"].pop()
    file.write_text(json.dumps(document))
    refused(directory, "transcript_record", str(file), "--root-key", root_key)


def refused(directory, code, *arguments):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "server.cli.main", "verify-transcript"),
            *(*arguments, "--format", "json"),
        ],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    envelope = json.loads(done.stdout)
    assert (envelope["status"], envelope["error_code"]) == ("error", code)
    assert done.stderr.startswith("error: ")
