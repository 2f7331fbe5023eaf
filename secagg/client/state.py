"""What every client state has in common.

* A state acts once. Its secrets move to the next state, and acting again is an
  UnexpectedMessageError, so nothing can be signed or released twice from memory.
* A message of another kind is an UnexpectedMessageError and changes nothing.
* Anything that goes wrong while acting, whether a failed check or a fault of this program, erases
  the secrets first and then raises. `aborted` then holds the terminal state.

Covered: one process. Not covered: what must survive a crash (the "spent" mark, "signed R3" and the
byte-identical resend are the silo daemon's durable records).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from secagg.client.setup import Membership
from secagg.client.vault import Vault
from secagg.descriptor import AggregationId
from secagg.errors import Check, SecAggError, UnexpectedMessageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Aborted:
    """Terminal: a check failed and the secrets are gone."""

    silo_id: str
    identity: AggregationId
    # None when no check failed but the program did, or the silo gave up.
    check: Check | None

    def handle(self, message: object) -> None:
        """Refuse every message."""
        raise UnexpectedMessageError(
            f"{type(message).__name__} after the aggregation was aborted", silo=self.silo_id
        )

    def wipe(self, check: Check | None = None) -> None:
        """Do nothing: no secrets are left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Terminal: the shares were released and the secrets are gone."""

    silo_id: str
    identity: AggregationId

    def handle(self, message: object) -> None:
        """Refuse every message."""
        raise UnexpectedMessageError(
            f"{type(message).__name__} after the shares were released", silo=self.silo_id
        )

    def wipe(self, check: Check | None = None) -> None:
        """Do nothing: no secrets are left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedSender:
    """A silo whose signed box was corrupt."""

    silo_id: str
    check: Check


class ClientState:
    """Base of the states that hold secrets."""

    __slots__ = ("_aborted", "_membership", "_spent", "_vault")

    def __init__(self, membership: Membership, vault: Vault) -> None:
        self._membership = membership
        self._vault = vault
        self._spent = False
        self._aborted: Aborted | None = None

    def __repr__(self) -> str:
        identity = self._membership.identity
        status = "aborted" if self._aborted else "spent" if self._spent else "live"
        return (
            f"{type(self).__name__}({self._membership.silo_id}, {identity.run_id}/"
            f"{identity.round}/{identity.step}/{identity.part}/{identity.attempt}, {status})"
        )

    def __reduce__(self) -> str:
        raise TypeError("a client state is never serialised")

    @property
    def silo_id(self) -> str:
        """This silo."""
        return self._membership.silo_id

    @property
    def identity(self) -> AggregationId:
        """The aggregation's name."""
        return self._membership.identity

    @property
    def aborted(self) -> Aborted | None:
        """The terminal state after a failure or `wipe`, else None."""
        return self._aborted

    def wipe(self, check: Check | None = None) -> None:
        """Erase all secrets and make this state terminal, unless the next state has them.

        `check` is the one of the caller's own that failed.
        """
        if not self._spent:
            self._abort(check)

    def _require_live(self, message: object) -> None:
        if self._aborted is not None or self._spent:
            raise UnexpectedMessageError(
                f"{type(message).__name__} after {type(self).__name__} was over",
                silo=self.silo_id,
            )

    def _unexpected(self, message: object) -> UnexpectedMessageError:
        return UnexpectedMessageError(
            f"{type(self).__name__} does not take {type(message).__name__}", silo=self.silo_id
        )

    def _abort(self, check: Check | None) -> None:
        self._vault.wipe()
        self._spent = True
        self._aborted = Aborted(silo_id=self.silo_id, identity=self.identity, check=check)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        self._spent = True
        try:
            yield
        except BaseException as error:
            # Whatever went wrong, an interrupt included: the secrets go first, the error goes on.
            self._abort(error.check if isinstance(error, SecAggError) else None)
            raise
