"""Whether a daemon's second port answers: ``python -IS /opt/chorale/share/health.py URL``.

The health check of the images, where there is no curl. Exit code 0 if the answer is 200, else 1
with the reason on stderr.

Invariants:

1. Only the standard library is imported: a check starts every few seconds, and chorale's packages
   would take most of a second each time.
2. The environment's proxies are not used. A certificate is not verified, for nothing secret is
   asked, and an image does not know who signed it.

Covered: http and https, a port that does not answer. Not covered: what the answer says beyond its
status.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from urllib.parse import urlsplit

__all__ = ["main"]

TIMEOUT_S = 4.0
USAGE = "usage: health.py http://HOST:PORT/livez"


def main(arguments: list[str]) -> int:
    """Ask the URL, the only argument, once; returns the exit code."""
    url = arguments[0] if len(arguments) == 1 else ""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"}:
        sys.stderr.write(USAGE + "\n")
        return 1
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", parts.path or "/livez")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{url} does not answer: {error}\n")
        return 1
    finally:
        connection.close()
    if status != http.client.OK:
        sys.stderr.write(f"{url} answers {status}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
