"""What both sides must compute alike when a certificate is renewed."""

from federation.membership.invite import join_statement
from federation.membership.renewal import renew_statement, trust_sha256

FIELDS = {"certificate_sha256": b"\x01" * 32, "csr_der": b"request"}


def test_every_field_is_signed():
    one = renew_statement("oncology", "hospital-a", **FIELDS)
    others = [
        renew_statement("cardiology", "hospital-a", **FIELDS),
        renew_statement("oncology", "hospital-b", **FIELDS),
        renew_statement("oncology", "hospital-a", **{**FIELDS, "csr_der": b"another"}),
        renew_statement("oncology", "hospital-a", **{**FIELDS, "certificate_sha256": b"\x02" * 32}),
        join_statement("oncology", "hospital-a", b"request"),
    ]
    assert len({one, *others}) == 6
    assert renew_statement("oncology", "hospital-a", **FIELDS) == one


def test_a_joining_signature_is_no_renewing_one():
    assert b"chorale/v1/renew" in renew_statement("oncology", "hospital-a", **FIELDS)
    assert b"chorale/v1/join" in join_statement("oncology", "hospital-a", b"request")


def test_a_set_of_cas_has_an_order_and_a_length():
    sets = [[], [b"a"], [b"b"], [b"a", b"b"], [b"b", b"a"], [b"ab"]]
    assert len({trust_sha256(one) for one in sets}) == len(sets)
