"""Mutants of what is charged and of who may spend it: accountant, ledger, receipts, heads."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

CHARGE = "dp/accounting/charge.py"
LEDGER = "dp/ledger/ledger.py"
COUNTS = "dp/ledger/counts.py"
RECEIPT = "dp/ledger/receipt.py"
RDP = "dp/accounting/rdp.py"
RESERVATION = "silo_agent/local_work/reservation.py"

_CHARGES = "tests/dp/accounting/test_charge.py::"
_LEDGER_TESTS = "tests/dp/ledger/test_ledger.py::"
_UNITS = "tests/dp/ledger/test_units.py::"
_RDP_TESTS = "tests/dp/accounting/test_rdp.py::"
_WORK_CHARGE = "tests/silo_agent/local_work/test_work_charge.py::"
_WORK_STEPS = "tests/silo_agent/local_work/test_work_steps.py::"
_SHARE_TESTS = "tests/dp/noise/test_share.py::"
_ECHO = "tests/silo_agent/books/test_ledger_echo.py::"
_PEERS = "tests/silo_agent/books/test_peer_heads.py::"
_SGD_TESTS = "tests/dp/steps/test_sgd.py::"

MUTANTS = (
    Mutant(
        name="receipt-used-twice",
        disables="the use of a receipt: it can be used again",
        file=RECEIPT,
        old="            self._used = True\n",
        new="            self._used = False\n",
        tests=(
            _SHARE_TESTS + "test_receipt_from_the_ledger_is_used_once_and_for_its_release_only",
        ),
    ),
    Mutant(
        name="training-receipt-endless",
        disables="the count of steps that a training has paid for",
        file=RECEIPT,
        old="            self._steps_left -= 1\n",
        new="            self._steps_left -= 0\n",
        tests=(_SGD_TESTS + "test_a_step_beyond_the_reserved_ones_reads_nothing",),
    ),
    Mutant(
        name="step-not-taken",
        disables="the spending of a step before its units are read",
        file="dp/steps/sgd.py",
        old="        self._receipt.take_step()\n        spec = self._receipt.spec\n",
        new="        spec = self._receipt.spec\n",
        tests=(_SGD_TESTS + "test_noise_comes_before_the_data_and_the_debit_too",),
    ),
    Mutant(
        name="charge-skipped",
        disables="the debit of a release",
        file=LEDGER,
        old="        identity = entry.identity\n        self._totals.add(debits, releases=1)\n",
        new="        identity = entry.identity\n",
        tests=(_LEDGER_TESTS + "test_charges_add_up_and_survive_reopening",),
    ),
    Mutant(
        name="training-charge-skipped",
        disables="the debit of a training",
        file=LEDGER,
        old="        self._totals.add(debits, releases=0)\n"
        "        self._trained[entry.run] = entry.round\n",
        new="        self._trained[entry.run] = entry.round\n",
        tests=(_UNITS + "test_training_is_charged_durably_before_its_receipt_exists",),
    ),
    Mutant(
        name="receipt-before-record",
        disables="the record on disk before a training's receipt exists",
        file=LEDGER,
        old="            self._journal.append(form.trained_record(entry, debits, day=day))\n",
        new="            form.trained_record(entry, debits, day=day)\n",
        tests=(_UNITS + "test_training_is_charged_durably_before_its_receipt_exists",),
    ),
    Mutant(
        name="budget-ignored",
        disables="the refusal of a release over budget",
        file=LEDGER,
        old="            self._require_trained(entry)\n"
        "            self._totals.require_affordable(entry.charges)\n",
        new="            self._require_trained(entry)\n",
        tests=(_LEDGER_TESTS + "test_over_budget_is_refused_before_anything_is_written",),
    ),
    Mutant(
        name="training-budget-ignored",
        disables="the refusal of a training over budget",
        file=LEDGER,
        old="            self._require_trainable(entry)\n"
        "            self._totals.require_affordable(entry.charges)\n",
        new="            self._require_trainable(entry)\n",
        tests=(_UNITS + "test_training_over_budget_is_refused_before_it_begins",),
    ),
    Mutant(
        name="cap-of-another-unit",
        disables="a cap of its own for each unit kind: the largest one counts for all",
        file=COUNTS,
        old="            if not (projected[unit] <= self.caps[unit] and self.caps[unit] > 0):\n",
        new="            largest = max(self.caps.values())\n"
        "            if not projected[unit] <= largest:\n",
        tests=(_UNITS + "test_each_unit_has_its_own_cap_and_none_is_charged_alone",),
    ),
    Mutant(
        name="untrained-delta",
        disables="the refusal of a delta whose training was not charged",
        file=LEDGER,
        old="            self._require_new(entry.identity, entry.descriptor_sha256)\n"
        "            self._require_trained(entry)\n",
        new="            self._require_new(entry.identity, entry.descriptor_sha256)\n",
        tests=(_UNITS + "test_a_delta_is_released_only_where_its_training_was_charged",),
    ),
    Mutant(
        name="metrics-not-charged",
        disables="the metrics block in the charge of a step with figures",
        file=CHARGE,
        old="return (*charges, _metrics(spec.unit, metrics)) if step == 0 else charges",
        new="return charges if step == 0 else charges",
        tests=(_CHARGES + "test_the_table_mode_by_mode",),
    ),
    Mutant(
        name="overflow-not-charged",
        disables="the probability of an overflow in delta",
        file=CHARGE,
        old="        delta=min(record.overflow_delta * steps, math.nextafter(1.0, 0.0)),\n",
        new="        delta=0.0 * steps,\n",
        tests=(_CHARGES + "test_the_table_mode_by_mode",),
    ),
    Mutant(
        name="one-step-charged",
        disables="the charge of all steps of a training: one is charged",
        file=CHARGE,
        old="    return (_steps(spec, spec.record, spec.record.steps_per_round),)\n",
        new="    return (_steps(spec, spec.record, 1),)\n",
        tests=(_CHARGES + "test_the_table_mode_by_mode",),
    ),
    Mutant(
        name="amplified-twice",
        disables="the sampling rate as it is: its square is charged",
        file=RDP,
        old="    log_q, log_1mq = math.log(q), math.log1p(-q)\n",
        new="    log_q, log_1mq = math.log(q * q), math.log1p(-q * q)\n",
        tests=(_RDP_TESTS + "test_agrees_with_opacus",),
    ),
    Mutant(
        name="doubt-is-zero",
        disables="infinite epsilon where a divergence is not a number",
        file=RDP,
        old="np.isnan(divergence).any() or divergence.min() < 0.0:\n        return math.inf\n",
        new="np.isnan(divergence).any() or divergence.min() < 0.0:\n        return 0.0\n",
        tests=(_RDP_TESTS + "test_doubt_is_infinite",),
    ),
    Mutant(
        name="reserved-after-training",
        disables="the charge of a training before its first step",
        file="evolution/methods/descend.py",
        old="    step = DpStep(receipt=work.privacy.reserve(), ",
        new="    units = list(population.rows_of.values())\n"
        "    trainer.descend(\n"
        "        names,\n"
        "        lambda: sum(backend.unit_gradients(units)),\n"
        "        steps=1,\n"
        "        learning_rate=work.settings.learning_rate,\n"
        "    )\n"
        "    step = DpStep(receipt=work.privacy.reserve(), ",
        tests=(
            "tests/evolution/methods/record/test_refusals.py::test_a_refused_budget_trains_nothing",
        ),
    ),
    Mutant(
        name="round-charged-once-for-all",
        disables="the refusal to train a round twice on one charge",
        file=RESERVATION,
        old="        if self._asked:\n            raise ReceiptError(",
        new="        if self._asked and self.failure:\n            raise ReceiptError(",
        tests=(_WORK_CHARGE + "test_one_round_has_one_receipt",),
    ),
    Mutant(
        name="sample-reused",
        disables="a fresh sample for each attempt: the last one's sum is released again",
        file="dp/steps/sgd.py",
        old="    sample = poisson_sample(population, record.sampling_rate, "
        'NoiseSource.fresh("unit sample"))\n',
        new='    kept = globals().setdefault("_kept", {})\n'
        "    if tuple(population) not in kept:\n"
        '        fresh = NoiseSource.fresh("unit sample")\n'
        "        drawn = poisson_sample(population, record.sampling_rate, fresh)\n"
        "        kept[tuple(population)] = drawn\n"
        "    sample = kept[tuple(population)]\n",
        tests=(_WORK_STEPS + "test_every_attempt_draws_its_own_sample",),
    ),
    Mutant(
        name="echo-believed",
        disables="the comparison of the echoed head with the ledger",
        file="silo_agent/books/ledger.py",
        old="        ledger.require_contains(seq, sha256)\n",
        new="        ledger.require_contains(*ledger.head())\n",
        tests=(_ECHO + "test_an_older_copy_is_refused_in_public_and_says_what_to_do",),
    ),
    Mutant(
        name="echo-of-anybody",
        disables="the silo's own signature on an echoed head",
        file="silo_agent/books/ledger.py",
        old="    if bundle.silo_id != silo_id or not "
        "suite.verify(own_key, bundle.signature, signed_bytes):\n",
        new="    if bundle.silo_id != silo_id or not own_key or not signed_bytes:\n",
        tests=(
            "tests/silo_agent/books/test_ledger_echo.py::test_the_coordinator_cannot_make_an_echo_up",
        ),
    ),
    Mutant(
        name="peer-behind",
        disables="the comparison of a peer's head with the highest seen",
        file="silo_agent/books/peer_heads.py",
        old="    elif bundle.ledger_seq < before.seq:\n",
        new="    elif bundle.ledger_seq < 0:\n",
        tests=(_PEERS + "test_a_rolled_back_peer_ends_the_attempt_before_any_share_leaves",),
    ),
    Mutant(
        name="figures-in-every-step",
        disables="zeros in place of figures after step 0",
        file="silo_agent/local_work/result.py",
        old=" if step == 0 else dict.fromkeys(",
        new=" if step >= 0 else dict.fromkeys(",
        tests=(_WORK_STEPS + "test_only_step_0_carries_figures",),
    ),
    Mutant(
        name="sum-without-noise",
        disables="the refusal of a share whose noise is not what was debited",
        file="dp/noise/share.py",
        old="        if (self._sigma > 0) != noised:\n",
        new="        if (self._sigma > 0) and not noised:\n",
        tests=("tests/dp/noise/test_share.py::test_noise_must_fit_what_was_debited",),
    ),
    Mutant(
        name="unclipped-vector",
        disables="the refusal of a whole vector where a sum of clipped units was debited",
        file="dp/noise/share.py",
        old="        if isinstance(delta, UnitSum) != (mode is Mode.RECORD_DISTRIBUTED):\n",
        new="        if isinstance(delta, UnitSum) and mode is not Mode.RECORD_DISTRIBUTED:\n",
        tests=(_SHARE_TESTS + "test_only_a_sum_of_clipped_units_has_the_sensitivity_of_one",),
    ),
)
