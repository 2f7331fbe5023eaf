"""The preview against the bytes that a real session hands to the real transport."""

import hashlib
import inspect
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from chorale.v1 import membership_pb2, round_pb2
from dp.accounting.charge import attempt_charges
from dp.accounting.compose import shown_epsilon_of
from dp.config import Mode
from dp.ledger.ledger import Ledger
from federation.adapter.encoding import encode_adapter
from federation.membership.facts import FreeGpu
from federation.plan.read import read_plan
from secagg import server
from silo_agent.books.facts import OperatorsWord
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.cli.runs import preview_lines
from silo_agent.line.transport import Coordinator
from silo_agent.views import preview as preview_module
from silo_agent.views.fields import CLEAR, FIELDS, MASKED, SEALED, SHARE
from silo_agent.views.preview import preview
from silo_agent.views.rehearsal import Rehearsal
from tests.kit.secagg.secagg_samples import signed_descriptor
from tests.kit.silo_agent.policy_samples import (
    COMPOSED,
    MODES,
    NO_MODEL,
    PLAN,
    POLICY,
    edited,
    make_task,
)
from tests.kit.silo_agent.session_round import CLIP, DIMENSION, FIGURE, GRID, ME, Round, Wire

TOML = edited(
    PLAN,
    NO_MODEL,
    ('environments = ["craft", "maze"]', 'environments = ["craft"]'),
    ("\nclip_l2 = 2.0", f"\nclip_l2 = {CLIP}"),
    ("\nnoise_multiplier = 4.0", "\nnoise_multiplier = 1.0"),
    ("metrics_noise_multiplier = 4.0", "metrics_noise_multiplier = 1.0"),
).encode()
DIGEST = hashlib.sha256(TOML).digest()
TASK = make_task(run_id="run-1", round=4, plan_sha256=DIGEST)


class Line(Coordinator):
    """The real transport over a stub that keeps what is serialised."""

    def __init__(self):
        self.sent = {}
        self._stub = self
        self.watch_sent(lambda _bytes: None)

    def _retry(self, attempt, *, stream=None):
        return attempt()

    def __getattr__(self, method):
        def call(request, *, timeout):
            messages = [request] if hasattr(request, "SerializeToString") else list(request)
            self.sent[method] = [message.SerializeToString() for message in messages]
            self.parsed = messages
            content = b"".join(
                message.chunk.content for message in messages if hasattr(message, "chunk")
            )
            return SimpleNamespace(offset_bytes=0, received_bytes=len(content))

        return call


class Sent(Wire):
    """The session's wire, which also goes through the real transport."""

    def __init__(self, ledger):
        super().__init__(ledger)
        self.line = Line()

    def advertise_keys(self, identity, bundle):
        super().advertise_keys(identity, bundle)
        self.line.advertise_keys(identity, bundle)

    def share_keys(self, identity, boxes):
        super().share_keys(identity, boxes)
        self.line.share_keys(identity, boxes)

    def upload(self, identity, header, spool):
        super().upload(identity, header, spool)
        self.line.upload(identity, header, spool)

    def check_consistency(self, identity, message):
        super().check_consistency(identity, message)
        self.line.check_consistency(identity, message)

    def unmask(self, identity, shares):
        super().unmask(identity, shares)
        self.line.unmask(identity, shares)


@pytest.fixture
def silo(tmp_path, monkeypatch):
    """A data directory that heard of the run; its ledger is the session's."""
    (tmp_path / "silo.toml").write_text('environments = ["craft"]')
    (tmp_path / "policy.toml").write_text(edited(POLICY, NO_MODEL))
    member = SimpleNamespace(federation="demo", silo_id=ME)
    monkeypatch.setattr(preview_module.Identity, "load", lambda _: member)
    HeardRuns(tmp_path).hear(TASK, lambda: TOML)
    return tmp_path


@pytest.fixture
def one(silo):
    ledger = Ledger.open(silo / "privacy.ledger", delta=1e-5, caps={"silo": 1e9, "task": 1e9})
    made = Round(silo, mode=Mode.SILO, ledger=ledger)
    made.descriptor = replace(made.descriptor, plan_sha256=DIGEST)
    made.signed = signed_descriptor(made.descriptor)
    made.server = server.open(made.signed, made.roster)
    made.wire = Sent(made.ledger)
    HeardRuns(silo).describe(made.signed)
    yield made
    made.ledger.close()


def by_name(shown):
    return {said.request: said for said in shown.attempt_says}


def test_every_message_of_an_attempt_has_the_bytes_that_a_real_session_sends(silo, one):
    before = by_name(preview(silo, "run-1"))
    one.finish()
    sent = one.wire.line.sent
    assert set(sent) == {
        "AdvertiseKeys",
        "ShareKeys",
        "GetUploadOffset",
        "UploadMaskedInput",
        "CheckConsistency",
        "Unmask",
    }
    # All of it was known before the first key was made, the number of bytes included.
    for method, messages in sent.items():
        assert before[method].size_bytes == sum(map(len, messages)), method
        assert before[method].messages == len(messages), method
    # And nothing else is shown but the report before and the refusal instead.
    assert set(before) - set(sent) == {"ReportReady", "Refuse"}


def test_the_spooled_upload_is_shown_by_the_digest_of_what_was_sent(silo, one):
    assert preview(silo, "run-1").upload_sha256 is None
    one.survivors()
    shown = preview(silo, "run-1")
    chunks = [
        round_pb2.UploadMaskedInputRequest.FromString(message).chunk.content
        for message in one.wire.line.sent["UploadMaskedInput"]
    ]
    assert shown.upload_sha256 == hashlib.sha256(b"".join(chunks)).hexdigest()
    assert shown.upload_bytes == len(b"".join(chunks)) == 4 * (DIMENSION + 1)
    assert (shown.round, shown.step, shown.attempt) == (4, 0, 1)
    one.session.close()
    assert preview(silo, "run-1").upload_sha256 is None


def test_a_damaged_upload_is_not_shown_as_one(silo, one):
    one.survivors()
    (path,) = silo.glob("spool/*.spool")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    shown = preview(silo, "run-1")
    assert shown.upload_sha256 is None
    assert any("not what was written" in note for note in shown.notes)


def test_clip_noise_block_and_charge_are_the_descriptors_and_the_plans(silo, one):
    shown = preview(silo, "run-1")
    plan = read_plan(TOML)
    assert shown.clip_l2 == CLIP
    assert shown.noise_per_silo == pytest.approx(one.descriptor.noise_sigma * CLIP / GRID)
    assert shown.noise_in_sum == CLIP
    (figure,) = shown.metrics
    assert (figure.name, figure.bound) == (FIGURE, 64.0)
    # One coordinate: its bound becomes the whole grid.
    assert figure.noise == pytest.approx(2000.0 / 2**16 * 64.0)
    spec = plan.spec
    assert shown.charged == shown_epsilon_of(attempt_charges(spec, step=0), 1e-5)
    assert shown.charged_by_run["silo"].epsilon > shown.charged["silo"].epsilon > 0
    assert shown.cohort == one.descriptor.cohort


STEPS = (
    "trained with noise, which is in it before it is masked: 3 steps a round, each on a part 0.25 "
    "of the tasks, the gradient of each clipped to 2"
)
TRAINED = (STEPS, "and on their sum noise of 4 times that clip, 8; this silo alone adds all of it")
UPDATE = {
    "none": ["clipped to 2; no noise on the update: masks alone hide it, and the sum is exact"],
    "silo": ["clipped to 2; any sum that can be opened holds noise of at least 8"],
    "record_distributed": ["clipped to 2; any sum that can be opened holds noise of at least 8"],
    "record_local": [
        *TRAINED,
        "clipped to 3; no more noise is added when it is masked",
    ],
    "composed": [
        *TRAINED,
        "clipped to 2; on top of that any sum that can be opened holds noise of at least 8",
    ],
}
"""What is shown of the update in each mode, word for word."""


@pytest.mark.parametrize("mode", UPDATE)
def test_where_the_noise_on_the_update_is_stands_there_in_every_mode(silo, mode):
    """Whoever approves a run reads this: noise of the training is noise on the update."""
    composed = mode == "composed"
    changes = (*MODES["record_local"], COMPOSED) if composed else MODES[mode]
    toml = edited(PLAN, NO_MODEL, *changes).encode()
    task = make_task(run_id="run-2", plan_sha256=hashlib.sha256(toml).digest())
    HeardRuns(silo).hear(task, lambda: toml)
    shown = preview(silo, "run-2")
    text = list(preview_lines(shown))
    first = text.index("THE MASKED VECTOR") + 2
    assert [line.strip() for line in text[first : first + len(UPDATE[mode])]] == UPDATE[mode]
    assert ("no noise on the update" in "\n".join(text)) is (mode == "none")
    assert (shown.trained_with is None) is (mode not in {"record_local", "composed"})


def test_before_a_descriptor_what_is_not_known_is_said_to_be_so(silo):
    shown = preview(silo, "run-1")
    assert (shown.attempt, shown.cohort, shown.noise_per_silo) == (None, (), None)
    assert (shown.dimension, shown.upload_bytes) == (None, None)
    assert "UploadMaskedInput" not in by_name(shown)
    assert len(shown.notes) == 2
    assert [figure.name for figure in shown.metrics][1:] == ["episodes/craft", "successes/craft"]
    text = "\n".join(preview_lines(shown))
    assert "its size is not known yet" in text
    assert "cohort: not known yet" in text


def test_the_adopted_adapter_says_how_long_the_vector_is(silo):
    Ledger.open(silo / "privacy.ledger", delta=1e-5, caps={}).close()
    tensors = {
        "layer.lora_A.weight": np.ones((8, 16), np.float32),
        "layer.lora_B.weight": np.zeros((16, 8), np.float32),
    }
    content = encode_adapter(tensors)
    digest = hashlib.sha256(content).digest()
    (silo / "adapters").mkdir()
    (silo / "adapters" / digest.hex()).write_bytes(content)
    LocalStore(silo).set_chain_head(
        "run-1",
        ChainHead(round=3, step=0, position=3, adapter_sha256=digest, record_sha256=bytes(32)),
    )
    shown = preview(silo, "run-1")
    assert (shown.dimension, shown.dimension_from) == (256, "the adopted adapter")
    assert shown.upload_bytes == 4 * (256 + 3)
    ready = by_name(shown)["ReportReady"]
    assert {field.field for field in ready.fields} == {
        "run_id",
        "round",
        "adapter_sha256",
        "families",
        "step",
    }


def test_what_is_masked_sealed_or_in_clear_is_told_apart(silo, one):
    shown = by_name(preview(silo, "run-1"))
    seen = {
        f"{name}.{field.field}": field.seen for name, said in shown.items() for field in said.fields
    }
    assert seen["UploadMaskedInput.chunk.content"] == MASKED
    assert seen["ShareKeys.leaves.leaves.ciphertext"] == SEALED
    assert seen["ShareKeys.leaves.leaves.sealed"] == SEALED
    assert seen["Unmask.shares.self_seed_shares.share"] == SHARE
    clear = {name for name, how in seen.items() if how == CLEAR}
    assert len(clear) == len(seen) - 4
    assert "AdvertiseKeys.bundle.ledger_seq" in clear
    assert "AdvertiseKeys.bundle.families" in clear


def test_nothing_private_of_the_session_is_in_a_preview(silo, one):
    one.survivors()
    shown = json.dumps(preview(silo, "run-1").as_data())
    # The delta is 0.25 everywhere and 32 episodes were played: neither is shown anywhere.
    assert '"0.25"' not in shown
    assert " 0.25" not in shown
    assert "32.0" not in shown


def requests_of(module, service):
    return [method.input_type for method in module.DESCRIPTOR.services_by_name[service].methods]


def fields_of(message):
    for field in message.fields:
        if field.message_type is None:
            yield field.full_name
        else:
            yield from fields_of(field.message_type)


def test_every_field_that_a_silo_can_send_is_described():
    said = {
        name
        for message in (
            *requests_of(round_pb2, "RoundService"),
            *requests_of(membership_pb2, "MembershipService"),
        )
        for name in fields_of(message)
    }
    assert said == set(FIELDS)


def test_every_method_of_the_transport_that_sends_is_rehearsed(silo, one, monkeypatch):
    """A new message of the daemon cannot be left out of the preview unnoticed."""
    local = {"close", "use", "sweep", "watch_over_runs", "watch_preflights"}
    local |= {"watch_trust", "watch_version"}
    sends = {
        name
        for name, _ in inspect.getmembers(Coordinator, inspect.isfunction)
        if not name.startswith("_") and name not in local
    }
    called = set()

    def noting(name):
        real = getattr(Coordinator, name)

        def noted(self, *args, **options):
            called.add(name)
            return real(self, *args, **options)

        return noted

    for name in sends:
        monkeypatch.setattr(Rehearsal, name, noting(name))
    publish(silo, '"availability"')
    preview(silo, "run-1")
    assert called == sends


def publish(silo, listed):
    policy = silo / "policy.toml"
    policy.write_text(policy.read_text() + f"\n[facts]\npublish = [{listed}]\n")


def test_facts_are_in_a_preview_as_far_as_the_policy_lists_them(silo, one):
    said = {one.request: one for one in preview(silo, "run-1").daemon_says}
    assert "PublishFacts" not in said
    OperatorsWord(silo).say(queue=3, free_gpu=FreeGpu.ALL, now_unix_s=time.time(), for_s=60)
    publish(silo, '"queue", "budget_left"')
    said = {one.request: one for one in preview(silo, "run-1").daemon_says}
    values = {field.field: field.value for field in said["PublishFacts"].fields}
    # Nothing was spent; what is not listed is an enum's UNSPECIFIED, as on the wire.
    assert values["facts.queue"] == "3"
    assert values["facts.budget_left"] == "4"
    assert (values["facts.availability"], values["facts.free_gpu"]) == ("0", "0")


def test_an_unknown_run_is_an_error(silo):
    with pytest.raises(Exception, match="has not heard of run 'run-9'"):
        preview(silo, "run-9")
