"""Mutants of what is refused at the border: keys, messages, documents, failures of any type."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

PORTS = "server/rpc/ports.py"
TRANSPORT = "silo_agent/line/transport.py"
SUITE = "secagg/suite.py"
ROSTER = "secagg/roster.py"
TOML = "federation/plan/toml.py"
POLLING = "silo_agent/daemon/polling.py"

_ED25519 = "tests/adversary/vectors/test_ed25519_keys.py::"
_ROSTER_TESTS = "tests/secagg/test_roster.py::"
_FOUNDING = "tests/server/test_config.py::"
_ENROLMENT = "tests/system/integration/membership/test_enrolment.py::"
_LIMITS = "tests/system/integration/hostile/test_transport_limits.py::"
_TOML_TESTS = "tests/federation/test_toml_text.py::"
_POLLING_TESTS = "tests/silo_agent/daemon/test_polling.py::"
_HOSTILE = (_TOML_TESTS + "test_what_would_be_slow_or_deep_is_refused_at_once",)
_HIDDEN = (_TOML_TESTS + "test_no_string_and_no_comment_hides_what_follows_it",)

_NO_MEMBER = (_ROSTER_TESTS + "test_nobody_is_in_a_roster_by_a_key_that_anybody_can_sign_for",)

_INTEGERS = (
    "tests/federation/test_toml_text.py::test_an_integer_that_could_not_even_be_printed_is_refused"
)

MUTANTS = (
    Mutant(
        name="ed25519-small-order",
        disables="recognition of Ed25519 keys of small order",
        file=SUITE,
        old=" and y not in _SMALL_ORDER_Y\n",
        new="\n",
        tests=(_ED25519 + "test_nobody_signs_for_a_key_of_small_order",),
    ),
    Mutant(
        name="ed25519-one-encoding",
        disables="refusal of an Ed25519 key whose y is not reduced",
        file=SUITE,
        old=" and y < _FIELD_PRIME and",
        new=" and",
        tests=(_ED25519 + "test_a_key_has_one_encoding",),
    ),
    Mutant(
        name="ed25519-verify",
        disables="refusal of signatures under a key that is not sound",
        file=SUITE,
        old="    if not is_sound_key(public_key):\n        return False\n",
        new="",
        tests=(
            _ED25519 + "test_nobody_signs_for_a_key_of_small_order",
            _ROSTER_TESTS + "test_a_root_key_that_anybody_can_sign_for_signed_nothing",
        ),
    ),
    Mutant(
        name="roster-silo-key",
        disables="refusal of a roster entry that anybody can sign for",
        file=ROSTER,
        old="        bounds.require_verification_key(self.verification_key,",
        new="        bounds.require_bytes(self.verification_key, bounds.KEY_BYTES,",
        tests=_NO_MEMBER,
    ),
    Mutant(
        name="roster-coordinator-key",
        disables="refusal of a coordinator's key that anybody can sign for",
        file=ROSTER,
        old="        bounds.require_verification_key(self.coordinator_key,",
        new="        bounds.require_bytes(self.coordinator_key, bounds.KEY_BYTES,",
        tests=_NO_MEMBER,
    ),
    Mutant(
        name="root-file-key",
        disables="refusal of a root key's file that anybody can sign for",
        file="server/pki/keys.py",
        old="    if not is_sound_key(raw):\n",
        new="    if not raw:\n",
        tests=(_FOUNDING + "test_a_root_key_that_anybody_can_sign_for_founds_nothing",),
    ),
    Mutant(
        name="root-key-joined",
        disables="refusal to join under a root that anybody can sign for",
        file="silo_agent/identity/join.py",
        old="    if not is_sound_key(response.root_key):\n",
        new="    if not response.root_key:\n",
        tests=(_ENROLMENT + "test_a_root_that_anybody_can_sign_for_is_not_trusted",),
    ),
    Mutant(
        name="message-limit-coordinator",
        disables="the largest message that the coordinator takes, inflated or not",
        file=PORTS,
        old='("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)',
        new='("grpc.max_receive_message_length", -1)',
        tests=(_LIMITS + "test_a_message_that_inflates_costs_the_coordinator_no_memory",),
    ),
    Mutant(
        name="message-limit-silo",
        disables="the largest message that a silo takes, inflated or not",
        file=TRANSPORT,
        old='("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)',
        new='("grpc.max_receive_message_length", -1)',
        tests=(_LIMITS + "test_an_answer_that_inflates_costs_a_silo_no_memory",),
    ),
    Mutant(
        name="toml-bytes",
        disables="the longest document that is read",
        file=TOML,
        old="    if len(content) > max_bytes:\n",
        new="    if max_bytes < 0:\n",
        tests=_HOSTILE,
    ),
    Mutant(
        name="toml-integers",
        disables="the longest integer that is read",
        file=TOML,
        old="not -(2**63) <= value < 2**63",
        new="value is None",
        tests=(_INTEGERS,),
    ),
    Mutant(
        name="toml-key-parts",
        disables="the most parts of a dotted key",
        file=TOML,
        old="        if key_parts > MAX_KEY_PARTS:\n",
        new="        if key_parts < 0:\n",
        tests=_HOSTILE,
    ),
    Mutant(
        name="toml-nesting",
        disables="the deepest nesting of arrays and inline tables",
        file=TOML,
        old="        if nesting > MAX_NESTING:\n",
        new="        if nesting > 100 * MAX_NESTING:\n",
        tests=_HOSTILE,
    ),
    Mutant(
        name="toml-entries",
        disables="the most keys, tables and arrays",
        file=TOML,
        old="        if entries > MAX_ENTRIES:\n",
        new="        if entries < 0:\n",
        tests=_HOSTILE,
    ),
    Mutant(
        name="toml-string-end",
        disables="a string that ends with quotes of its own: it would hide what follows",
        file=TOML,
        old='[^\\\\] )*+ "{0,5} ',
        new='[^\\\\] )*+ "{0,3} ',
        tests=_HIDDEN,
    ),
    Mutant(
        name="toml-literal-end",
        disables="the same of a literal string",
        file=TOML,
        old="\\'{0,5}\n",
        new="\\'{0,3}\n",
        tests=_HIDDEN,
    ),
    Mutant(
        name="toml-escape",
        disables="an escaped quote inside a string",
        file=TOML,
        old='    | " (?: \\\\. | [^"\\\\\\n] )*+ "?\n',
        new='    | " [^"\\n]*+ "?\n',
        tests=_HIDDEN,
    ),
    Mutant(
        name="toml-comment",
        disables="comments: a quote in one would hide what follows",
        file=TOML,
        old="    | \\# [^\\n]*+\n",
        new="",
        tests=_HIDDEN,
    ),
    Mutant(
        name="poll-any-failure",
        disables="survival of failures of every type",
        file=POLLING,
        old="            except Exception as error:  # noqa: BLE001 - a defect",
        new="            except TransportError as error:  # noqa: BLE001 - a defect",
        tests=(_POLLING_TESTS + "test_no_kind_of_failure_ends_the_loop",),
    ),
    Mutant(
        name="poll-what-follows",
        disables="survival of a failure of what follows an instruction",
        file=POLLING,
        old="        except Exception as error:  # noqa: BLE001 - as above\n",
        new="        except TransportError as error:\n",
        tests=(_POLLING_TESTS + "test_nor_does_a_failure_of_what_follows_an_instruction",),
    ),
)
