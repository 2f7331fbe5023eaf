"""TLS of the probe port: a certificate of the operator's, and whom it shows itself to.

Invariants:

1. The files are read for each connection: a renewed certificate needs no restart.
2. A client certificate is asked for, not demanded: Prometheus and kubelets have none. One that the
   client CAs did not sign, or that is over, ends the handshake; what a good one may see is for the
   pages to say.

Covered: TLS 1.2 and later, a certificate that is replaced while it serves. Not covered: revocation,
which the pages check.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from federation.errors import ProbeError

__all__ = ["ProbeTls"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeTls:
    """What the probe port needs to speak TLS."""

    certificate: Path
    """PEM: the certificate and what lies between it and its root."""
    key: Path
    """PEM, without a passphrase."""
    client_ca: Path | None = None
    """PEM: who signs client certificates; nobody is asked for one if unset."""

    @classmethod
    def of_files(
        cls, certificate: Path | None, key: Path | None, *, client_ca: Path | None = None
    ) -> ProbeTls | None:
        """Both files make TLS, none plain HTTP.

        Raises:
            ProbeError: Only one of them is named, or they cannot be used.
        """
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise ProbeError("probes_certificate and probes_key go together")
        tls = cls(certificate=certificate, key=key, client_ca=client_ca)
        tls.context()
        return tls

    def context(self) -> ssl.SSLContext:
        """What a connection is wrapped with.

        Raises:
            ProbeError: A file cannot be read, or key and certificate do not fit.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A passphrase would be asked for on the terminal; an empty answer is an error instead.
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as error:
            raise ProbeError(
                f"TLS of the probe port cannot use {self.certificate} and {self.key}: {error}"
            ) from error
        return context
