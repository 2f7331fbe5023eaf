"""What dp/ may not contain, and its errors."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dp
from dp import errors

PACKAGE = Path(dp.__file__).parent
BANNED_MODULES = {"random", "secrets", "numpy.random", "torch.random"}
BANNED_ATTRIBUTES = {
    "random",
    "randn",
    "rand",
    "randint",
    "normal",
    "normal_",
    "default_rng",
    "randn_like",
    "rand_like",
    "randint_like",
    "randperm",
    "bernoulli",
    "bernoulli_",
    "multinomial",
    "poisson",
    "random_",
    "uniform_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "manual_seed",
    "Generator",
    "RandomState",
    "shuffle",
}


def banned_randomness(source):
    """Every use of a generator other than the keyed source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in BANNED_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            found += sorted(names & BANNED_MODULES)
            if node.module in {"torch", "numpy"}:
                found += sorted({alias.name for alias in node.names} & BANNED_ATTRIBUTES)
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            found.append(node.attr)
    return found


def test_no_other_randomness():
    files = sorted(PACKAGE.glob("**/*.py"))
    assert len(files) > 10
    for path in files:
        assert banned_randomness(path.read_text(encoding="utf-8")) == [], path.name


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from random import gauss",
        "from numpy import random",
        "import numpy.random as r",
        "x = np.random.default_rng(3)",
        "x = torch.normal(0, 1, (3,))",
        "x = torch.randn(3)",
        "p.normal_()",
        "from torch import randn as draw",
        "x = torch.empty(3).bernoulli_(0.1)",
        "torch.Generator().manual_seed(3)",
        "rng = np.random.RandomState(0)",
    ],
)
def test_the_scan_can_fail(source):
    assert banned_randomness(source)


def test_torch_is_imported_by_the_gradients_alone():
    importers = set()
    for path in PACKAGE.glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            if any(name.split(".")[0] in {"torch", "opacus"} for name in names):
                importers.add(path.name)
    assert importers == {"fixed.py", "grads.py", "low_rank.py"}


def test_imports_no_learning_framework_and_no_transport():
    code = (
        "import dp.accounting.snr, dp.noise.share, dp.accounting.charge, dp.noise.unit_sum;"
        "import dp.steps.units, sys;"
        "bad = {'torch','opacus','transformers','grpc','sqlalchemy','scipy','google.protobuf'};"
        "sys.exit(' '.join(bad & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_error_has_its_own_reason_and_is_drawn():
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.PrivacyError)
    ]
    assert {value.reason for value in classes} == set(errors.Reason)
    assert len(classes) == len(errors.Reason)
    for value in classes:
        assert value.__name__ in errors.__doc__
