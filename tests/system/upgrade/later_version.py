"""A daemon of a version that does not exist yet: it speaks protocol 9 alone.

Started as ``python -m later_version serve|run …`` with the installed package of this version.
"""

import sys

from federation import version

version.OLDEST_PROTOCOL = version.NEWEST_PROTOCOL = 9
version.installed_version = lambda: "9.0.0"

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        from server.cli.coordinator import main
    else:
        from silo_agent.cli.main import main
    main()
