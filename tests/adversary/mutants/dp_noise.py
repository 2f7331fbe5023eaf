"""Mutants of what a release holds: noise, clip, sample, divisor, gradients.

Those that an audit alone can catch name the audit; the first failing test decides, so an audit that
is named first is the one that caught the mutant.
"""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

SGD = "dp/steps/sgd.py"
SHARE = "dp/noise/share.py"
UNITS = "dp/steps/units.py"
GRID = "dp/noise/grid.py"
UNIT_SUM = "dp/noise/unit_sum.py"
GRADS = "dp/steps/grads.py"
FIXED = "dp/steps/fixed.py"
RESULT = "silo_agent/local_work/result.py"
SFT = "evolution/train/sft.py"
RECIPE = "evolution/methods/recipe.py"

_LOCAL = "tests/adversary/audit/test_audits_record_local.py::"
_SHARED = "tests/adversary/audit/test_audits_shared.py::"
_ONE_RELEASE = _LOCAL + "test_one_release_is_a_gaussian_of_the_claimed_noise"
_ALL_STEPS = _LOCAL + "test_a_run_leaks_no_more_than_the_accountant_says"
_NOISE = _LOCAL + "test_noise_is_in_every_coordinate_and_new_in_every_step"
_SCALE = _LOCAL + "test_noise_does_not_depend_on_the_number_of_units"
_ONE_SUM = _SHARED + "test_one_sum_of_units_is_a_gaussian_of_the_claimed_noise"
_ONE_DELTA = _SHARED + "test_one_sum_of_deltas_and_its_metrics_are_gaussians_of_the_claimed_noise"
_SHARES = _SHARED + "test_noise_shares_are_whole_and_unrelated"

_DGAUSS = "tests/dp/noise/test_dgauss.py::"
_SHARE_TESTS = "tests/dp/noise/test_share_noise.py::"
_SUM_TESTS = "tests/dp/noise/test_unit_sum.py::"
_SGD_TESTS = "tests/dp/steps/test_sgd.py::"
_UNIT_TESTS = "tests/dp/steps/test_units.py::"
_STEP_TESTS = "tests/silo_agent/local_work/test_work_steps.py::"
_WORK_TESTS = "tests/silo_agent/local_work/test_work_charge.py::"
_CONTAINED = "tests/evolution/methods/record/test_contained.py::"
_UNIT_TIME = "tests/evolution/methods/record/test_time.py::"
_WORK_TIME = "tests/silo_agent/local_work/test_work_time.py::"
_FIXED_TESTS = "tests/dp/steps/test_fixed.py::"
_GRADS_TESTS = "tests/dp/steps/test_grads.py::"

_DRAW = (
    "        noisy = np.zeros(self._dimension, dtype=np.uint32)\n"
    '        add_noise(noisy, self._sigma, NoiseSource.fresh("training step"))\n'
)

MUTANTS = (
    Mutant(
        name="half-sigma",
        disables="half of the standard deviation of a training step",
        file=SGD,
        old="per_silo_sigma(spec.noise_multiplier, spec.grid, 1, 1, 0)\n",
        new="per_silo_sigma(spec.noise_multiplier, spec.grid, 1, 1, 0) / 2\n",
        tests=(_ONE_RELEASE,),
    ),
    Mutant(
        name="half-sigma-shared",
        disables="half of the standard deviation of every share",
        file=SHARE,
        old="        )\n    return sigma\n\n\ndef metrics_sigma(",
        new="        )\n    return sigma / 2\n\n\ndef metrics_sigma(",
        tests=(_ONE_SUM,),
    ),
    Mutant(
        name="half-sigma-metrics",
        disables="half of the standard deviation of the metrics block of mode silo",
        file=SHARE,
        old="        return per_silo_sigma(z, block.grid, t, n_min, c)\n",
        new="        return per_silo_sigma(z, block.grid, t, n_min, c) / 2\n",
        tests=(_ONE_DELTA,),
        phrase="silo, metrics block",
    ),
    Mutant(
        name="per-row-clip",
        disables="the clip of a unit: each of its rows is clipped instead",
        file=SGD,
        old="_add_gradients(total, [rows for _, rows in measured], backend)\n",
        new="_add_gradients(total, [(row,) for _, rows in measured for row in rows], backend)\n",
        tests=(_ONE_RELEASE,),
        phrase="VIOLATED",
    ),
    Mutant(
        name="no-sampling",
        disables="the sample: every unit is in every step",
        file=UNITS,
        old="    return words < np.uint64(threshold)\n",
        new="    return words == words\n",
        tests=(_ALL_STEPS,),
        phrase="VIOLATED",
    ),
    Mutant(
        name="n-dependent-divisor",
        disables="the fixed divisor: a step is divided by the number of units there are",
        file=SGD,
        old="per_step = spec.clip_l2 / spec.grid / self._record.expected_units\n",
        new="per_step = spec.clip_l2 / spec.grid / max(1, len(rows_of))\n",
        tests=(_SCALE,),
        phrase="VIOLATED",
    ),
    Mutant(
        name="layer-without-noise",
        disables="the noise of the last twentieth of the vector",
        file=SGD,
        old=_DRAW,
        new=_DRAW.replace("(noisy,", "(noisy[: -(noisy.size // 20)],"),
        tests=(_NOISE,),
        phrase="noise, each",
    ),
    Mutant(
        name="layer-without-noise-shared",
        disables="the noise of the last twentieth of a share",
        file=SHARE,
        old="        add_noise(buffer[: grid.dimension], sigma, source)\n",
        new="        add_noise(buffer[: grid.dimension - grid.dimension // 20], sigma, source)\n",
        tests=(_SHARES,),
        phrase="noise shares, each",
    ),
    Mutant(
        name="noise-reused",
        disables="fresh noise for each step of a training",
        file=SGD,
        old=_DRAW,
        new='        kept = globals().setdefault("_kept", {})\n'
        "        if self._receipt not in kept:\n"
        "            kept[self._receipt] = np.zeros(self._dimension, dtype=np.uint32)\n"
        '            fresh = NoiseSource.fresh("training step")\n'
        "            add_noise(kept[self._receipt], self._sigma, fresh)\n"
        "        noisy = kept[self._receipt].copy()\n",
        tests=(_NOISE,),
        phrase="noise of steps",
    ),
    Mutant(
        name="noise-key-constant",
        disables="a key of its own for each source: all silos draw the same noise",
        file="dp/noise/source.py",
        old="algorithms.AES(os.urandom(_KEY_BYTES))",
        new="algorithms.AES(bytes(_KEY_BYTES))",
        tests=(_SHARES,),
        phrase="noise of silos",
    ),
    Mutant(
        name="noise-needs-data",
        disables="noise on a step without any unit",
        file=SGD,
        old="            result[part] = signed[part].astype(np.float64) * per_step\n",
        new="            result[part] = signed[part].astype(np.float64) * per_step\n"
        "            result[part] *= bool(rows_of)\n",
        tests=(_NOISE,),
    ),
    Mutant(
        name="divisor-without-colluders",
        disables="the colluders in the divisor of the noise",
        file=SHARE,
        old="    honest = max(t, n_min) - c\n",
        new="    honest = max(t, n_min)\n",
        tests=(_SHARE_TESTS + "test_every_survivor_set_keeps_the_variance",),
    ),
    Mutant(
        name="metrics-noise-divided",
        disables="full noise on the metrics of record_local: the silos share it",
        file=SHARE,
        old="    alone = per_silo_sigma(z, steps, 1, 1, 0)\n",
        new="    alone = per_silo_sigma(z, steps, t, n_min, c)\n",
        tests=(_SHARE_TESTS + "test_metrics_noise_of_every_mode",),
    ),
    Mutant(
        name="user-as-one-task",
        disables="the whole metrics block as the sensitivity of a user",
        file=SHARE,
        old='block.unit_steps(tries=tries) if spec.unit == "task" else block.grid',
        new="block.unit_steps(tries=tries)",
        tests=(_SHARE_TESTS + "test_a_user_moves_the_whole_block",),
    ),
    Mutant(
        name="ring-without-b-max",
        disables="the number of units in the bound of the ring",
        file=SHARE,
        old="    reach = n * b_max * (grid_steps + 1) + ",
        new="    reach = n * (grid_steps + 1) + ",
        tests=(_SHARE_TESTS + "test_ring_bound_is_exact",),
    ),
    Mutant(
        name="minus-zero",
        disables="the rejection of a second zero in the sampler",
        file="dp/noise/dgauss.py",
        old="    accepted &= (magnitude != 0) | (signs == 0)\n",
        new="    accepted &= (magnitude != 0) | (signs < 2)\n",
        tests=(_DGAUSS + "test_minus_zero_is_rejected",),
    ),
    Mutant(
        name="clip-before-bf16",
        disables="a clip of what is added: it is rounded to bfloat16 after the check",
        file=GRID,
        old='            np.copyto(part, tile, casting="unsafe")\n',
        new="            bits = tile.astype(np.float32).view(np.uint32) + np.uint32(1 << 15)\n"
        "            rounded = (bits & np.uint32(0xFFFF0000)).view(np.float32)\n"
        '            np.copyto(part, rounded, casting="unsafe")\n',
        tests=(_SUM_TESTS + "test_any_unit_moves_the_sum_by_at_most_the_clip",),
    ),
    Mutant(
        name="clip-per-tensor",
        disables="the clip of the whole vector: half of it is not measured",
        file=GRID,
        old="for tile in _scaled_tiles(x, divisor)))\n",
        new="for tile in _scaled_tiles(x[: -(x.size // 2)], divisor)))\n",
        tests=("tests/dp/noise/test_grid.py::test_clip_acts_on_the_whole_vector",),
    ),
    Mutant(
        name="norm-check",
        disables="the check of the integers' norm",
        file=GRID,
        old="            if total > self.steps**2:\n",
        new="            if total < 0:\n",
        tests=(
            "tests/dp/noise/test_grid.py::test_a_vector_that_is_too_long_after_all_leaves_zeros",
        ),
    ),
    Mutant(
        name="nan-bypass",
        disables="recognition of a gradient that is not a number",
        file=GRID,
        old="        if not math.isfinite(norm):\n",
        new="        if math.isinf(norm):\n",
        tests=(_SUM_TESTS + "test_a_unit_that_is_not_finite_is_null_and_counted",),
    ),
    Mutant(
        name="rate-rounded-up",
        disables="a sampling rate that is never above q",
        file=UNITS,
        old="    threshold = math.floor(Fraction(q) * 2**_WORD_BITS)\n",
        new="    threshold = math.floor(Fraction(q) * 2**_WORD_BITS) + 1\n",
        tests=(_UNIT_TESTS + "test_the_threshold_is_exact_and_never_above_the_rate",),
    ),
    Mutant(
        name="unit-is-a-row",
        disables="the grouping of rows: the last row of a task stands for all",
        file=UNITS,
        old="        groups.setdefault(unit_of(row), []).append(row)\n",
        new="        groups[unit_of(row)] = [row]\n",
        tests=(_UNIT_TESTS + "test_rows_are_grouped_whole_and_in_order",),
    ),
    Mutant(
        name="overflow-released",
        disables="the failure of a step with more than B_max units",
        file=SGD,
        old="    if len(sample) > record.max_units:\n",
        new="    if len(sample) > 2 * record.max_units:\n",
        tests=(_SGD_TESTS + "test_an_overflowing_sample_is_spent_and_reads_nothing",),
    ),
    Mutant(
        name="overflow-truncated",
        disables="the end of a sum that was given one unit too many",
        file=UNIT_SUM,
        old="            self._close()\n            raise TooManyUnitsError(",
        new="            raise TooManyUnitsError(",
        tests=(_SUM_TESTS + "test_one_unit_too_many_ends_the_sum",),
    ),
    Mutant(
        name="batch-mean-loss",
        disables="a loss of its own for each row: the mean over the batch",
        file=SFT,
        old="        return sums_B, padded.mask[:, 1:].sum(dim=1)\n",
        new="        mean = sums_B.mean().expand(len(sums_B))\n"
        "        return mean, padded.mask[:, 1:].sum(dim=1)\n",
        tests=(
            "tests/evolution/methods/record/test_record.py::test_users_are_units_over_all_their_tasks",
        ),
        phrase="no gradient per unit",
    ),
    Mutant(
        name="coupling-guard",
        disables="the check that a row's gradient does not depend on other rows",
        file=GRADS,
        old="(([first], 0), ([first, second], 0), ([second, first], 1)):\n",
        new="(([first], 0),):\n",
        tests=(
            "tests/dp/steps/test_grads_coupling.py::test_a_loss_that_ties_rows_together_is_refused",
        ),
    ),
    Mutant(
        name="shapes-believed",
        disables="the test that rows keep their bits in passes of a shape",
        file=FIXED,
        old="_counts_apart(hooks, self._public, rows, tokens)\n",
        new="tuple(1 << power for power in range(rows.bit_length()))\n",
        tests=(
            _FIXED_TESTS + "test_a_model_that_couples_rows_by_a_rounding_is_computed_one_by_one",
        ),
    ),
    Mutant(
        name="passes-leak",
        disables="the line between the rows of a pass",
        file=FIXED,
        old="count in zip(chunk, matrix.numpy(), said, strict=False):\n",
        new="count in zip(chunk, (matrix + matrix.mean(dim=0)).numpy(), said, strict=False):\n",
        tests=(
            _LOCAL + "test_a_step_of_grpo_tells_of_a_task_group_what_is_claimed",
            _FIXED_TESTS + "test_not_one_bit_depends_on_other_units_their_order_or_number",
        ),
    ),
    Mutant(
        name="normalised-by-batch",
        disables="the unit's own number of tokens as its divisor",
        file=GRADS,
        old="                    tokens += int(counts_B.sum())\n",
        new="                    tokens = len(units)\n",
        tests=(_GRADS_TESTS + "test_in_the_loop_not_one_bit_depends_on_other_units",),
    ),
    Mutant(
        name="unit-failure-empties-the-sum",
        disables="the null unit: a unit whose gradient fails takes all others with it",
        file=SGD,
        old="  # raising for everybody would tell of this unit's data\n"
        "            _add_null(total)\n",
        new="\n            raise\n",
        tests=(
            _STEP_TESTS + "test_a_unit_that_fails_is_null_and_all_others_stay",
            _SGD_TESTS + "test_a_unit_that_fails_moves_the_sum_by_no_more_than_its_clip",
        ),
    ),
    Mutant(
        name="failed-round-without-noise",
        disables="the silence of a failed training: zeros without noise go up",
        file=RESULT,
        old="            if not silent:\n",
        new="            if silent or not silent:\n",
        tests=(_WORK_TESTS + "test_the_charge_does_not_depend_on_what_the_work_came_to",),
    ),
    Mutant(
        name="failed-exploration-ends-the-training",
        disables="the noisy steps of a round whose exploration failed",
        file=RECIPE,
        old="            if isinstance(error, EvolveError | LocalTimeError):\n",
        new="            if isinstance(error, Exception):\n",
        tests=(_CONTAINED + "test_where_exploring_fails_as_a_whole_the_charged_steps_are_noise",),
    ),
    Mutant(
        name="late-exploration-becomes-noise",
        disables="the silence of a round that took too long: it goes on without any unit",
        file=RECIPE,
        old="            if isinstance(error, EvolveError | LocalTimeError):\n",
        new="            if isinstance(error, EvolveError):\n",
        tests=(_UNIT_TIME + "test_a_limit_on_the_whole_would_take_all_units_away_at_once",),
    ),
    Mutant(
        name="late-round-released",
        disables="the silence of a round that ended too late: it is said when it is done",
        file="silo_agent/local_work/pace.py",
        old="        return self.apart and self._pace.now() > self.at\n",
        new="        return self.apart and self._pace.now() > self.at + 1e9\n",
        tests=(_WORK_TIME + "test_nothing_of_a_round_that_takes_too_long_leaves",),
    ),
    Mutant(
        name="step-answered-when-done",
        disables="the time at which a step is answered: its sum is there when it is computed",
        file="silo_agent/local_work/work.py",
        old="            if not self._pace.wait_until(begun + after_s, self._stopping):\n",
        new="            if not self._pace.wait_until(begun, self._stopping):\n",
        tests=(
            _WORK_TIME + "test_when_a_step_is_answered_does_not_tell_how_many_tasks_were_solved",
        ),
    ),
)
