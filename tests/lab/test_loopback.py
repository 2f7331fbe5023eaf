"""The loopback federation's own parts; whole federations are in tests/system/integration."""

import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from evolution.model.lora import initial_adapter
from federation.adapter.encoding import decode_adapter
from lab.cli.main import app
from lab.demo.run import BASE_MODEL
from lab.loopback import LoopbackError, LoopbackFederation, free_port


def test_a_free_port_can_be_bound():
    port = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_no_process_is_given_a_port_of_another_or_one_that_is_taken():
    mine = [free_port()]
    while mine[0] % 128 > 120:
        # Near its end; this process has asked for many, and its block begins again.
        mine = [free_port()]
    mine += [free_port() for _ in range(2)]
    with socket.create_server(("127.0.0.1", mine[-1] + 1)):
        mine.append(free_port())
    assert mine == [mine[0], mine[0] + 1, mine[0] + 2, mine[0] + 4]
    script = "from lab.loopback import free_port; print(*(free_port() for _ in range(200)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    theirs = {int(word) for word in done.stdout.split()}
    assert 0 < len(theirs) <= 128
    assert not theirs & {*range(min(mine), max(mine) + 1)}


def test_everyone_has_a_directory_of_their_own(tmp_path):
    with LoopbackFederation(directory=tmp_path / "new") as loopback:
        assert (tmp_path / "new").is_dir()
        places = [
            loopback.root_dir,
            loopback.data_dir,
            loopback.silo_dir("a"),
            loopback.silo_dir("b"),
        ]
        for place in places:
            others = [other for other in places if other != place]
            assert not any(place.is_relative_to(other) for other in others)
        assert not loopback.alive("coordinator")
    with pytest.raises(KeyError):
        loopback.pid("coordinator")


def test_a_process_that_ends_at_once_is_an_error_with_its_log(tmp_path):
    with (
        LoopbackFederation(directory=tmp_path) as loopback,
        pytest.raises(LoopbackError, match="stopped at start"),
    ):
        # No coordinator.toml was made.
        loopback.start_coordinator()
    assert "coordinator" in loopback.log("coordinator").lower()


def test_a_failing_command_shows_what_it_said(tmp_path):
    with (
        LoopbackFederation(directory=tmp_path) as loopback,
        pytest.raises(LoopbackError, match="exited with"),
    ):
        loopback.silo("status", "--data", str(tmp_path / "nowhere"))


def test_a_command_that_takes_too_long_is_an_error_that_names_it(tmp_path):
    with (
        LoopbackFederation(directory=tmp_path) as loopback,
        pytest.raises(LoopbackError, match=r"status --data .* took longer than 0\.01 s"),
    ):
        loopback.silo("status", "--data", str(tmp_path / "nowhere"), timeout_s=0.01)


def test_the_initial_adapter_command_takes_a_plans_target(tmp_path):
    out = tmp_path / "phi0.safetensors"
    arguments = ["adapter", "init", str(BASE_MODEL), "--out", str(out), "--rank", "2"]
    names = ["--target", "q_proj", "--target", "v_proj"]
    result = CliRunner().invoke(app, [*arguments, *names])
    assert result.exit_code == 0, result.output
    tensors = decode_adapter(out.read_bytes(), max_bytes=1 << 24)
    expected = initial_adapter(BASE_MODEL, 2, 16.0, 0, ("q_proj", "v_proj"))
    assert tensors.keys() == expected.keys()
    assert {name.split(".")[-3] for name in tensors} == {"q_proj", "v_proj"}
    out.unlink()
    result = CliRunner().invoke(app, [*arguments, "--target", "w_proj"])
    assert result.exit_code != 0
    assert not out.exists()


def test_the_initial_adapter_command_adds_a_value_head(tmp_path):
    out = tmp_path / "phi0.safetensors"
    arguments = ["adapter", "init", str(BASE_MODEL), "--out", str(out), "--value-head"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    tensors = decode_adapter(out.read_bytes(), max_bytes=1 << 24)
    expected = initial_adapter(BASE_MODEL, 8, 16.0, 0, value_head=True)
    assert tensors.keys() == expected.keys()
    assert not tensors["value_head.weight"].any()


def test_the_initial_adapter_command_writes_what_a_run_starts_from(tmp_path):
    out = tmp_path / "phi0.safetensors"
    arguments = [
        "adapter",
        "init",
        str(BASE_MODEL),
        "--out",
        str(out),
        "--rank",
        "2",
        "--seed",
        "4",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    tensors = decode_adapter(out.read_bytes(), max_bytes=1 << 24)
    expected = initial_adapter(BASE_MODEL, 2, 16.0, 4)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert (tensor == expected[name]).all()
        # B is zero, so the first adapter changes nothing.
        assert ("lora_B" in name) is (not tensor.any())
