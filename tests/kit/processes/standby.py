"""A second coordinator of a loopback federation, which waits for the first to end."""

from lab.loopback import LoopbackError
from tests.kit.waiting import until

NAME = "standby"


def start(loopback, *, module="server.cli.coordinator"):
    """Start one and wait until it stands by, or serves because the first has ended meanwhile."""
    seen = begun(loopback)
    loopback._start(NAME, module, "serve", "--data", str(loopback.data_dir), "--standby")
    until(
        lambda: begun(loopback) > seen,
        "it stands by",
        told=lambda: log_of(loopback),
    )


def promote(loopback):
    """Wait until it is the coordinator, and call it so; also where it has died as one."""
    loopback._processes["coordinator"] = loopback._processes.pop(NAME)
    try:
        loopback._await_http(f"http://127.0.0.1:{loopback.probes_port}/readyz", "coordinator")
    except LoopbackError:
        if loopback.alive("coordinator"):
            raise


def begun(loopback):
    log = log_of(loopback)
    return log.count('"standing_by"') + log.count('"coordinator_started"')


def log_of(loopback):
    log = loopback.directory / "logs" / f"{NAME}.log"
    return log.read_text() if log.exists() else ""
