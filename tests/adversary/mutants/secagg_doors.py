"""Mutants of what keeps strangers out, and of what the root's holder compares."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

_ROOT = "tests/server/members/test_root.py::"
_PORTS = "tests/server/rpc/test_ports.py::"
_PROBES = "tests/ops/probes/test_probes.py::"
_FOLLOWS = "test_it_is_open_until_the_last_invite_is_spent_withdrawn_or_over"
_TOKEN = "test_beyond_loopback_the_figures_need_tls_and_the_token"

MUTANTS = (
    Mutant(
        name="root-expected-key",
        disables="the comparison of a roster's keys with the fingerprints that were given",
        file="server/members/root.py",
        old='if reported.replace(":", "").lower() != found.replace(":", ""):',
        new="if not reported:",
        tests=(_ROOT + "test_another_key_than_expected_is_not_signed",),
    ),
    Mutant(
        name="root-expected-everybody",
        disables="the question for members whose key nobody reported",
        file="server/members/root.py",
        old="expected.keys() == set(roster.silo_ids)",
        new="bool(expected)",
        tests=(_ROOT + "test_another_key_than_expected_is_not_signed",),
    ),
    Mutant(
        name="root-expected-colluding",
        disables="the question for a roster whose c nobody compared",
        file="server/members/root.py",
        old="compared = colluding is not None and ",
        new="compared = ",
        tests=(_ROOT + "test_another_key_than_expected_is_not_signed",),
    ),
    Mutant(
        name="enrolment-port-expiry",
        disables="the end of an invite, for the enrolment port",
        file="server/store/invites.py",
        old=".where(invites.c.spent_unix_s.is_(None), invites.c.expires_unix_s > at_unix_s)",
        new=".where(invites.c.spent_unix_s.is_(None))",
        tests=(_PORTS + _FOLLOWS,),
    ),
    Mutant(
        name="metrics-beyond-loopback",
        disables="TLS for a silo's metrics beyond its loopback",
        file="ops/probes/metrics.py",
        old="(self.encrypted and self.token_file is not None)",
        new="(self.token_file is not None)",
        tests=(_PROBES + _TOKEN,),
    ),
    Mutant(
        name="metrics-token",
        disables="the comparison of the token for a silo's metrics",
        file="ops/probes/metrics.py",
        old="if token is None or not hmac.compare_digest(given.encode(), token.encode()):",
        new="if token is None or not given:",
        tests=(_PROBES + _TOKEN,),
    ),
)
