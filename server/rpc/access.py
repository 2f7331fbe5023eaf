"""Who may call what: one table, checked on every call.

Invariants:

1. A method that is not in the table is refused.
2. The certificate is judged now, not when the connection was made: its issuer, its validity, its
   federation, its role, and for a silo that it is the very certificate on record and that the silo
   is neither revoked nor suspended.
3. A renewed certificate takes the place of the one before at its first use, durably, before that
   call is served; from then on the one before is refused.
4. That is looked up beside the event loop, in threads of its own: whoever is served already is
   served on while a database is slow.
5. A handler runs only after that, and finds its caller in :func:`current_peer`.
6. A silo that speaks no protocol of this coordinator's is refused (``server/rpc/versions.py``).
7. Whatever a handler raises is answered from the catalogue, and counted.

Each answer says which version this is; one to a silo also carries the digest of the trusted CAs, so
that it learns of a rotation.

Covered: unary and streaming methods of the coordinator's services; certificates that are malformed,
nameless, or name several. Not covered: rate limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from federation.membership.renewal import TRUST_METADATA
from federation.version import this_version
from server.errors import (
    ExpiredCertificateError,
    ForeignFederationError,
    RevokedCertificateError,
    RoleDeniedError,
    SuspendedSiloError,
    UnauthenticatedError,
)
from server.members.peer import Peer, Role
from server.metrics import CoordinatorMetrics
from server.pki.authority import OPERATOR_DOMAIN, certificate_sha256
from server.rpc.answers import answer_errors
from server.rpc.decode import Decoded, guarded, require_decoded
from server.rpc.spans import traced, traced_stream
from server.rpc.versions import SiloVersions
from server.store.federation import FederationRow
from server.store.silos import SiloRow

__all__ = ["ACCESS", "AccessInterceptor", "AccessPolicy", "current_peer"]

Context = grpc.aio.ServicerContext[Any, Any]
_CERTIFICATES_CACHED: Final = 1024
_THREADS: Final = 4


_ADMINS: Final = frozenset({Role.ADMIN})
_READERS: Final = frozenset({Role.ADMIN, Role.VIEWER})
_SILOS: Final = frozenset({Role.SILO})
_ANYONE: Final[frozenset[Role]] = frozenset()
"""No certificate needed; only the enrolment port serves such a method."""

ACCESS: Final = MappingProxyType(
    {
        "/chorale.v1.EnrolmentService/Join": _ANYONE,
        "/chorale.v1.AdminService/CreateFederation": _ADMINS,
        "/chorale.v1.AdminService/GetFederation": _READERS,
        "/chorale.v1.AdminService/CreateInvite": _ADMINS,
        "/chorale.v1.AdminService/ListSilos": _READERS,
        "/chorale.v1.AdminService/SuspendSilo": _ADMINS,
        "/chorale.v1.AdminService/ReinstateSilo": _ADMINS,
        "/chorale.v1.AdminService/RevokeSilo": _ADMINS,
        "/chorale.v1.AdminService/RotateCa": _ADMINS,
        "/chorale.v1.AdminService/ProposeRoster": _ADMINS,
        "/chorale.v1.AdminService/PublishRoster": _ADMINS,
        "/chorale.v1.AdminService/AskSilos": _ADMINS,
        "/chorale.v1.AdminService/StartRun": _ADMINS,
        "/chorale.v1.AdminService/AbortRun": _ADMINS,
        "/chorale.v1.AdminService/PauseRun": _ADMINS,
        "/chorale.v1.AdminService/ResumeRun": _ADMINS,
        "/chorale.v1.AdminService/ListRuns": _READERS,
        "/chorale.v1.AdminService/WatchRun": _READERS,
        "/chorale.v1.AdminService/ListAdapters": _READERS,
        "/chorale.v1.AdminService/RollbackAdapter": _ADMINS,
        "/chorale.v1.AdminService/BisectRun": _ADMINS,
        "/chorale.v1.AdminService/GetAdapter": _READERS,
        "/chorale.v1.AdminService/GetTranscript": _READERS,
        "/chorale.v1.AdminService/GetBudget": _READERS,
        "/chorale.v1.AdminService/TailAudit": _READERS,
        "/chorale.v1.MembershipService/RenewCertificate": _SILOS,
        "/chorale.v1.MembershipService/GetRosterProposal": _SILOS,
        "/chorale.v1.MembershipService/ApproveRoster": _SILOS,
        "/chorale.v1.MembershipService/ExchangeAuditHeads": _SILOS,
        "/chorale.v1.MembershipService/PublishFacts": _SILOS,
        "/chorale.v1.MembershipService/Leave": _SILOS,
        "/chorale.v1.RoundService/GetRoster": _SILOS,
        "/chorale.v1.RoundService/GetPlan": _SILOS,
        "/chorale.v1.RoundService/Poll": _SILOS,
        "/chorale.v1.RoundService/ReportReady": _SILOS,
        "/chorale.v1.RoundService/Refuse": _SILOS,
        "/chorale.v1.RoundService/AnswerPreflight": _SILOS,
        "/chorale.v1.RoundService/AdvertiseKeys": _SILOS,
        "/chorale.v1.RoundService/ShareKeys": _SILOS,
        "/chorale.v1.RoundService/GetUploadOffset": _SILOS,
        "/chorale.v1.RoundService/UploadMaskedInput": _SILOS,
        "/chorale.v1.RoundService/CheckConsistency": _SILOS,
        "/chorale.v1.RoundService/Unmask": _SILOS,
        "/chorale.v1.RoundService/FetchBlob": _SILOS,
        "/chorale.v1.RoundService/ListRecords": _SILOS,
    }
)


_PEER: ContextVar[Peer] = ContextVar("chorale_peer")


def current_peer() -> Peer:
    """Return who is calling.

    Raises:
        UnauthenticatedError: The method needs no certificate, so there is no caller to name.
    """
    peer = _PEER.get(None)
    if peer is None:
        raise UnauthenticatedError("this call has no authenticated caller")
    return peer


class TrustedCas(Protocol):
    """What the policy needs of ``server/pki/trust.py``."""

    @property
    def sha256(self) -> bytes:
        """The digest of the set."""

    def certificates(self) -> tuple[x509.Certificate, ...]:
        """The CAs that are trusted now."""


class EnrolledSilos(Protocol):
    """What the policy needs of ``server/store/silos.py``."""

    def get(self, silo_id: str) -> SiloRow | None:
        """Find a silo."""

    def use_next(self, silo_id: str, certificate_sha256: bytes) -> None:
        """Let the next certificate take the place of the one before."""


class AccessPolicy:
    """Judges a certificate for a method, at this moment."""

    def __init__(
        self,
        *,
        trust: TrustedCas,
        federation: Callable[[], FederationRow | None],
        silos: EnrolledSilos,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.trust = trust
        self._federation = federation
        self._silos = silos
        self._clock = clock

    def admit(self, method: str, certificate_pem: bytes | None) -> Peer | None:
        """Decide one call by its full method name and the certificate that TLS verified, if any.

        The caller is None where the method needs none.

        Raises:
            AccessError: The call is refused; the type says why.
        """
        roles = ACCESS.get(method)
        if roles is None:
            raise RoleDeniedError(f"no role may call {method[:128]}")
        if not roles:
            return None
        if not certificate_pem:
            raise UnauthenticatedError("this method needs a client certificate")
        certificate = _parse_certificate(certificate_pem)
        peer = self._identify(certificate)
        if peer.role not in roles:
            raise RoleDeniedError(f"the role {peer.role.value} may not call {method}")
        if peer.role is Role.SILO:
            self._admit_silo(peer)
        return peer

    def _admit_silo(self, peer: Peer) -> None:
        silo = self._silos.get(peer.name)
        if silo is None or silo.revoked:
            raise RevokedCertificateError(f"{peer.name} is not an enrolled silo")
        known = {silo.certificate_sha256, silo.next_certificate_sha256}
        if peer.certificate_sha256 not in known:
            raise RevokedCertificateError(f"{peer.name} has a newer certificate than this one")
        if silo.suspended:
            raise SuspendedSiloError(f"{peer.name} is suspended by the coordinator's admin")
        if silo.certificate_sha256 != peer.certificate_sha256:
            self._silos.use_next(peer.name, peer.certificate_sha256)

    def _require_trusted(self, certificate: x509.Certificate) -> None:
        for ca in self.trust.certificates():
            try:
                certificate.verify_directly_issued_by(ca)
            except (InvalidSignature, ValueError, TypeError):
                continue
            return
        raise UnauthenticatedError(
            "the certificate is not of a CA that is trusted here now; if that CA was replaced, a "
            "silo joins again with a new invite, and an admin runs chorale admin renew"
        )

    def _identify(self, certificate: x509.Certificate) -> Peer:
        self._require_trusted(certificate)
        now = self._clock()
        if not (
            certificate.not_valid_before_utc.timestamp()
            <= now
            < certificate.not_valid_after_utc.timestamp()
        ):
            raise ExpiredCertificateError(
                f"the certificate was valid until {certificate.not_valid_after_utc.isoformat()}"
            )
        domain, role, name = _spiffe_name(certificate)
        try:
            known = Role(role)
        except ValueError as error:
            raise RoleDeniedError(f"unknown role {role[:64]!r}") from error
        ours = OPERATOR_DOMAIN
        if known is Role.SILO:
            federation = self._federation()
            ours = "" if federation is None else federation.name
        if domain != ours:
            raise ForeignFederationError(
                f"the certificate is of {domain[:64]!r}, for a {known.value} this is {ours!r}"
            )
        return Peer(role=known, name=name, certificate_sha256=certificate_sha256(certificate))


@lru_cache(maxsize=_CERTIFICATES_CACHED)
def _parse_certificate(pem: bytes) -> x509.Certificate:
    """Read what TLS verified; UnauthenticatedError if it is malformed."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UnauthenticatedError("the client certificate is malformed") from error


def _spiffe_name(certificate: x509.Certificate) -> tuple[str, str, str]:
    """Trust domain, role and name of the one SPIFFE URI, unjudged; else an UnauthenticatedError."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise UnauthenticatedError("the certificate carries no name") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    parts = uris[0].removeprefix("spiffe://").split("/") if len(uris) == 1 else []
    if len(parts) != 3 or not uris[0].startswith("spiffe://") or not all(parts):
        raise UnauthenticatedError("the certificate does not carry exactly one SPIFFE URI")
    return parts[0], parts[1], parts[2]


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Puts the policy, the catalogue and the call metrics around every handler."""

    def __init__(
        self,
        *,
        policy: AccessPolicy,
        metrics: CoordinatorMetrics,
        called: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        """``called`` is told of each call's connection."""
        self._called = called
        self._policy = policy
        self._metrics = metrics
        self._versions = SiloVersions()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="chorale-admission")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call; None for a method that nobody serves."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: Any = handler_call_details.method
        kind = (
            f"{'client_stream' if handler.request_streaming else 'unary'}_"
            f"{'server_stream' if handler.response_streaming else 'unary'}"
        )
        make = {
            "unary_unary": grpc.unary_unary_rpc_method_handler,
            "unary_server_stream": grpc.unary_stream_rpc_method_handler,
            "client_stream_unary": grpc.stream_unary_rpc_method_handler,
            "client_stream_server_stream": grpc.stream_stream_rpc_method_handler,
        }[kind]
        inner = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        answer: Any
        if handler.response_streaming:
            answer = traced_stream(method, self._stream(method, kind, inner))
        else:
            answer = traced(method, self._single(method, kind, inner))
        return make(
            answer,
            guarded(handler.request_deserializer),
            self._counted(_unless_serialised(handler.response_serializer)),
        )

    def _single(self, method: str, kind: str, inner: Callable[..., Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Context) -> Any:
            async def answer() -> Any:
                await self._admit(method, context)
                if kind.startswith("client_stream"):
                    return await inner(Decoded(context), context)
                return await inner(require_decoded(request), context)

            started = time.perf_counter()
            try:
                return await answer_errors(context, self._metrics, answer)
            finally:
                self._handled(method, kind, context, time.perf_counter() - started)

        return call

    def _stream(self, method: str, kind: str, inner: Callable[..., AsyncIterator[Any]]) -> Any:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            try:

                async def open_stream() -> AsyncIterator[Any]:
                    await self._admit(method, context)
                    return aiter(inner(require_decoded(request), context))

                responses = await answer_errors(context, self._metrics, open_stream)
                while True:

                    async def advance() -> tuple[bool, Any]:
                        try:
                            return True, await anext(responses)
                        except StopAsyncIteration:
                            return False, None

                    more, response = await answer_errors(context, self._metrics, advance)
                    if not more:
                        return
                    yield response
            finally:
                self._handled(method, kind, context, time.perf_counter() - started)

        return call

    async def _admit(self, method: str, context: Context) -> None:
        self._called(context.peer())
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        peer = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._policy.admit, method, pem
        )
        said = this_version().words
        if peer is None:
            self._versions.admit("", context.invocation_metadata())
        elif peer.role is Role.SILO:
            version = self._versions.admit(peer.name, context.invocation_metadata())
            peer = replace(peer, version=version)
            said = (*said, (TRUST_METADATA, self._policy.trust.sha256.hex()))
        if peer is not None:
            _PEER.set(peer)
        context.set_trailing_metadata(said)

    def _counted(self, serialise: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        def serialised(message: Any) -> bytes:
            content = serialise(message)
            self._metrics.sent_bytes.inc(len(content))
            return content

        return serialised

    def _handled(self, method: str, kind: str, context: Context, elapsed_s: float) -> None:
        _, service, name = method.split("/")
        code = context.code()
        labels = {"grpc_type": kind, "grpc_service": service, "grpc_method": name}
        self._metrics.rpc_handled.labels(**labels, grpc_code=_code_name(code)).inc()
        self._metrics.rpc_seconds.labels(**labels).observe(elapsed_s)


def _unless_serialised(serialise: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Let a handler answer with bytes: an answer to many callers is serialised once."""
    return lambda message: message if isinstance(message, bytes) else serialise(message)


def _code_name(code: Any) -> str:
    if code is None or code == 0:
        return grpc.StatusCode.OK.name
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((known.name for known in grpc.StatusCode if known.value[0] == code), "UNKNOWN")
