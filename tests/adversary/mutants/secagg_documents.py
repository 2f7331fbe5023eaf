"""Mutants of what an aggregation starts from: roster, descriptor, sizes, policy."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

ROSTER = "secagg/roster.py"
DESCRIPTOR = "secagg/descriptor.py"
PARAMETERS = "secagg/parameters.py"
SETUP = "secagg/client/setup.py"
POLICY = "silo_agent/policy/descriptor.py"

_ROSTER_TESTS = "tests/secagg/test_roster.py::"
_DESCRIPTOR_TESTS = "tests/secagg/test_descriptor.py::"
_PARAMETER_TESTS = "tests/secagg/test_parameters.py::"
_KEY_TESTS = "tests/adversary/simulation/test_secagg_refused_keys.py::"
_POLICY_TESTS = "tests/silo_agent/policy/test_policy.py::"
_RULES = (_DESCRIPTOR_TESTS + "test_rules",)
_FLIPPED = (
    _DESCRIPTOR_TESTS
    + "test_flipping_any_field_changes_the_digest_the_ctx_and_breaks_the_signature",
)
_HELD = (_KEY_TESTS + "test_begin_refuses_what_this_silo_does_not_hold",)
_MODES = "tests/silo_agent/policy/test_policy_modes.py::"
_SITE_RULES = (_POLICY_TESTS + "test_each_descriptor_rule_fires_alone",)

MUTANTS = (
    Mutant(
        name="roster-signature",
        disables="the root's signature on the roster",
        file=ROSTER,
        old="if not suite.verify(root_public_key, signed.signature, roster.signed_bytes()):",
        new="if root_public_key == b'':",
        tests=(_ROSTER_TESTS + "test_the_coordinator_cannot_sign_a_roster",),
    ),
    Mutant(
        name="roster-old-epoch",
        disables="refusal of an older roster epoch",
        file=ROSTER,
        old="if roster.epoch <= last_epoch and not same_again:",
        new="if roster.epoch == last_epoch and not same_again:",
        tests=(_ROSTER_TESTS + "test_an_old_epoch_is_refused",),
    ),
    Mutant(
        name="roster-same-epoch",
        disables="refusal of another roster at the same epoch",
        file=ROSTER,
        old="same_again = roster.epoch == last_epoch and last_sha256 == roster.sha256",
        new="same_again = roster.epoch == last_epoch and last_sha256 is not None",
        tests=(_ROSTER_TESTS + "test_only_the_same_roster_is_accepted_again",),
    ),
    Mutant(
        name="roster-c-unsigned",
        disables="the root's signature over c",
        file=ROSTER,
        old="            self.colluding,\n            self.coordinator_key,\n",
        new="            self.coordinator_key,\n",
        tests=(_ROSTER_TESTS + "test_every_field_is_signed",),
    ),
    Mutant(
        name="descriptor-signature",
        disables="the coordinator's signature on D",
        file=DESCRIPTOR,
        old="if not suite.verify(roster.coordinator_key, signed.signature, signed_bytes):",
        new="if signed_bytes == b'':",
        tests=(_DESCRIPTOR_TESTS + "test_only_the_coordinator_signs_descriptors",),
    ),
    Mutant(
        name="descriptor-sigma-unsigned",
        disables="σ_i in the signed bytes of D, hence in ctx",
        file=DESCRIPTOR,
        old="            self.noise_sigma,\n            self.privacy_spec_sha256,\n",
        new="            self.privacy_spec_sha256,\n",
        tests=_FLIPPED,
    ),
    Mutant(
        name="descriptor-threshold-unsigned",
        disables="t in the signed bytes of D, hence in ctx",
        file=DESCRIPTOR,
        old="            self.threshold,\n            self.n_min,\n",
        new="            self.n_min,\n",
        tests=_FLIPPED,
    ),
    Mutant(
        name="descriptor-adapter-unsigned",
        disables="the global adapter in the signed bytes of D, hence in ctx",
        file=DESCRIPTOR,
        old="            self.adapter_sha256,\n            self.layout_sha256,\n",
        new="            self.layout_sha256,\n",
        tests=_FLIPPED,
    ),
    Mutant(
        name="descriptor-attempt-unsigned",
        disables="the attempt in the signed identity",
        file=DESCRIPTOR,
        old="return (self.run_id, self.round, self.step, self.part, self.attempt)",
        new="return (self.run_id, self.round, self.step, self.part)",
        tests=(_DESCRIPTOR_TESTS + "test_every_part_of_the_identity_counts",),
    ),
    Mutant(
        name="descriptor-version",
        disables="version and suite",
        file=DESCRIPTOR,
        old="if SUITES.get(descriptor.version) != descriptor.suite:",
        new="if descriptor.version == 0:",
        tests=_RULES,
    ),
    Mutant(
        name="descriptor-roster",
        disables="D names the roster this silo holds",
        file=DESCRIPTOR,
        old="if (descriptor.roster_sha256, descriptor.roster_epoch) != "
        "(roster.sha256, roster.epoch):",
        new="if descriptor.roster_epoch == 0:",
        tests=_RULES,
    ),
    Mutant(
        name="cohort-sybils",
        disables="cohort ⊆ roster",
        file=DESCRIPTOR,
        old="if not set(descriptor.cohort) <= set(roster.silo_ids):",
        new="if not descriptor.cohort:",
        tests=_RULES,
    ),
    Mutant(
        name="cohort-twice",
        disables="no silo twice in the cohort",
        file=DESCRIPTOR,
        old="if not bounds.is_strictly_sorted(descriptor.cohort):",
        new="if not descriptor.cohort:",
        tests=_RULES,
    ),
    Mutant(
        name="cohort-size",
        disables="n ≥ n_min",
        file=DESCRIPTOR,
        old="if n < descriptor.n_min:",
        new="if n < 0:",
        tests=_RULES,
    ),
    Mutant(
        name="c-from-descriptor",
        disables="c is the roster's, not the descriptor's",
        file=DESCRIPTOR,
        old="if descriptor.colluding != roster.colluding:",
        new="if descriptor.colluding < 1:",
        tests=_RULES,
    ),
    Mutant(
        name="t-from-descriptor",
        disables="t follows from n and c, whatever D says",
        file=DESCRIPTOR,
        old="if descriptor.threshold != parameters.t:",
        new="if descriptor.threshold < 1:",
        tests=_RULES,
    ),
    Mutant(
        name="ring-bits",
        disables="the ring is 32 bits wide",
        file=DESCRIPTOR,
        old="if descriptor.ring_bits != RING_BITS:",
        new="if descriptor.ring_bits == 0:",
        tests=_RULES,
    ),
    Mutant(
        name="sigma-floor",
        disables="σ_i ≥ 4 grid units",
        file=DESCRIPTOR,
        old="if not must_be_zero and sigma < MIN_SIGMA:",
        new="if not must_be_zero and sigma < 0.0:",
        tests=_RULES,
    ),
    Mutant(
        name="no-wrap",
        disables="the no-wrap inequality",
        file=DESCRIPTOR,
        old="if n * per_silo + tail >= 2 ** (RING_BITS - 1):",
        new="if n * per_silo + tail >= 2 ** (2 * RING_BITS):",
        tests=(_DESCRIPTOR_TESTS + "test_no_wrap_at_the_exact_bound",),
    ),
    Mutant(
        name="no-wrap-one-past",
        disables="the last unit of the no-wrap bound",
        file=DESCRIPTOR,
        old="if n * per_silo + tail >= 2 ** (RING_BITS - 1):",
        new="if n * per_silo + tail > 2 ** (RING_BITS - 1):",
        tests=(_DESCRIPTOR_TESTS + "test_no_wrap_at_the_exact_bound",),
    ),
    Mutant(
        name="no-wrap-noise",
        disables="room for the noise in the no-wrap inequality",
        file=DESCRIPTOR,
        old="tail = NOISE_TAIL * Fraction(sigma) * Fraction(math.sqrt(n))",
        new="tail = Fraction(0)",
        tests=_RULES,
    ),
    Mutant(
        name="deadlines",
        disables="increasing deadlines",
        file=DESCRIPTOR,
        old="if not all(earlier < later for earlier, later in deadlines):",
        new="if not list(deadlines):",
        tests=_RULES,
    ),
    Mutant(
        name="identity-newness",
        disables="an identity strictly newer than the ledger's newest",
        file=DESCRIPTOR,
        old="if not newest < identity:",
        new="if newest == identity:",
        tests=(_KEY_TESTS + "test_begin_refuses_an_identity_seen_before",),
    ),
    Mutant(
        name="identity-again",
        disables="refusal of the very identity that was charged",
        file=DESCRIPTOR,
        old="if not newest < identity:",
        new="if not newest <= identity:",
        tests=(_KEY_TESTS + "test_begin_refuses_an_identity_seen_before",),
    ),
    Mutant(
        name="threshold-minus-one",
        disables="2t > n + c",
        file=PARAMETERS,
        old="t = max((n + c) // 2 + 1, c + 2)",
        new="t = max((n + c) // 2, c + 2)",
        tests=(_PARAMETER_TESTS + "test_threshold_table",),
    ),
    Mutant(
        name="threshold-two-honest",
        disables="t ≥ c + 2",
        file=PARAMETERS,
        old="t = max((n + c) // 2 + 1, c + 2)",
        new="t = (n + c) // 2 + 1",
        tests=(_PARAMETER_TESTS + "test_threshold_bounds_hold_everywhere",),
    ),
    Mutant(
        name="c-zero",
        disables="c ≥ 1 always",
        file=PARAMETERS,
        old="    if c < 1:\n",
        new="    if c < 0:\n",
        tests=(_PARAMETER_TESTS + "test_impossible_sizes_are_refused",),
    ),
    Mutant(
        name="least-survivors",
        disables="n_min as a floor of the survivors",
        file=PARAMETERS,
        old="return max(self.t, self.n_min)",
        new="return self.t",
        tests=("tests/adversary/simulation/test_secagg_dropouts.py::test_n_min_above_t_is_kept",),
    ),
    Mutant(
        name="membership",
        disables="this silo is in the cohort",
        file=SETUP,
        old="if setup.silo_id not in descriptor.cohort or entry is None:",
        new="if entry is None:",
        tests=(_KEY_TESTS + "test_begin_refuses_a_silo_left_out_of_the_cohort",),
    ),
    Mutant(
        name="membership-key",
        disables="the roster holds this silo's key",
        file=SETUP,
        old="if entry.verification_key != suite.verification_key(setup.signing_key):",
        new="if not entry.verification_key:",
        tests=_HELD,
    ),
    Mutant(
        name="base-model",
        disables="D names the base model this silo loaded",
        file=SETUP,
        old="if descriptor.base_model_sha256 != setup.base_model_sha256:",
        new="if not setup.base_model_sha256:",
        tests=_HELD,
    ),
    Mutant(
        name="forked-model",
        disables="D starts from the head of the chain this silo adopted",
        file=SETUP,
        old="if descriptor.adapter_sha256 != setup.adapter_sha256:",
        new="if not setup.adapter_sha256:",
        tests=_HELD,
    ),
    Mutant(
        name="site-colluding",
        disables="the site's floor on c",
        file=POLICY,
        old='f"c = {c} is below cohort.min_colluding {least}" if c < least else None',
        new='f"c = {c} is below cohort.min_colluding {least}" if c < 0 else None',
        tests=_SITE_RULES,
    ),
    Mutant(
        name="site-threshold",
        disables="the site's floor on t",
        file=POLICY,
        old='f"t = {t} is below cohort.min_threshold {least}" if t < least else None',
        new='f"t = {t} is below cohort.min_threshold {least}" if t < 0 else None',
        tests=_SITE_RULES,
    ),
    Mutant(
        name="site-cohort",
        disables="the site's floor on the cohort",
        file=POLICY,
        old='f"{n} silos are below cohort.min_silos {least}" if n < least else None',
        new='f"{n} silos are below cohort.min_silos {least}" if n < 0 else None',
        tests=_SITE_RULES,
    ),
    Mutant(
        name="site-sums",
        disables="no more sums in a round than the plan has",
        file=POLICY,
        old="if identity.step >= sums or identity.part >= parts:",
        new="if identity.part >= parts:",
        tests=(_MODES + "test_a_step_past_the_rounds_last_or_a_part_past_the_most_is_refused",),
    ),
    Mutant(
        name="site-sigma",
        disables="σ_i as the plan's z, t and c need it",
        file=POLICY,
        old="if sigma < needed or (needed == 0.0) != (sigma == 0.0):",
        new="if (needed == 0.0) != (sigma == 0.0):",
        tests=_SITE_RULES,
    ),
)
