"""Either daemon with a stderr that takes no byte.

Run as ``python -m tests.system.integration.faults.full_log``.
"""

import os
import sys

import server.cli.coordinator
import silo_agent.cli.main

if __name__ == "__main__":
    os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
    if sys.argv[1] == "serve":
        server.cli.coordinator.main()
    else:
        silo_agent.cli.main.main()
