"""Protobuf on one side, bounded messages on the other. The only module here that knows protobuf.

``*_from_proto`` either returns an object whose every field is within bounds or raises
MalformedMessageError; nothing is coerced, truncated or defaulted. Counts are looked at before items
are built. ``*_to_proto`` followed by ``*_from_proto`` gives an equal object.

Covered: sizes, counts, lengths, ids, finite numbers. Not covered: the size of a whole message,
which the transport limits; protocol checks, which the states make.
"""

from chorale.v1 import secagg_pb2 as pb
from secagg import bounds, merkle, messages
from secagg.descriptor import STEPS, AggregationId, Descriptor, MetricsLayout, SignedDescriptor
from secagg.repeated import items, same
from secagg.roster import Roster, RosterApproval, RosterEntry, SignedRoster


def identity_to_proto(identity: AggregationId) -> pb.AggregationId:
    """Convert."""
    return pb.AggregationId(
        run_id=identity.run_id,
        round=identity.round,
        step=identity.step,
        part=identity.part,
        attempt=identity.attempt,
    )


def identity_from_proto(proto: pb.AggregationId) -> AggregationId:
    """Convert, or raise MalformedMessageError."""
    return AggregationId(
        run_id=proto.run_id,
        round=proto.round,
        step=proto.step,
        part=proto.part,
        attempt=proto.attempt,
    )


def roster_to_proto(signed: SignedRoster) -> pb.Roster:
    """Convert."""
    roster = signed.roster
    return pb.Roster(
        federation=roster.federation,
        epoch=roster.epoch,
        colluding=roster.colluding,
        coordinator_key=roster.coordinator_key,
        entries=[
            pb.RosterEntry(
                silo_id=entry.silo_id,
                spiffe_uri=entry.spiffe_uri,
                verification_key=entry.verification_key,
            )
            for entry in roster.entries
        ],
        signature=signed.signature,
        approvals=[
            pb.RosterApproval(silo_id=one.silo_id, signature=one.signature)
            for one in signed.approvals
        ],
    )


def roster_from_proto(proto: pb.Roster) -> SignedRoster:
    """Convert, or raise MalformedMessageError."""
    entries = items(proto.entries, _roster_entry, bounds.MAX_ROSTER, "roster entries")
    roster = Roster(
        federation=proto.federation,
        epoch=proto.epoch,
        colluding=proto.colluding,
        coordinator_key=proto.coordinator_key,
        entries=entries,
    )
    approvals = items(proto.approvals, _roster_approval, bounds.MAX_COHORT, "roster approvals")
    return SignedRoster(roster=roster, signature=proto.signature, approvals=approvals)


def _roster_approval(proto: pb.RosterApproval) -> RosterApproval:
    return RosterApproval(silo_id=proto.silo_id, signature=proto.signature)


def _roster_entry(proto: pb.RosterEntry) -> RosterEntry:
    return RosterEntry(
        silo_id=proto.silo_id,
        spiffe_uri=proto.spiffe_uri,
        verification_key=proto.verification_key,
    )


def descriptor_to_proto(signed: SignedDescriptor) -> pb.Descriptor:
    """Convert."""
    descriptor = signed.descriptor
    return pb.Descriptor(
        version=descriptor.version,
        suite=descriptor.suite,
        identity=identity_to_proto(descriptor.identity),
        roster_sha256=descriptor.roster_sha256,
        roster_epoch=descriptor.roster_epoch,
        cohort=descriptor.cohort,
        colluding=descriptor.colluding,
        threshold=descriptor.threshold,
        n_min=descriptor.n_min,
        plan_sha256=descriptor.plan_sha256,
        base_model_sha256=descriptor.base_model_sha256,
        adapter_sha256=descriptor.adapter_sha256,
        layout_sha256=descriptor.layout_sha256,
        dimension=descriptor.dimension,
        unit_clip=descriptor.unit_clip,
        vector_clip=descriptor.vector_clip,
        max_units=descriptor.max_units,
        scale=descriptor.scale,
        metrics=pb.MetricsBlockLayout(
            names=descriptor.metrics.names,
            bounds=descriptor.metrics.bounds,
            grid=descriptor.metrics.grid,
            sigma=descriptor.metrics.sigma,
        ),
        ring_bits=descriptor.ring_bits,
        noise_mechanism=descriptor.noise_mechanism,
        noise_sigma=descriptor.noise_sigma,
        privacy_spec_sha256=descriptor.privacy_spec_sha256,
        deadlines_unix_s=descriptor.deadlines_unix_s,
        signature=signed.signature,
        families=descriptor.families,
        task_sha256=descriptor.task_sha256,
        digest_id=descriptor.digest_id,
    )


def descriptor_from_proto(proto: pb.Descriptor) -> SignedDescriptor:
    """Convert, or raise MalformedMessageError."""
    metrics = MetricsLayout(
        names=items(proto.metrics.names, same, bounds.MAX_METRICS, "metrics names"),
        bounds=items(proto.metrics.bounds, same, bounds.MAX_METRICS, "metrics bounds"),
        grid=proto.metrics.grid,
        sigma=proto.metrics.sigma,
    )
    descriptor = Descriptor(
        version=proto.version,
        suite=proto.suite,
        identity=identity_from_proto(proto.identity),
        roster_sha256=proto.roster_sha256,
        roster_epoch=proto.roster_epoch,
        cohort=items(proto.cohort, same, bounds.MAX_COHORT, "cohort"),
        colluding=proto.colluding,
        threshold=proto.threshold,
        n_min=proto.n_min,
        plan_sha256=proto.plan_sha256,
        base_model_sha256=proto.base_model_sha256,
        adapter_sha256=proto.adapter_sha256,
        layout_sha256=proto.layout_sha256,
        dimension=proto.dimension,
        unit_clip=proto.unit_clip,
        vector_clip=proto.vector_clip,
        max_units=proto.max_units,
        scale=proto.scale,
        metrics=metrics,
        ring_bits=proto.ring_bits,
        noise_mechanism=proto.noise_mechanism,
        noise_sigma=proto.noise_sigma,
        privacy_spec_sha256=proto.privacy_spec_sha256,
        deadlines_unix_s=items(proto.deadlines_unix_s, same, len(STEPS), "deadlines"),
        families=items(proto.families, same, bounds.MAX_FAMILIES, "descriptor families"),
        task_sha256=proto.task_sha256,
        digest_id=proto.digest_id,
    )
    return SignedDescriptor(descriptor=descriptor, signature=proto.signature)


def key_bundle_to_proto(bundle: messages.KeyBundle) -> pb.KeyBundle:
    """Convert."""
    return pb.KeyBundle(
        silo_id=bundle.silo_id,
        cipher_key=bundle.cipher_key,
        mask_key=bundle.mask_key,
        ledger_seq=bundle.ledger_seq,
        ledger_sha256=bundle.ledger_sha256,
        families=bundle.families,
        signature=bundle.signature,
        kem_keys=(
            None
            if bundle.kem_keys is None
            else pb.KemKeys(
                cipher_key=bundle.kem_keys.cipher_key, mask_key=bundle.kem_keys.mask_key
            )
        ),
        debit=_debit_to_proto(bundle.debit),
        cohort_may_vary=bundle.cohort_may_vary,
    )


def key_bundle_from_proto(proto: pb.KeyBundle) -> messages.KeyBundle:
    """Convert, or raise MalformedMessageError."""
    return messages.KeyBundle(
        silo_id=proto.silo_id,
        cipher_key=proto.cipher_key,
        mask_key=proto.mask_key,
        ledger_seq=proto.ledger_seq,
        ledger_sha256=proto.ledger_sha256,
        families=items(proto.families, same, bounds.MAX_FAMILIES, "bundle families"),
        signature=proto.signature,
        kem_keys=(
            messages.KemKeys(cipher_key=proto.kem_keys.cipher_key, mask_key=proto.kem_keys.mask_key)
            if proto.HasField("kem_keys")
            else None
        ),
        debit=_debit(proto.debit) if proto.HasField("debit") else None,
        cohort_may_vary=proto.cohort_may_vary,
    )


def _debit_to_proto(debit: messages.DebitHead | None) -> pb.DebitHead | None:
    return None if debit is None else pb.DebitHead(seq=debit.seq, sha256=debit.sha256)


def _debit(proto: pb.DebitHead) -> messages.DebitHead:
    return messages.DebitHead(seq=proto.seq, sha256=proto.sha256)


def key_bundles_to_proto(bundles: messages.KeyBundles) -> pb.KeyBundles:
    """Convert."""
    return pb.KeyBundles(bundles=[key_bundle_to_proto(bundle) for bundle in bundles.bundles])


def key_bundles_from_proto(proto: pb.KeyBundles) -> messages.KeyBundles:
    """Convert, or raise MalformedMessageError."""
    bundles = items(proto.bundles, key_bundle_from_proto, bounds.MAX_COHORT, "bundles")
    return messages.KeyBundles(bundles=bundles)


def share_boxes_to_proto(boxes: messages.ShareBoxes) -> pb.ShareBoxes:
    """Convert."""
    return pb.ShareBoxes(
        sender=boxes.sender,
        boxes=[
            pb.ShareBox(
                recipient=box.recipient,
                ciphertext=box.ciphertext,
                self_seed_share_sha256=box.self_seed_share_sha256,
                mask_key_share_sha256=box.mask_key_share_sha256,
            )
            for box in boxes.boxes
        ],
        self_seed_commitment=boxes.self_seed_commitment,
        own_self_seed_share_sha256=boxes.own_self_seed_share_sha256,
        signature=boxes.signature,
    )


def share_boxes_from_proto(proto: pb.ShareBoxes) -> messages.ShareBoxes:
    """Convert, or raise MalformedMessageError."""
    return messages.ShareBoxes(
        sender=proto.sender,
        boxes=items(proto.boxes, _share_box, bounds.MAX_COHORT, "boxes"),
        self_seed_commitment=proto.self_seed_commitment,
        own_self_seed_share_sha256=proto.own_self_seed_share_sha256,
        signature=proto.signature,
    )


def _share_box(proto: pb.ShareBox) -> messages.ShareBox:
    return messages.ShareBox(
        recipient=proto.recipient,
        ciphertext=proto.ciphertext,
        self_seed_share_sha256=proto.self_seed_share_sha256,
        mask_key_share_sha256=proto.mask_key_share_sha256,
    )


def box_delivery_to_proto(delivery: messages.BoxDelivery) -> pb.BoxDelivery:
    """Convert."""
    return pb.BoxDelivery(
        headers=[_share_box_header_to_proto(header) for header in delivery.headers],
        ciphertexts=dict(delivery.ciphertexts),
    )


def box_delivery_from_proto(proto: pb.BoxDelivery) -> messages.BoxDelivery:
    """Convert, or raise MalformedMessageError."""
    senders = items(proto.ciphertexts, same, bounds.MAX_COHORT, "ciphertexts")
    return messages.BoxDelivery(
        headers=items(proto.headers, _share_box_header, bounds.MAX_COHORT, "headers"),
        ciphertexts={sender: proto.ciphertexts[sender] for sender in senders},
    )


def _share_box_header_to_proto(header: messages.ShareBoxHeader) -> pb.ShareBoxHeader:
    return pb.ShareBoxHeader(
        sender=header.sender,
        boxes=[
            pb.ShareBoxDigest(
                recipient=box.recipient,
                ciphertext_sha256=box.ciphertext_sha256,
                self_seed_share_sha256=box.self_seed_share_sha256,
                mask_key_share_sha256=box.mask_key_share_sha256,
            )
            for box in header.boxes
        ],
        self_seed_commitment=header.self_seed_commitment,
        own_self_seed_share_sha256=header.own_self_seed_share_sha256,
        signature=header.signature,
    )


def _share_box_header(proto: pb.ShareBoxHeader) -> messages.ShareBoxHeader:
    return messages.ShareBoxHeader(
        sender=proto.sender,
        boxes=items(proto.boxes, _share_box_digest, bounds.MAX_COHORT, "box digests"),
        self_seed_commitment=proto.self_seed_commitment,
        own_self_seed_share_sha256=proto.own_self_seed_share_sha256,
        signature=proto.signature,
    )


def _share_box_digest(proto: pb.ShareBoxDigest) -> messages.ShareBoxDigest:
    return messages.ShareBoxDigest(
        recipient=proto.recipient,
        ciphertext_sha256=proto.ciphertext_sha256,
        self_seed_share_sha256=proto.self_seed_share_sha256,
        mask_key_share_sha256=proto.mask_key_share_sha256,
    )


def share_leaves_to_proto(leaves: messages.ShareLeaves) -> pb.ShareLeaves:
    """Convert."""
    return pb.ShareLeaves(
        root=share_root_to_proto(leaves.root),
        leaves=[_share_leaf_to_proto(leaf) for leaf in leaves.leaves],
    )


def share_leaves_from_proto(proto: pb.ShareLeaves) -> messages.ShareLeaves:
    """Convert, or raise MalformedMessageError."""
    return messages.ShareLeaves(
        root=share_root_from_proto(proto.root),
        leaves=items(proto.leaves, _share_leaf, bounds.MAX_COHORT - 1, "leaves"),
    )


def share_root_to_proto(root: messages.ShareRoot) -> pb.ShareRoot:
    """Convert."""
    return pb.ShareRoot(
        sender=root.sender,
        leaf_count=root.leaf_count,
        root=root.root,
        self_seed_commitment=root.self_seed_commitment,
        own_self_seed_share_sha256=root.own_self_seed_share_sha256,
        signature=root.signature,
    )


def share_root_from_proto(proto: pb.ShareRoot) -> messages.ShareRoot:
    """Convert, or raise MalformedMessageError."""
    return messages.ShareRoot(
        sender=proto.sender,
        leaf_count=proto.leaf_count,
        root=proto.root,
        self_seed_commitment=proto.self_seed_commitment,
        own_self_seed_share_sha256=proto.own_self_seed_share_sha256,
        signature=proto.signature,
    )


def leaf_delivery_to_proto(delivery: messages.LeafDelivery) -> pb.LeafDelivery:
    """Convert."""
    return pb.LeafDelivery(
        roots=[share_root_to_proto(root) for root in delivery.roots],
        leaves={
            sender: pb.DeliveredLeaf(leaf=_share_leaf_to_proto(item.leaf), path=item.path)
            for sender, item in delivery.leaves.items()
        },
    )


def leaf_delivery_from_proto(proto: pb.LeafDelivery) -> messages.LeafDelivery:
    """Convert, or raise MalformedMessageError."""
    senders = items(proto.leaves, same, bounds.MAX_COHORT, "delivered leaves")
    return messages.LeafDelivery(
        roots=items(proto.roots, share_root_from_proto, bounds.MAX_COHORT, "roots"),
        leaves={sender: _delivered_leaf(proto.leaves[sender]) for sender in senders},
    )


def _delivered_leaf(proto: pb.DeliveredLeaf) -> messages.DeliveredLeaf:
    path = items(proto.path, same, merkle.MAX_PATH, "path")
    return messages.DeliveredLeaf(leaf=_share_leaf(proto.leaf), path=path)


def _share_leaf_to_proto(leaf: messages.ShareLeaf) -> pb.ShareLeaf:
    return pb.ShareLeaf(
        recipient=leaf.recipient,
        box_kem=leaf.box_kem,
        ciphertext=leaf.ciphertext,
        self_seed_share_sha256=leaf.self_seed_share_sha256,
        mask_key_share_sha256=leaf.mask_key_share_sha256,
        mask_kem=leaf.mask_kem,
        sealed=leaf.sealed,
        pair_secret_sha256=leaf.pair_secret_sha256,
    )


def _share_leaf(proto: pb.ShareLeaf) -> messages.ShareLeaf:
    return messages.ShareLeaf(
        recipient=proto.recipient,
        box_kem=proto.box_kem,
        ciphertext=proto.ciphertext,
        self_seed_share_sha256=proto.self_seed_share_sha256,
        mask_key_share_sha256=proto.mask_key_share_sha256,
        mask_kem=proto.mask_kem,
        sealed=proto.sealed,
        pair_secret_sha256=proto.pair_secret_sha256,
    )


def masked_input_header_to_proto(header: messages.MaskedInputHeader) -> pb.MaskedInputHeader:
    """Convert."""
    return pb.MaskedInputHeader(
        silo_id=header.silo_id,
        length_bytes=header.length_bytes,
        masked_sha256=header.masked_sha256,
        signature=header.signature,
        debit=_debit_to_proto(header.debit),
        rejected=header.rejected,
    )


def masked_input_header_from_proto(proto: pb.MaskedInputHeader) -> messages.MaskedInputHeader:
    """Convert, or raise MalformedMessageError."""
    return messages.MaskedInputHeader(
        silo_id=proto.silo_id,
        length_bytes=proto.length_bytes,
        masked_sha256=proto.masked_sha256,
        signature=proto.signature,
        debit=_debit(proto.debit) if proto.HasField("debit") else None,
        rejected=items(proto.rejected, same, bounds.MAX_COHORT, "rejected senders"),
    )


def survivors_to_proto(survivors: messages.Survivors) -> pb.Survivors:
    """Convert."""
    return pb.Survivors(headers=[masked_input_header_to_proto(item) for item in survivors.headers])


def survivors_from_proto(proto: pb.Survivors) -> messages.Survivors:
    """Convert, or raise MalformedMessageError."""
    headers = items(proto.headers, masked_input_header_from_proto, bounds.MAX_COHORT, "survivors")
    return messages.Survivors(headers=headers)


def consistency_signature_to_proto(item: messages.ConsistencySignature) -> pb.ConsistencySignature:
    """Convert."""
    return pb.ConsistencySignature(silo_id=item.silo_id, signature=item.signature)


def consistency_signature_from_proto(
    proto: pb.ConsistencySignature,
) -> messages.ConsistencySignature:
    """Convert, or raise MalformedMessageError."""
    return messages.ConsistencySignature(silo_id=proto.silo_id, signature=proto.signature)


def consistency_signatures_to_proto(
    signatures: messages.ConsistencySignatures,
) -> pb.ConsistencySignatures:
    """Convert."""
    return pb.ConsistencySignatures(
        signatures=[consistency_signature_to_proto(item) for item in signatures.signatures]
    )


def consistency_signatures_from_proto(
    proto: pb.ConsistencySignatures,
) -> messages.ConsistencySignatures:
    """Convert, or raise MalformedMessageError."""
    convert = consistency_signature_from_proto
    return messages.ConsistencySignatures(
        signatures=items(proto.signatures, convert, bounds.MAX_COHORT, "agreement signatures")
    )


def unmasking_shares_to_proto(shares: messages.UnmaskingShares) -> pb.UnmaskingShares:
    """Convert."""
    return pb.UnmaskingShares(
        silo_id=shares.silo_id,
        self_seed_shares=[
            pb.UnmaskingShare(owner=item.owner, share=item.share)
            for item in shares.self_seed_shares
        ],
        mask_key_shares=[
            pb.UnmaskingShare(owner=item.owner, share=item.share) for item in shares.mask_key_shares
        ],
        signature=shares.signature,
        pair_secrets=(
            None
            if shares.pair_secrets is None
            else pb.PairSecrets(
                secrets=[
                    pb.PairSecret(silo_id=item.silo_id, secret=item.secret)
                    for item in shares.pair_secrets
                ]
            )
        ),
    )


def unmasking_shares_from_proto(proto: pb.UnmaskingShares) -> messages.UnmaskingShares:
    """Convert, or raise MalformedMessageError."""
    return messages.UnmaskingShares(
        silo_id=proto.silo_id,
        self_seed_shares=items(
            proto.self_seed_shares, _unmasking_share, bounds.MAX_COHORT, "self seed shares"
        ),
        mask_key_shares=items(
            proto.mask_key_shares, _unmasking_share, bounds.MAX_COHORT, "mask key shares"
        ),
        signature=proto.signature,
        pair_secrets=(
            items(proto.pair_secrets.secrets, _pair_secret, bounds.MAX_COHORT, "pair secrets")
            if proto.HasField("pair_secrets")
            else None
        ),
    )


def _pair_secret(proto: pb.PairSecret) -> messages.PairSecret:
    return messages.PairSecret(silo_id=proto.silo_id, secret=proto.secret)


def _unmasking_share(proto: pb.UnmaskingShare) -> messages.UnmaskingShare:
    return messages.UnmaskingShare(owner=proto.owner, share=proto.share)
