"""The coordinator of ``tests/kit/processes/dying_coordinator.py``, which also bears witness."""

from server.cli.coordinator import main
from tests.kit.processes.deaths import Deaths
from tests.kit.processes.dying_coordinator import install
from tests.system.chaos import witness

if __name__ == "__main__":
    witness.of_coordinator()
    install(Deaths.from_environment())
    main()
