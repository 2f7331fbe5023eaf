"""Who may see the status page: operators on this machine, or with a certificate of this CA.

In order; the first that fits decides:

1. Over TLS with a client certificate: whoever may watch a run by ``server/rpc/access.py``, judged
   now by the same policy: issued by a CA that is trusted now, inside its validity, an admin's or a
   viewer's. A silo's certificate is no operator's.
2. From the loopback interface, if the ``Host`` header names the loopback interface too: a name that
   somebody else's DNS points at 127.0.0.1 stays outside (DNS rebinding), whatever a browser that
   runs here is made to ask for.
3. Nobody else. What a request says of itself beyond that (``X-Forwarded-For`` and the like) is
   never looked at.

Covered: the four attacks above. Not covered: other accounts of the coordinator's machine, which are
on its loopback interface as well; a proxy on this machine, which is seen in place of its callers:
it must ask for their credentials itself.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from typing import Final

from federation.text import printable
from ops.probes.server import PageRequest
from server.errors import AccessError, RoleDeniedError
from server.rpc.access import AccessPolicy

__all__ = ["PageAccess"]

AS_WHO_CALLS: Final = "/chorale.v1.AdminService/WatchRun"
"""Whoever may call this may see the page: it shows no more."""
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_HOW: Final = """\
It is shown to operators only. Either of these opens it:

  on the coordinator's machine, or through a tunnel to it
      ssh -L 7445:127.0.0.1:7445 COORDINATOR
      and then http://localhost:7445/

  with an admin's or viewer's certificate, where the probe port has TLS (probes_certificate)
      curl --cert DATA/admin/admin.pem --key DATA/admin/admin.key https://COORDINATOR:7445/
      chorale admin renew makes a new certificate; each is valid for a day
"""


class PageAccess:
    """Decides one request at a time. Called from threads of the probe port."""

    def __init__(self, policy: AccessPolicy) -> None:
        """Judge by the policy of the gRPC ports."""
        self._policy = policy

    def refusal(self, request: PageRequest) -> str:
        """Empty if a request is let in; else why it is not, and what to do."""
        problem = self._certificate_problem(request)
        if problem is None or _is_local(request):
            return ""
        return f"This page is closed: {printable(problem, max_chars=300)}.\n\n{_HOW}"

    def _certificate_problem(self, request: PageRequest) -> str | None:
        """Why the certificate opens nothing; None if it does."""
        if request.scheme != "https" or request.peer_certificate_der is None:
            return "the request is neither of this machine nor does it carry a certificate"
        pem = ssl.DER_cert_to_PEM_cert(request.peer_certificate_der).encode()
        try:
            self._policy.admit(AS_WHO_CALLS, pem)
        except RoleDeniedError:
            return "the certificate is neither an admin's nor a viewer's"
        except AccessError as error:
            return str(error)
        return None


def _is_local(request: PageRequest) -> bool:
    if _LOCAL_HOST.fullmatch(request.host_header) is None:
        return False
    try:
        address = ipaddress.ip_address(request.peer_address.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
