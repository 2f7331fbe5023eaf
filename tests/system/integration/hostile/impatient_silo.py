"""The real silo daemon, which does not pause between failures: hundreds of them pass in seconds."""

from silo_agent.cli.main import main
from silo_agent.daemon import polling

if __name__ == "__main__":
    polling.pause_s = lambda _failures: 0.0  # type: ignore[assignment]
    polling.LEAST_POLL_S = 0.0
    main()
