"""The commonest commands, run against a real coordinator, load what they need and nothing else.

Failures: a framework, a database, arithmetic or a log's writer in a command that answers without
it. Not failures: packages of a few milliseconds. How long a start takes is no test; ``make
bench-start`` measures it.
"""

import subprocess
import sys

import pytest

from tests.kit.processes import constant_federation as cf

FRAMEWORKS = {
    *("torch", "transformers", "peft", "accelerate", "gymnasium", "minigrid", "vllm", "opacus"),
    *("scipy", "dp_accounting", "matplotlib", "ray", "pandas"),
}
STORE = {"sqlalchemy", "alembic", "jinja2", "sqlite3"}
NETWORK = {"grpc", "opentelemetry", "OpenSSL"}
LOG = {"structlog"}
ARITHMETIC = {"numpy"}
PAGES = {"rich", "prometheus_client"}
MODELS = {"pydantic", "google.protobuf", "cryptography"}
EVERYTHING = STORE | NETWORK | LOG | ARITHMETIC | PAGES | MODELS
SCRIPT = """\
import atexit, sys
from {module} import main
atexit.register(lambda: print("loaded", *sys.modules, file=sys.stderr))
sys.argv = ["command", *{arguments!r}]
main()
"""
CHORALE, SILO = "server.cli.main", "silo_agent.cli.main"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("light")) as loopback:
        plan, adapter = cf.write_run(loopback, cf.plan_toml())
        run_id = loopback.start_run(plan, adapter, token="light")
        loopback.chorale("run", "abort", run_id, "--data", str(loopback.data_dir))
        yield {
            "DATA": str(loopback.data_dir),
            "SILO": str(loopback.silo_dir(cf.SILOS[0])),
            "PLAN": str(plan),
            "RUN": run_id,
        }


@pytest.mark.parametrize(
    ("module", "words", "never", "code"),
    [
        (CHORALE, "--help", EVERYTHING, 0),
        (CHORALE, "--version", EVERYTHING, 0),
        ("server.cli.coordinator", "--help", EVERYTHING, 0),
        (SILO, "--help", EVERYTHING, 0),
        (SILO, "--version", EVERYTHING, 0),
        ("lab.cli.main", "--help", STORE | LOG | ARITHMETIC | MODELS | {"grpc"}, 0),
        (CHORALE, "run list --data DATA", STORE | LOG | ARITHMETIC | PAGES, 0),
        (CHORALE, "silo list --data DATA", STORE | LOG | ARITHMETIC | PAGES, 0),
        (CHORALE, "run watch RUN --data DATA", STORE | LOG | ARITHMETIC, 1),
        (CHORALE, "plan new --silos 3 --episodes 80 --epsilon 8", STORE | LOG | NETWORK | PAGES, 0),
        (SILO, "status --data SILO", STORE | LOG | NETWORK | {"rich"}, 0),
        (SILO, "budget --data SILO", STORE | LOG | NETWORK | PAGES, 0),
        (SILO, "runs --data SILO", STORE | LOG | NETWORK | PAGES, 0),
        (SILO, "policy check PLAN --data SILO", STORE | LOG | NETWORK | PAGES, 0),
    ],
)
def test_a_command_loads_what_it_needs(federation, module, words, never, code):
    arguments = [federation.get(word, word) for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module=module, arguments=arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    (loaded,) = (line.split() for line in done.stderr.splitlines() if line.startswith("loaded "))
    assert len(loaded) > 100
    assert sorted((FRAMEWORKS | never).intersection(loaded)) == []
