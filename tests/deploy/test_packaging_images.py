"""The images' Dockerfiles: linted by hadolint, held to our own rules, their settings read by us.

What a build of them makes is in ``test_packaging_image_contents.py``.
"""

import http.server
import re
import ssl
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import trustme

from server.config import CoordinatorConfig
from silo_agent.config import SiloConfig
from tests.kit.deploy import dockerfile
from tests.kit.deploy.commands import require_command
from tests.kit.paths import ROOT

IMAGES = ROOT / "deploy" / "images"
NAMES = ("coordinator", "silo")
FILES = {name: dockerfile.read(IMAGES / f"{name}.Dockerfile") for name in NAMES}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
HEALTH = IMAGES / "health.py"


def tool(name):
    """A program that is installed beside this Python."""
    return Path(sys.executable).with_name(name)


@pytest.mark.parametrize("name", NAMES)
def test_hadolint_finds_nothing(name):
    done = subprocess.run(
        [tool("hadolint"), "--failure-threshold", "ignore", IMAGES / f"{name}.Dockerfile"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN sudo pip install torch\n")
    done = subprocess.run(
        [tool("hadolint"), tmp_path / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert {"DL3007", "DL3004"} <= set(re.findall(r"DL\d+", done.stdout))


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_is_of_one_base_pinned_by_its_full_version(name):
    found = FILES[name]
    assert {stage.base for stage in found.stages} == {"${PYTHON_IMAGE}"}
    pinned = r"docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?"
    assert re.fullmatch(pinned, found.arguments["PYTHON_IMAGE"])


@pytest.mark.parametrize("name", NAMES)
def test_the_final_stage_is_small_and_without_rights(name):
    final = FILES[name].final
    assert [text for word, text in final.instructions if word == "USER"] == ["10001:10001"]
    after = [word for word, _ in final.instructions][-4:]
    assert after == ["EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"]
    assert final.of("STOPSIGNAL") == ["SIGTERM"]
    for stage in FILES[name].stages:
        assert not stage.of("ADD")
        for text in stage.of("RUN"):
            assert not re.search(r"\b(sudo|curl|wget|apt-get|apt)\b|\|\s*sh\b", text), text
    # Nothing is installed in the stage that is shipped; what it holds was made before.
    assert not any("pip" in text for text in final.of("RUN"))
    assert any(text.startswith("--from=installation") for text in final.of("COPY"))


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_installed_with_the_tested_versions(name):
    for stage in FILES[name].stages:
        for text in stage.of("RUN"):
            for command in re.findall(r"pip (?:--python \S+ )?install .*?(?= && |$)", text):
                assert "--no-cache-dir" in command
                assert "--constraint" in command or "torch==${TORCH_VERSION}" in command, command


def test_versions_are_those_of_this_tree():
    assert {found.arguments["CHORALE_VERSION"] for found in FILES.values()} == {VERSION}
    pins = (ROOT / "constraints.txt").read_text()
    assert f"\ntorch=={FILES['silo'].arguments['TORCH_VERSION']}\n" in pins


def test_the_coordinators_image_names_no_torch_and_looks_for_it():
    found = FILES["coordinator"]
    assert "TORCH_VERSION" not in found.arguments
    (looking,) = [words for stage in found.stages for text in stage.of("RUN")
                  if (words := dockerfile.exec_form(text))]  # fmt: skip
    assert "'torch'" in looking[-1]
    # This environment has torch: the same look must fail here.
    done = subprocess.run([sys.executable, *looking[1:]], check=False, capture_output=True)
    assert done.returncode == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_it_starts_exists(name):
    (text,) = FILES[name].final.of("CMD")
    require_command(dockerfile.exec_form(text))
    labels = FILES[name].final.of("LABEL")[0]
    for key in ("title", "description", "version", "licenses"):
        assert f"org.opencontainers.image.{key}=" in labels


def test_the_coordinators_settings_are_read_by_the_coordinator(tmp_path, monkeypatch):
    for key, value in FILES["coordinator"].environment().items():
        if key.startswith("CHORALE"):
            monkeypatch.setenv(key, value)
    (tmp_path / "coordinator.toml").write_text('host_names = ["localhost"]\n')
    assert CoordinatorConfig.load(tmp_path).probes_listen == "0.0.0.0:7445"
    assert FILES["coordinator"].final.of("EXPOSE") == ["7443 7444 7445"]


def test_the_silos_settings_are_read_by_the_silo(tmp_path, monkeypatch):
    for key, value in FILES["silo"].environment().items():
        if key.startswith("CHORALE"):
            monkeypatch.setenv(key, value)
    (tmp_path / "silo.toml").write_text("")
    assert SiloConfig.load(tmp_path).probes_listen == "127.0.0.1:7446"
    assert FILES["silo"].final.of("EXPOSE") == ["7446"]


def test_only_what_is_named_reaches_a_builder():
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    named = {line.removeprefix("!") for line in lines if line.startswith("!")}
    for name in named:
        assert (ROOT / name).exists(), name
    # What a wheel is built from: the build's own files, its packages, what it carries of deploy.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {path.partition("/")[0] for path in wheel["targets"]["wheel"]["packages"]}
    assert named == packages | {"pyproject.toml", "README.md", "constraints.txt", "deploy"}


# The health check ---------------------------------------------------------------------------------


class Answering:
    """A server that answers every GET with one status."""

    def __init__(self, status, context=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "http" if context is None else "https"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}/livez"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def checks(*arguments, **environment):
    """Exit code and words of the health check, as an image calls it."""
    done = subprocess.run(
        [sys.executable, "-IS", HEALTH, *arguments],
        capture_output=True, text=True, check=False, env=environment, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_the_health_check_believes_a_200_alone():
    with Answering(200) as url:
        assert checks(url) == (0, "")
        # A proxy of the environment would ask somebody else.
        assert checks(url, http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")[0] == 0
    for status in (204, 404, 503):
        with Answering(status) as url:
            code, said = checks(url)
            assert (code, said) == (1, f"{url} answers {status}\n")
    code, said = checks(url)
    assert code == 1
    assert "does not answer" in said


def test_the_health_check_speaks_tls():
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("probes.example.org").configure_cert(context)
    with Answering(200, context) as url:
        assert checks(url) == (0, "")


@pytest.mark.parametrize("arguments", [(), ("x",), ("file:///etc/passwd",), ("http://", "b")])
def test_the_health_check_asks_nothing_else(arguments):
    assert checks(*arguments)[0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_image_checks_its_own_port(name):
    (text,) = FILES[name].final.of("HEALTHCHECK")
    words = dockerfile.exec_form(text.partition("CMD ")[2])
    port = {"coordinator": 7445, "silo": 7446}[name]
    health = "/opt/chorale/share/health.py"
    assert words == ["python", "-IS", health, f"http://127.0.0.1:{port}/livez"]
    assert f"deploy/images/health.py {health}" in FILES[name].final.of("COPY")
