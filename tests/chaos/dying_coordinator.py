"""The coordinator of ``tests/integration/dying_coordinator.py``, which also bears witness."""

from server.cli.coordinator import main
from tests.chaos import witness
from tests.chaos.deaths import Deaths
from tests.integration.dying_coordinator import install

if __name__ == "__main__":
    witness.of_coordinator()
    install(Deaths.from_environment())
    main()
