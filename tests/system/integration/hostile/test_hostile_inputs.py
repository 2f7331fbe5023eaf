"""A thousand hostile inputs, to a real coordinator and to a real silo daemon, over mutual TLS.

A refusal is a status with a stable reason in the trailing metadata, and is counted; INTERNAL is a
failure of this test, and so is a traceback in a log. Afterwards both daemons are ready and finish
rounds with the honest silos.
"""

import contextlib
import time
import urllib.request
from collections import Counter

import grpc
import numpy as np
import pytest
from safetensors.numpy import save

from chorale.v1 import admin_pb2, round_pb2
from federation.adapter.encoding import encode_adapter
from federation.version import this_version
from server.cli.client import connect, start_parts
from server.errors import Reason
from server.rpc.ports import MAX_JOIN_BYTES
from silo_agent.identity.identity import Identity
from tests.kit.hostile_inputs import LONG, Fuzz, methods
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = pytest.mark.xdist_group("hostile_inputs")

HOSTILE, TARGET = cf.SILOS[3], cf.SILOS[0]
HONEST = cf.SILOS[:3]
SEED = 20260
TO_THE_COORDINATOR, TO_THE_SILO = 720, 300
WAITING = {"Poll", "WatchRun"}
"""Calls that a hostile caller can make last; this one hangs up."""
WITH_EFFECT = {"Leave", "RotateCa", "CreateFederation"}
"""A well-formed call of these is a decision and no hostile input: they get malformed ones only."""
QUIET = {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
OVERSIZE = "above the transport's limit"
REASONS = {reason.value for reason in Reason}


class Sender:
    """Calls methods with bytes and keeps what was answered."""

    def __init__(self, channel, fuzz):
        self.channel, self.fuzz = channel, fuzz
        self.sent = 0
        self.reasons = Counter()

    def send(self, method, *parts, timeout_s=5.0, oversize=False):
        """One input; returns the refusal's reason, or the empty text if there was none."""
        self.sent += 1
        kind = f"{'stream' if method.streams_in else 'unary'}_" + (
            "stream" if method.streams_out else "unary"
        )
        call = getattr(self.channel, kind)(method.path, None, None)
        timeout_s = 0.2 if method.name in WAITING else timeout_s
        try:
            sent = iter(parts) if method.streams_in else parts[0]
            answer = call(sent, timeout=timeout_s, metadata=this_version().words)
            if method.streams_out:
                Counter(answer)
        except grpc.RpcError as error:
            return self.judge(method, error, oversize=oversize)
        return ""

    def judge(self, method, error, *, oversize):
        code = error.code()
        reason = dict(error.trailing_metadata() or ()).get("chorale-reason", "")
        if not reason and oversize:
            # The transport itself refuses what is above its limit, before any of our code.
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, (method.path, code, error.details())
            return OVERSIZE
        if not reason and method.name in WAITING and code in QUIET:
            return ""
        assert reason in REASONS, (method.path, code, error.details())
        assert code not in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}, (
            method.path,
            reason,
        )
        assert reason != Reason.INTERNAL, method.path
        self.reasons[reason] += 1
        return reason

    def fuzzed(self, method, base=None):
        """One input of one method, made from the seed."""
        fuzz = self.fuzz
        if method.name in WITH_EFFECT:
            return self.send(method, fuzz.undecodable(method.request))
        parts = [fuzz.request(method.request, base)]
        if method.streams_in:
            # Truncated, endless in what it announces, out of order, or noise in the middle.
            parts += [fuzz.request(method.request, base) for _ in range(fuzz.rng.choice((0, 1, 3)))]
            parts = parts[fuzz.rng.choice((0, 0, 1)) :]
        # The port that asks nobody for a certificate takes short messages only.
        oversize = method.name == "Join" and len(parts[0]) > MAX_JOIN_BYTES
        return self.send(method, *parts, oversize=oversize)


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("hostile")) as running:
        cf.let_cohorts_vary(running)
        yield running


@pytest.fixture(scope="module")
def run_id(loopback):
    """A run that goes on for longer than this file."""
    plan = cf.plan_toml(rounds=100, phase_deadline_s=3).replace(
        "ready_deadline_s = 60", "ready_deadline_s = 5"
    )
    plan_file, adapter = cf.write_run(loopback, plan)
    return loopback.start_run(plan_file, adapter, token="hostile")


@contextlib.contextmanager
def channels(loopback):
    """The hostile member's, an admin's, and the enrolment port's, which an invite opens."""
    loopback.chorale("invite", loopback.federation, "silo-z", "--data", str(loopback.data_dir))
    options = [("grpc.max_send_message_length", 1 << 28)]
    admin = loopback.data_dir / "admin"
    ca, key, chain = ((admin / name).read_bytes() for name in ("ca.pem", "admin.key", "admin.pem"))
    main = f"127.0.0.1:{loopback.port}"
    member = Identity.load(loopback.silo_dir(HOSTILE)).channel_credentials()
    operator = grpc.ssl_channel_credentials(ca, key, chain)
    anyone = grpc.ssl_channel_credentials(ca)
    with (
        grpc.secure_channel(main, member, options) as as_member,
        grpc.secure_channel(main, operator, options) as as_admin,
        grpc.secure_channel(f"127.0.0.1:{loopback.enrol_port}", anyone, options) as as_anyone,
    ):
        yield as_member, as_admin, as_anyone


def refused_calls(loopback):
    prefix = 'chorale_rejected_messages_total{reason="'
    return Counter(
        {
            name.removeprefix(prefix).rstrip('"}'): int(value)
            for name, value in loopback.metrics("coordinator").items()
            if name.startswith(prefix)
        }
    )


def assert_well(loopback, *names):
    for name in names:
        assert loopback.alive(name), loopback.log(name)[-3000:]
        log = loopback.log(name)
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        assert "internal_error" not in log
        address = (
            f"127.0.0.1:{loopback.probes_port}"
            if name == "coordinator"
            else (loopback.silo_dir(name) / "probes.address").read_text().strip()
        )
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=60) as answer:  # loopback
            assert answer.status == 200


def assert_rounds_go_on(loopback, run_id, *silos, count=1):
    """Wait for rounds that began after now and that hold these silos."""
    give_up_at = time.monotonic() + 120
    seen, first = 0, None
    for status in loopback.watch(run_id):
        assert status["run"]["state"] == "running", status
        first = status["run"]["round"] if first is None else first
        for done in status.get("finished", ()):
            seen += done["round"] > first + 1 and set(silos) <= set(done["survivors"])
        if seen >= count:
            return
        assert time.monotonic() < give_up_at, status
    pytest.fail("the run ended")


def members_base(fuzz, method, run_id, identity):
    """A message of the hostile member that fits the open attempt as far as it can."""
    message = fuzz.fill(method.request())
    places = [message]
    while places:
        place = places.pop()
        for field, value in place.ListFields():
            if field.name in {"silo_id", "sender"}:
                setattr(place, field.name, HOSTILE)
            elif field.name == "run_id":
                place.run_id = run_id
            elif field.message_type is not None and hasattr(value, "CopyFrom"):
                if field.name == "identity":
                    value.CopyFrom(identity)
                else:
                    places.append(value)
    if "round" in message.DESCRIPTOR.fields_by_name:
        message.round = identity.round
    return message


def upload_parts(identity, *, silo=HOSTILE, offset=0, length=1024, chunks=()):
    opening = round_pb2.UploadMaskedInputRequest()
    opening.opening.identity.CopyFrom(identity)
    opening.opening.offset_bytes = offset
    opening.opening.header.silo_id = silo
    opening.opening.header.length_bytes = length
    opening.opening.header.masked_sha256 = bytes(32)
    opening.opening.header.signature = bytes(64)
    parts = [opening.SerializeToString()]
    for content in chunks:
        part = round_pb2.UploadMaskedInputRequest()
        part.chunk.content = content
        parts.append(part.SerializeToString())
    return parts


def named(service, name):
    (found,) = [method for method in methods(service) if method.name == name]
    return found


def test_hostile_callers_of_the_coordinator(loopback, request):
    fuzz = Fuzz(SEED)
    with channels(loopback) as (as_member, as_admin, as_anyone):
        member, admin, anyone = (
            Sender(channel, fuzz) for channel in (as_member, as_admin, as_anyone)
        )
        before = refused_calls(loopback)
        quiet(member, admin, anyone)
        # Nobody else calls yet, so the counters say exactly what was answered.
        refused = member.reasons + admin.reasons + anyone.reasons
        assert refused_calls(loopback) - before == refused
        assert len(refused) >= 6, refused

        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        run_id = request.getfixturevalue("run_id")
        before, quiet_reasons = refused_calls(loopback), Counter(member.reasons)
        in_a_run(member, run_id)
        # The honest daemons may be refused as well, where the hostile one came before them.
        missing = (member.reasons - quiet_reasons) - (refused_calls(loopback) - before)
        assert not missing, missing
        leave(member)
        total = member.sent + admin.sent + anyone.sent
        assert total >= TO_THE_COORDINATOR, total
    assert_rounds_go_on(loopback, run_id, *HONEST)
    assert_well(loopback, "coordinator", *HONEST)


def quiet(member, admin, anyone):
    """Every method of every service, as a member, an admin and as anyone, before a run begins."""
    for method in methods("RoundService"):
        for _ in range(16):
            member.fuzzed(method)
        assert admin.fuzzed(method) in {"role_denied", "malformed_message"}
    for method in methods("MembershipService"):
        for _ in range(10):
            member.fuzzed(method)
    for method in methods("AdminService"):
        assert member.fuzzed(method) in {"role_denied", "malformed_message"}
        for _ in range(6):
            admin.fuzzed(method)
    (join,) = methods("EnrolmentService")
    for _ in range(30):
        assert anyone.fuzzed(join) not in {"", "internal"}
    create = named("AdminService", "CreateFederation")
    for value in (float("nan"), float("inf"), -1.0):
        for field in ("epsilon_cap", "delta"):
            asked = admin_pb2.CreateFederationRequest(name="demo", min_silos=3, colluding=1)
            asked.delta = 1e-5
            setattr(asked, field, value)
            assert admin.send(create, asked.SerializeToString()), (field, value)
    not_finite(admin)
    too_deep(admin)
    oversize(member, admin)


def not_finite(admin):
    """Adapters that are not numbers."""
    start = named("AdminService", "StartRun")
    for value in (np.nan, np.inf, -np.inf):
        tensors = cf.initial_tensors()
        first = min(tensors)
        tensors[first].flat[7] = value
        parts = start_parts(
            plan=cf.plan_toml().encode(), adapter=save(tensors), submit_token="not-finite"
        )
        assert admin.send(start, *(part.SerializeToString() for part in parts))
    sound = encode_adapter(cf.initial_tensors())
    for cut in (0, 1, len(sound) // 2, len(sound) - 1):
        parts = [
            part.SerializeToString()
            for part in start_parts(
                plan=cf.plan_toml().encode(), adapter=sound[:cut], submit_token="cut"
            )
        ]
        assert admin.send(start, *parts)


def too_deep(admin):
    """Plans that Python cannot recurse into, or that take half a minute to parse."""
    start = named("AdminService", "StartRun")
    for plan in (
        f"{'.'.join('a' * 1200)} = 1",
        f"{'.'.join('a' * 32_000)} = 1",
        "a = " + "[" * 999,
    ):
        parts = start_parts(
            plan=plan.encode(), adapter=encode_adapter(cf.initial_tensors()), submit_token="deep"
        )
        refusal = admin.send(start, *(part.SerializeToString() for part in parts))
        assert refusal == "plan_refused"


def oversize(member, admin):
    """More than one message may hold, as a field and as a whole."""
    refuse, fetch = named("RoundService", "Refuse"), named("RoundService", "FetchBlob")
    tail = named("AdminService", "AbortRun")
    for size in (5 * LONG, 9 * LONG):
        long = "r" * size
        member.send(refuse, round_pb2.RefuseRequest(reason=long).SerializeToString(), oversize=True)
        member.send(refuse, round_pb2.RefuseRequest(run_id=long).SerializeToString(), oversize=True)
        member.send(fetch, round_pb2.FetchBlobRequest(sha256=long.encode()).SerializeToString(),
                    oversize=True)  # fmt: skip
        admin.send(tail, admin_pb2.AbortRunRequest(run_id=long).SerializeToString(), oversize=True)


def in_a_run(member, run_id):
    """Mutated messages of a member whose own daemon takes part in the same attempt."""
    fuzz = member.fuzz
    identity = round_pb2.PollResponse().identity
    stub = round_pb2_poll(member.channel)
    upload = named("RoundService", "UploadMaskedInput")
    for _ in range(14):
        told = stub(round_pb2.PollRequest(wait_s=1), metadata=this_version().words)
        if told.HasField("identity"):
            identity.CopyFrom(told.identity)
        identity.run_id = identity.run_id or run_id
        for method in methods("RoundService"):
            member.fuzzed(method, members_base(fuzz, method, run_id, identity))
        other = type(identity)()
        other.CopyFrom(identity)
        other.round += 7
        for parts in (
            upload_parts(other),
            upload_parts(identity, silo=HONEST[0]),
            upload_parts(identity, offset=999),
            upload_parts(identity, chunks=(b"", b"x" * 2048)),
            upload_parts(identity, length=2**63, chunks=(b"\x7f\xc0\x00\x00" * 64,)),
            upload_parts(identity, chunks=(b"x" * (5 * LONG),)),
        ):
            assert member.send(upload, *parts), "a bad upload was taken"


def round_pb2_poll(channel):
    return channel.unary_unary(
        named("RoundService", "Poll").path,
        round_pb2.PollRequest.SerializeToString,
        round_pb2.PollResponse.FromString,
    )


def leave(member):
    """Malformed words of leaving; the member stays."""
    for _ in range(3):
        assert member.fuzzed(named("MembershipService", "Leave")) == "malformed_message"


def test_hostile_answers_to_a_silo(loopback, run_id, tmp_path):
    told = tmp_path / "told"
    for name in ("coordinator", *cf.SILOS):
        if loopback.alive(name):
            loopback.kill(name)
    for silo_id in cf.SILOS:
        module = (
            "tests.system.integration.hostile.impatient_silo"
            if silo_id == TARGET
            else "silo_agent.cli.main"
        )
        loopback.start_silo(silo_id, module=module)
    loopback.environment = {
        "CHORALE_TEST_FUZZ": f"{TARGET}:{TO_THE_SILO}:{SEED}",
        "CHORALE_TEST_TOLD": str(told),
    }
    loopback.start_coordinator(module="tests.system.integration.hostile.hostile_instructions")

    def all_told():
        assert loopback.alive(TARGET), loopback.log(TARGET)[-3000:]
        return told.exists() and len(told.read_text().split()) >= TO_THE_SILO

    until(all_told, "all is told", told=lambda: told.read_text() if told.exists() else "nothing")
    kinds = Counter(told.read_text().split())
    assert min(kinds[kind] for kind in ("undecodable", "random", "changed", "flipped")) > 20
    assert_rounds_go_on(loopback, run_id, TARGET)
    samples = loopback.metrics(TARGET)
    errors = sum(v for k, v in samples.items() if k.startswith("chorale_silo_errors_total"))
    # Each of these is an error by itself; of the others some are refusals, or nothing to act on.
    assert errors >= kinds["undecodable"]
    assert samples['chorale_silo_errors_total{kind="MalformedMessageError"}'] > 10
    # A plan of one dotted key, signed and of the right digest, which once ended the daemon.
    assert samples['chorale_silo_errors_total{kind="PlanError"}'] >= kinds["deep"] > 0
    assert samples['chorale_silo_errors_total{kind="other"}'] == 0
    assert_well(loopback, "coordinator", *HONEST)
    with connect(loopback.data_dir) as stub:
        stub.AbortRun(admin_pb2.AbortRunRequest(run_id=run_id), timeout=60)
