"""R0 at the coordinator: gather key bundles, then broadcast them."""

from secagg import transcript
from secagg.descriptor import SignedDescriptor, verify_descriptor
from secagg.errors import Check
from secagg.messages import KeyBundle, KeyBundles
from secagg.roster import SignedRoster
from secagg.server.collect_shares import CollectShares
from secagg.server.state import Aggregation, ServerState
from secagg.verification import check_bundle, check_contributors, check_families


def open_aggregation(descriptor: SignedDescriptor, roster: SignedRoster) -> "CollectBundles":
    """Open R0 for the cohort of a descriptor, which is checked as the silos will check it.

    The roster has already been accepted by `verify_roster`.

    Raises:
        VerificationError: The silos would refuse this descriptor.
    """
    parameters = verify_descriptor(descriptor, roster.roster)
    return CollectBundles(
        Aggregation(roster=roster.roster, descriptor=descriptor.descriptor, parameters=parameters)
    )


class CollectBundles(ServerState[KeyBundle]):
    """Waits for a key bundle of each silo of the cohort."""

    __slots__ = ("_descriptor_sha256", "_seen_keys")

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation, aggregation.descriptor.cohort)
        self._descriptor_sha256 = aggregation.descriptor.sha256
        self._seen_keys: set[bytes] = set()

    def receive(self, message: KeyBundle) -> bool:
        """Take one bundle, and say whether it is new.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender, duplicate, suite, bundle_signature, key_distinct,
                low_order_key, kem_key.
        """
        if self._is_repeat(message.silo_id, message):
            return False
        check_bundle(
            self._aggregation.roster,
            self._descriptor_sha256,
            message,
            self._seen_keys,
            is_hybrid=self._aggregation.descriptor.is_hybrid,
        )
        self._received[message.silo_id] = message
        return True

    def close(self) -> tuple[CollectShares, KeyBundles]:
        """Fix U1.

        Raises:
            VerificationError: bundles_size; or metrics_families or contributors, at which every
                silo would abort.
        """
        descriptor, parameters = self._aggregation.descriptor, self._aggregation.parameters
        bundles = tuple(self._close(Check.BUNDLES_SIZE).values())
        check_families(descriptor, bundles, self._needed)
        if descriptor.is_hybrid:
            declared = {bundle.silo_id: bundle.families for bundle in bundles}
            check_contributors(descriptor, declared, declared, parameters, after_upload=False)
        ctx = transcript.context(descriptor, bundles)
        return CollectShares(self._aggregation, ctx, bundles), KeyBundles(bundles=bundles)
