"""A silo goes back only to an adapter of the chain that it adopted, and only if its site allows."""

from dataclasses import replace

import numpy as np
import pytest

from federation.adapter.encoding import encode_adapter
from federation.audit.head import COORDINATOR, require_follows, sign_head
from federation.audit.lines import ChainHead as AuditChainHead
from federation.errors import AuditHeadConflictError, ChainError, UpdateError
from secagg.errors import Check
from server.audit import AuditEvent, AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.daemon.gate import Gate
from silo_agent.errors import ChainMismatchError, PolicyFileError, PolicyRefusalError, SessionError
from silo_agent.follow.chain import ChainFollower
from silo_agent.follow.published import require_head
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from silo_agent.policy.policy import check_rollback
from silo_agent.policy.proposal import write_default, write_for_plan
from tests.kit.federation.adapters import lora, plan_of, record_plan
from tests.kit.secagg.secagg_samples import (
    COORDINATOR_KEY,
    make_descriptor,
    make_roster,
    signing_key,
)
from tests.kit.silo_agent.published import KEY, RUN, Published, kept_in, require_unmoved, sync


class Returning(Published):
    """A coordinator that can take its run back."""

    def __init__(self, plan=None):
        plan = plan or plan_of("fedavg")
        rounds = plan.rounds.model_copy(update={"count": 8})
        super().__init__(plan.model_copy(update={"rounds": rounds}))
        self.ended = {0: self.tensors}

    def round(self, seed=7):
        super().round(seed)
        self.ended[self.chain[-1].round] = self.tensors

    def roll_back(self, to_round, tensors=None, *, key=COORDINATOR_KEY, **changes):
        """Every place of the next round."""
        tensors = self.ended[to_round] if tensors is None else tensors
        made = {"kind": "rollback", "restored_round": to_round, **changes}
        for _ in range(self.plan.sums_per_round):
            # A skipped record of the same place has the same links.
            self.add("skipped", self.tensors)
            record = self.chain.pop()
            digest = self.put(encode_adapter(tensors))
            self.chain.append(replace(record, adapter_sha256=digest, **made).sign(key))
            self.tensors = tensors
            self.optimiser.restart(round_number=record.round, step=record.step)
        self.ended[record.round] = tensors


@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_a_silo_goes_back_and_on(store, tmp_path, method, target, at_once):
    published = Returning(plan_of(method, gauge=method == "rolora"))
    for seed in (1, 2):
        published.round(seed)
    if not at_once:
        sync(published, store)
        assert kept_in(tmp_path) == {published.chain[-1].adapter_sha256.hex()}
    published.roll_back(target)
    if not at_once:
        head = sync(published, store)
        assert head.record.adapter_sha256 == published.chain[target].adapter_sha256
        assert store.chain_head(RUN).restored_round == target
        # It is remembered over a restart.
        assert LocalStore(tmp_path).chain_head(RUN) == store.chain_head(RUN)
    published.round(5)
    head = sync(published, store)
    assert head.record == published.chain[-1]
    assert store.chain_head(RUN).restored_round is None
    for name, expected in published.tensors.items():
        np.testing.assert_array_equal(head.tensors[name], expected)


@pytest.mark.parametrize("optimiser", ["fedadam", "fedavgm"])
@pytest.mark.parametrize("restarted", [False, True])
def test_moments_restart_here_as_at_the_coordinator(store, optimiser, restarted):
    published = Returning(plan_of("fedavg", optimiser=optimiser, server_step=0.01))
    follower = ChainFollower(coordinator=published, store=store)

    def follow():
        return follower.sync(RUN, lambda _sha256: published.plan, KEY)

    for seed in (1, 2, 3):
        published.round(seed)
        follow()
    published.roll_back(1)
    follow()
    published.round(4)
    follow()
    if restarted:
        follower = ChainFollower(coordinator=published, store=store)
    published.fetched.clear()
    published.round(5)
    assert follow().record == published.chain[-1]
    # A new process needs the sums since the rollback, and no earlier one.
    sums = [record.sum_sha256 for record in published.chain if record.sum_sha256]
    wanted = sums[3:] if restarted else sums[4:]
    assert [digest for digest in published.fetched if digest in sums] == wanted
    # Moments that went on over the rollback would be another update.
    lying = Returning(published.plan)
    for seed in (1, 2, 3):
        lying.round(seed)
    restart, lying.optimiser.restart = lying.optimiser.restart, lying.optimiser.skip
    lying.roll_back(1)
    lying.optimiser.restart = restart
    lying.round(4)
    with pytest.raises(UpdateError):
        ChainFollower(coordinator=lying, store=LocalStore(made(store._directory / "other"))).sync(
            RUN, lambda _sha256: lying.plan, KEY
        )


def test_a_round_of_steps_goes_back_as_a_whole(store):
    published = Returning(record_plan("record_distributed", method="fedavg", optimiser="sgd"))
    sums = published.plan.sums_per_round
    assert sums > 1
    for seed in range(2 * sums):
        published.round(seed)
    sync(published, store)
    published.roll_back(1)
    head = sync(published, store)
    assert head.record.place == (3, sums - 1)
    assert head.record.adapter_sha256 == published.chain[sums].adapter_sha256
    published.round(77)
    assert sync(published, store).record.place == (4, 0)


@pytest.mark.parametrize(
    ("attack", "match"),
    [
        (lambda p: p.roll_back(1, lora(99)), "not that of the end of round 1"),
        (lambda p: p.roll_back(1, p.ended[2]), "not that of the end of round 1"),
        (lambda p: p.roll_back(1, key=signing_key("silo-000")), "not signed"),
        (lambda p: p.roll_back(1, parent_sha256=b"q" * 32), "parent adapter"),
        (lambda p: p.roll_back(1, record_parent_sha256=b"q" * 32), "parent record"),
        (lambda p: p.roll_back(1, run_id="run-2"), "run_id"),
    ],
    ids=["never released", "another round's", "forged", "parent", "record parent", "another run"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_rollback_that_the_chain_does_not_hold_is_refused(store, attack, match, at_once):
    published = Returning()
    for seed in (1, 2, 3):
        published.round(seed)
    if not at_once:
        sync(published, store)
    attack(published)
    require_unmoved(published, store, ChainError, -1 if at_once else 3, match)


def test_an_earlier_record_cannot_be_put_in_for_the_silo_that_adopted_another(store):
    """The adapter of round 1 is shown as another one after this silo has gone past it."""
    published = Returning()
    for seed in (1, 2):
        published.round(seed)
    sync(published, store)
    forged = replace(published.chain[1], adapter_sha256=published.put(encode_adapter(lora(99))))
    honest, published.chain[1] = published.chain[1], forged.sign(COORDINATOR_KEY)
    published.ended[1] = lora(99)
    published.roll_back(1)
    require_unmoved(published, store, (ChainError, ChainMismatchError), 2)
    published.chain[1] = honest
    require_unmoved(published, store, ChainError, 2, "not that of the end of round 1")


def gate_of(tmp_path, allow):
    policy = Policy.parse(f"[methods]\nallow_rollback = {str(allow).lower()}\n".encode())
    metrics = SiloMetrics()
    return Gate(tmp_path, policy, metrics), metrics


def accepted(metrics):
    return metrics.registry.get_sample_value(
        "chorale_silo_policy_decisions_total", {"decision": "accept", "rule": "accepted"}
    )


def test_a_site_that_does_not_allow_it_stays_before_the_rollback(store, tmp_path):
    published = Returning()
    published.round(1)
    published.round(2)
    published.roll_back(1)
    published.round(3)
    gate, metrics = gate_of(tmp_path / "gate", allow=False)
    follower = ChainFollower(coordinator=published, store=store, admit=gate.judge_record)
    for _ in range(2):
        published.fetched.clear()
        with pytest.raises(PolicyRefusalError, match=r"methods.allow_rollback is false") as refused:
            follower.sync(RUN, lambda _sha256: published.plan, KEY)
        assert refused.value.rule == "rollback_allowed"
        assert refused.value.public_reason == "the site's policy does not allow a rollback"
        # What came before it was adopted; nothing of it, or of what follows, was fetched.
        assert store.chain_head(RUN).round == 2
    assert published.fetched == []
    assert published.chain[4].adapter_sha256.hex() not in kept_in(tmp_path)
    # The operator changed the file and started the daemon again.
    gate, metrics = gate_of(tmp_path / "gate", allow=True)
    follower = ChainFollower(coordinator=published, store=store, admit=gate.judge_record)
    head = follower.sync(RUN, lambda _sha256: published.plan, KEY)
    assert head.record == published.chain[-1]
    assert accepted(metrics) == 1.0


def test_the_policy_says_no_unless_it_is_written(tmp_path):
    assert not Policy.parse(b"").methods.allow_rollback
    record = Returning()
    record.round(1)
    record.roll_back(0)
    refused = check_rollback(Policy.parse(b""), record.chain[-1])
    assert not refused.accepted
    assert "round 0 in round 2" in refused.detail
    assert not any(character.isdigit() for character in refused.public_reason)
    assert check_rollback(
        Policy.parse(b"[methods]\nallow_rollback = true\n"), record.chain[-1]
    ).accepted
    for wrong in (b'"true"', b"1", b"[]"):
        with pytest.raises(PolicyFileError, match="allow_rollback"):
            Policy.parse(b"[methods]\nallow_rollback = " + wrong + b"\n")
    write_default(tmp_path / "nothing.toml")
    write_for_plan(tmp_path / "plan.toml", plan_of("fedavg"))
    for name in ("nothing.toml", "plan.toml"):
        text = (tmp_path / name).read_text()
        assert "\nallow_rollback = false\n" in text
        assert not Policy.parse(text.encode()).methods.allow_rollback


# A coordinator that tells two silos two stories --------------------------------------------------


def made(directory):
    directory.mkdir()
    return directory


def two_stories(tmp_path):
    """One silo is told of a rollback in round 3, another of a sum."""
    back, on = Returning(), Returning()
    for published in (back, on):
        published.round(1)
        published.round(2)
    back.roll_back(1)
    on.round(3)
    heads = [
        sync(published, LocalStore(made(tmp_path / name)))
        for name, published in (("told-back", back), ("told-on", on))
    ]
    return back, on, heads


def test_two_stories_do_not_meet_in_one_sum(tmp_path):
    back, on, heads = two_stories(tmp_path)
    ours, theirs = (head.record for head in heads)
    assert (ours.place, ours.kind, theirs.kind) == (theirs.place, "rollback", "aggregated")
    # Whichever adapter the descriptor of round 4 names, one of the two refuses to show a key.
    descriptor = make_descriptor(make_roster())
    for named, follows, refuses in ((ours, ours, theirs), (theirs, theirs, ours)):
        asked = replace(
            descriptor,
            adapter_sha256=named.adapter_sha256,
            plan_sha256=named.plan_sha256,
            identity=replace(descriptor.identity, run_id=RUN, round=4, step=0),
        )
        require_head(asked, back.plan, follows)
        with pytest.raises(SessionError, match="another adapter") as refused:
            require_head(asked, on.plan, refuses)
        assert refused.value.check is Check.MODEL
    # Two signed records of one place after one parent are the proof.
    for record in (ours, theirs):
        record.verify(KEY)
    assert ours.record_parent_sha256 == theirs.record_parent_sha256
    assert ours.sha256 != theirs.sha256


def test_two_stories_need_two_audit_logs_and_their_heads_conflict(tmp_path):
    _, _, heads = two_stories(tmp_path)
    signed = []
    for head in heads:
        directory = tmp_path / head.record.kind
        directory.mkdir()
        log = AuditLog(directory / "audit.jsonl", lambda: 1.0)
        log.append(AuditEvent.RUN_STARTED, run=RUN)
        log.append(
            AuditEvent.ROUND_FINISHED,
            run=RUN,
            round=3,
            outcome=head.record.kind,
            adapter=head.record.adapter_sha256.hex(),
        )
        known: AuditChainHead = log.head()
        signed.append(
            sign_head(
                known,
                federation="oncology",
                writer=COORDINATOR,
                at_unix_s=1,
                key=COORDINATOR_KEY,
            )
        )
    assert signed[0].index == signed[1].index
    for one, other in (signed, reversed(signed)):
        with pytest.raises(AuditHeadConflictError):
            require_follows(one, other)
