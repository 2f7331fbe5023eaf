"""Which CAs this coordinator issues from and trusts, now and while one replaces another.

``pki/ca.pem`` and ``pki/ca.key`` are the founding CA. From the first rotation on, every CA has a
directory ``pki/authorities/<digest>``, ``pki/trust.json`` names the one that issues, the one that
retires and until when, and ``pki/ca.pem`` is what follows from that: the trusted ones, the issuing
one first.

Invariants:

1. New client certificates come from the issuing CA alone. Until the overlap ends both are trusted
   for clients, and the server's certificate stays under the retiring one, which every silo knows.
2. The retiring CA is trusted up to its moment and not a second longer, whether or not anybody has
   tidied up.
3. Replacing ``trust.json`` is the one step that changes anything: what a crash leaves before it is
   of no effect, what is missing after it is made good at the next start.
4. One rotation at a time.

Covered: rotation, its end, a crash at any point of either. Not covered: a stolen CA key, which no
overlap mends: found a new coordinator; a CA that nobody rotates in its ten years.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from federation.membership.renewal import trust_sha256
from ops.files import private_directory, replace_file, sync_directory
from server.errors import CaRotationError, PkiError
from server.pki.authority import CertificateAuthority, certificate_sha256, der

__all__ = ["MAX_OVERLAP_S", "MIN_OVERLAP_S", "Retiring", "Trust"]

MIN_OVERLAP_S: Final = 3600
"""Silos that are up learn of a rotation within a poll; an hour is for a restart or two."""
MAX_OVERLAP_S: Final = 90 * 86400
"""Less than half the life of a server certificate, which is not renewed under the retiring CA."""
_AUTHORITIES: Final = "authorities"
_MANIFEST: Final = "trust.json"
_VERSION: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Retiring:
    """A CA on its way out."""

    authority: CertificateAuthority
    until_unix_s: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    issuing: CertificateAuthority
    retiring: Retiring | None


class Trust:
    """The CAs of one coordinator. Reading is safe from any thread; one process changes them."""

    def __init__(
        self, pki: Path, state: _State, clock: Callable[[], float], passphrase: bytes | None
    ) -> None:
        self._pki = pki
        self._passphrase = passphrase
        self._state = state
        self._clock = clock
        self._digests: dict[tuple[bytes, ...], bytes] = {}

    @classmethod
    def load(
        cls,
        pki: Path,
        *,
        passphrase: bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Trust:
        """Read the CAs from the directory of CA and server certificate; changes nothing on disk.

        The passphrase opens keys that are encrypted, and encrypts new ones; the clock decides when
        an overlap is over.

        Raises:
            PkiError: A file is absent or unreadable, or does not say what it must.
        """
        return cls(pki, _read(pki, passphrase), clock, passphrase)

    @property
    def issuing(self) -> CertificateAuthority:
        """Signs new client certificates."""
        return self._state.issuing

    @property
    def retiring(self) -> Retiring | None:
        """The CA before, until the overlap ends."""
        retiring = self._state.retiring
        if retiring is None or self._clock() >= retiring.until_unix_s:
            return None
        return retiring

    @property
    def serving(self) -> CertificateAuthority:
        """Signs the server's certificate."""
        retiring = self.retiring
        return self.issuing if retiring is None else retiring.authority

    def certificates(self) -> tuple[x509.Certificate, ...]:
        """Return every CA that is trusted now, the issuing one first."""
        state, retiring = self._state, self.retiring
        older = () if retiring is None else (retiring.authority.certificate,)
        return (state.issuing.certificate, *older)

    @property
    def sha256(self) -> bytes:
        """The digest of the trusted set, by which silos see that it changed."""
        ders = tuple(der(certificate) for certificate in self.certificates())
        if ders not in self._digests:
            self._digests = {ders: trust_sha256(ders)}
        return self._digests[ders]

    def require_valid(self) -> None:
        """Check that the issuing CA can be believed now.

        Raises:
            PkiError: Its time has not come, or is over.
        """
        certificate = self.issuing.certificate
        first = certificate.not_valid_before_utc.timestamp()
        last = certificate.not_valid_after_utc.timestamp()
        if not first <= self._clock() <= last:
            raise PkiError("the issuing CA is not valid now: chorale ca rotate, and the clock")

    def rotate(
        self,
        overlap_s: int,
        *,
        name: str,
        noted: Callable[[CertificateAuthority, Retiring], None] = lambda _new, _old: None,
    ) -> Retiring:
        """Make a new issuing CA; returns the one before, and until when it is trusted.

        The present one is trusted beside it for ``overlap_s``; ``name`` is shown in the new one's
        subject. ``noted`` is told before anything changes; what it raises keeps everything as it
        is.

        Raises:
            CaRotationError: The overlap is out of bounds, or the last rotation is not over.
        """
        if not MIN_OVERLAP_S <= overlap_s <= MAX_OVERLAP_S:
            raise CaRotationError(
                f"an overlap lasts {MIN_OVERLAP_S} seconds to {MAX_OVERLAP_S // 86400} days"
            )
        if self.retiring is not None:
            raise CaRotationError("the overlap of the last rotation is not over")
        self.tidy()
        old, new = self.issuing, CertificateAuthority.create(name)
        retiring = Retiring(authority=old, until_unix_s=int(self._clock()) + overlap_s)
        for authority in (old, new):
            self._keep(authority)
        noted(new, retiring)
        self._commit(_State(issuing=new, retiring=retiring))
        return retiring

    def tidy(self, noted: Callable[[bytes], None] = lambda _digest: None) -> bytes | None:
        """Forget a CA whose overlap is over, and make good what a crash left undone.

        ``noted`` is told the digest of that CA before it is forgotten. The digest is returned; None
        if there was none.
        """
        state, forgotten = self._state, None
        if state.retiring is not None and self.retiring is None:
            forgotten = state.retiring.authority.sha256
            noted(forgotten)
            self._commit(_State(issuing=state.issuing, retiring=None))
        elif (self._pki / _MANIFEST).exists():
            self._settle()
        return forgotten

    def _commit(self, state: _State) -> None:
        retiring = state.retiring
        manifest = {
            "version": _VERSION,
            "issuing": state.issuing.sha256.hex(),
            "retiring": None if retiring is None else retiring.authority.sha256.hex(),
            "retiring_until_unix_s": None if retiring is None else retiring.until_unix_s,
        }
        content = json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"
        replace_file(self._pki / _MANIFEST, (content,))
        self._state = state
        self._settle()

    def _settle(self) -> None:
        """Bring everything beside ``trust.json`` in line with it."""
        bundle = b"".join(ca.public_bytes(Encoding.PEM) for ca in self.certificates())
        path = self._pki / "ca.pem"
        if not path.exists() or path.read_bytes() != bundle:
            replace_file(path, (bundle,), mode=0o644)
        (self._pki / "ca.key").unlink(missing_ok=True)
        state = self._state
        kept = {state.issuing.sha256.hex()}
        if state.retiring is not None:
            kept.add(state.retiring.authority.sha256.hex())
        for path in (self._pki / _AUTHORITIES).iterdir():
            # Whatever else an operator put there is none of ours.
            ours = _DIGEST.fullmatch(path.name) is not None and not path.is_symlink()
            if ours and path.is_dir() and path.name not in kept:
                shutil.rmtree(path)
        sync_directory(self._pki / _AUTHORITIES)

    def _keep(self, authority: CertificateAuthority) -> None:
        private_directory(self._pki / _AUTHORITIES)
        sync_directory(self._pki)
        directory = self._pki / _AUTHORITIES / authority.sha256.hex()
        authority.save(directory, passphrase=self._passphrase)
        sync_directory(self._pki / _AUTHORITIES)


def _read(pki: Path, passphrase: bytes | None) -> _State:
    path = pki / _MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        issuing_one = CertificateAuthority.load(pki, passphrase=passphrase)
        return _State(issuing=issuing_one, retiring=None)
    except OSError as error:
        raise PkiError(f"{path} cannot be read: {error}") from error
    try:
        manifest = json.loads(content)
        version, issuing = manifest["version"], manifest["issuing"]
        retiring, until = manifest["retiring"], manifest["retiring_until_unix_s"]
    except (ValueError, TypeError, KeyError) as error:
        raise PkiError(f"{path} is not what a rotation wrote") from error
    if version != _VERSION:
        raise PkiError(f"{path} is of another version of chorale")
    if retiring is None:
        return _State(issuing=_authority(pki, issuing, passphrase), retiring=None)
    if type(until) is not int or not 0 < until < 2**63:
        raise PkiError(f"{path} does not say until when the old CA is trusted")
    return _State(
        issuing=_authority(pki, issuing, passphrase),
        retiring=Retiring(authority=_authority(pki, retiring, passphrase), until_unix_s=until),
    )


def _authority(pki: Path, digest: object, passphrase: bytes | None) -> CertificateAuthority:
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise PkiError(f"{pki / _MANIFEST} names a CA by something that is no digest")
    authority = CertificateAuthority.load(pki / _AUTHORITIES / digest, passphrase=passphrase)
    if certificate_sha256(authority.certificate).hex() != digest:
        raise PkiError(f"the CA in {pki / _AUTHORITIES / digest} is another one")
    return authority
