"""Mutants of what must be on a silo's disk before a byte leaves."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

LEDGER = "dp/ledger/ledger.py"
JOURNAL = "dp/ledger/journal.py"
COUNTS = "dp/ledger/counts.py"

SILO_LEDGER = "silo_agent/books/ledger.py"
SESSION = "silo_agent/attempt/session.py"
SPOOL = "silo_agent/attempt/spool.py"
UNFINISHED = "silo_agent/attempt/unfinished.py"
DURABLE = "ops/files.py"

_LEDGER_TESTS = "tests/dp/ledger/test_ledger.py::"
_ADMISSION_TESTS = "tests/silo_agent/daemon/test_admission.py::"
_DAY_TESTS = "tests/dp/ledger/test_days.py::"
_RESERVATION_TESTS = "tests/silo_agent/local_work/test_reservation.py::"
_JOINED_TESTS = "tests/dp/ledger/test_joined.py::"
_FILE_TESTS = "tests/silo_agent/books/test_ledger_file.py::"
_SESSION_TESTS = "tests/silo_agent/attempt/test_session.py::"
_SPOOL_TESTS = "tests/silo_agent/attempt/test_spool.py::"
_UNFINISHED_TESTS = "tests/silo_agent/attempt/test_unfinished.py::"
_CRASHES = "tests/adversary/simulation/test_secagg_crashes.py::"
_JOIN = """\
        ledger.mark_joined(ledger_identity(self.identity), self.descriptor.sha256)
"""
_EARLY_KEYS = """\
        coordinator.advertise_keys(self.identity, protocol.begin(setup)[1])
"""
_MARK = """\
                self._ledger.mark_agreed(ledger_identity(identity), cohort=self._noiseless(message))
"""
_AUDITED = """\
                self._audit.append(SiloEvent.SURVIVORS_SIGNED, **place(identity))
"""
_SIGN = """\
                self._answer(message, lambda: wire.check_consistency(identity, signature))
"""
_DYING = (_CRASHES + "test_a_silo_may_die_at_any_instant_and_takes_part_again_in_the_next_round",)
_WITHOUT_CRASHES = (_CRASHES + "test_an_attempt_without_crashes_releases_shares_and_gives_the_sum",)

MUTANTS = (
    Mutant(
        name="ledger-flush",
        disables="the flush of a ledger record before it counts",
        file=JOURNAL,
        old="            os.fsync(self._fd)\n        except OSError as error:\n",
        new="        except OSError as error:\n",
        tests=(_LEDGER_TESTS + "test_bytes_and_directory_are_synced_before_reserve_returns",),
    ),
    Mutant(
        name="agreed-not-durable",
        disables='the record "survivors signed" on disk',
        file=LEDGER,
        old="            self._journal.append(form.signed_record(identity, members))\n",
        new="",
        tests=(_LEDGER_TESTS + "test_after_agreeing_no_later_attempt_is_accepted",),
    ),
    Mutant(
        name="agreed-then-charged",
        disables="refusal to charge a later attempt once survivors were signed",
        file=LEDGER,
        old="    def _require_new(self, identity: Identity, descriptor_sha256: bytes) -> None:\n"
        "        if identity.aggregation in self._agreed:\n",
        new="    def _require_new(self, identity: Identity, descriptor_sha256: bytes) -> None:\n"
        "        if not identity.aggregation:\n",
        tests=(_LEDGER_TESTS + "test_after_agreeing_no_later_attempt_is_accepted",),
    ),
    Mutant(
        name="agreed-then-joined",
        disables="refusal to show keys for a later attempt once survivors were signed",
        file=LEDGER,
        old="    def _require_joinable(self, identity: Identity) -> None:\n"
        "        if identity.aggregation in self._agreed:\n",
        new="    def _require_joinable(self, identity: Identity) -> None:\n"
        "        if not identity.aggregation:\n",
        tests=(_JOINED_TESTS + "test_after_agreeing_no_later_attempt_is_joined",),
    ),
    Mutant(
        name="joined-twice",
        disables="keys once per identity, in order",
        file=LEDGER,
        old="        if newest is not None and identity <= newest:\n",
        new="        if newest is not None and not identity:\n",
        tests=(_JOINED_TESTS + "test_an_identity_is_joined_once_and_in_order",),
    ),
    Mutant(
        name="joined-not-durable",
        disables='the record "joined" on disk',
        file=LEDGER,
        old="            self._journal.append(form.joined_record(identity, descriptor_sha256))\n",
        new="",
        tests=_DYING,
    ),
    Mutant(
        name="joined-under-another-descriptor",
        disables="the charge of a joined identity under its own descriptor alone",
        file=LEDGER,
        old="if identity == joined and not hmac.compare_digest(joined_sha256, descriptor_sha256):",
        new="if identity == joined and not descriptor_sha256:",
        tests=(_JOINED_TESTS + "test_a_joined_identity_is_charged_under_its_descriptor_alone",),
    ),
    Mutant(
        name="agreed-twice",
        disables="one mark per aggregation",
        file=LEDGER,
        old="        if identity.aggregation in self._agreed:\n"
        '            raise IdentityError(f"{identity} was already agreed on")\n',
        new="",
        tests=(_LEDGER_TESTS + "test_after_agreeing_no_later_attempt_is_accepted",),
    ),
    Mutant(
        name="agreed-unspent",
        disables="only a charged attempt can be agreed on",
        file=LEDGER,
        old="        if identity not in self._spent:\n"
        '            raise IdentityError(f"{identity} was never spent, '
        'so it cannot be agreed on")\n',
        new="",
        tests=(_LEDGER_TESTS + "test_after_agreeing_no_later_attempt_is_accepted",),
    ),
    Mutant(
        name="spent-twice",
        disables="one charge per attempt, in order",
        file=LEDGER,
        old="if identity.attempt <= self._newest_attempt.get(identity.aggregation, -1):",
        new="if identity.attempt < 0:",
        tests=(_LEDGER_TESTS + "test_identities_are_spent_once_and_in_order",),
    ),
    Mutant(
        name="older-round",
        disables="refusal of rounds older than the newest charged",
        file=LEDGER,
        old="if newest is not None and (identity.round, identity.step) < "
        "(newest.round, newest.step):",
        new="if identity.round < 0:",
        tests=(_LEDGER_TESTS + "test_identities_are_spent_once_and_in_order",),
    ),
    Mutant(
        name="budget-cap",
        disables="the cap on epsilon",
        file=COUNTS,
        old="if not (projected[unit] <= self.caps[unit] and self.caps[unit] > 0):",
        new="if projected[unit] < 0:",
        tests=(_LEDGER_TESTS + "test_over_budget_is_refused_before_anything_is_written",),
    ),
    Mutant(
        name="day-goes-back",
        disables="the day of the newest debit where the clock was set back",
        file=COUNTS,
        old="        return max(self._newest, int(self._clock() // DAY_S))\n",
        new="        return int(self._clock() // DAY_S)\n",
        tests=(_DAY_TESTS + "test_a_clock_that_is_set_back_empties_no_count_and_begins_none",),
    ),
    Mutant(
        name="day-forgotten",
        disables="the count of a day's attempts across a restart",
        file=LEDGER,
        old="                    self._days.add(form.read_day(record))\n"
        "                    self._charge(entry, debits)\n",
        new="                    self._charge(entry, debits)\n",
        tests=(_DAY_TESTS + "test_attempts_and_trainings_count_across_restarts_until_midnight",),
    ),
    Mutant(
        name="attempts-per-day",
        disables="the site's cap on attempts of a day",
        file=SILO_LEDGER,
        old="    if done + debits > most:\n",
        new="    if done < 0:\n",
        tests=(
            _ADMISSION_TESTS
            + "test_the_days_attempts_are_refused_in_words_that_pass_by_themselves",
        ),
    ),
    Mutant(
        name="attempts-per-day-at-the-debit",
        disables="the cap on a day's debits where the debit is made",
        file=COUNTS,
        old="        if self._most is not None and self.debits() >= self._most:\n",
        new="        if self._most is not None and self.debits() < 0:\n",
        tests=(_DAY_TESTS + "test_a_full_day_takes_no_debit_of_either_kind_and_the_next_one_does",),
    ),
    Mutant(
        name="attempts-per-day-not-told-to-the-ledger",
        disables="the site's ceiling of a day in the ledger that the daemon opens",
        file=SILO_LEDGER,
        old="        max_debits_per_day=policy.limits.max_attempts_per_day,\n",
        new="",
        tests=(_FILE_TESTS + "test_the_sites_ceiling_of_a_day_is_the_ledgers",),
    ),
    Mutant(
        name="trainings-per-run",
        disables="the cap on a run's trainings where the debit is made",
        file="silo_agent/local_work/reservation.py",
        old="                max_in_run=self._plan.charged_releases,\n",
        new="",
        tests=(_RESERVATION_TESTS + "test_a_run_is_trained_for_as_often_as_its_plan_states",),
    ),
    Mutant(
        name="attempts-per-run",
        disables="the cap on a run's attempts that its plan states epsilon for",
        file=SILO_LEDGER,
        old="        if charged >= stated:\n",
        new="        if charged < 0:\n",
        tests=(
            _ADMISSION_TESTS
            + "test_a_run_is_charged_for_as_many_attempts_as_its_plan_states_and_no_more[silo]",
        ),
    ),
    Mutant(
        name="ledger-rollback",
        disables="refusal of a ledger behind a head that was seen",
        file=LEDGER,
        old="            if not 0 <= seq < self._journal.length:\n",
        new="            if seq < 0:\n",
        tests=("tests/dp/ledger/test_damage.py::test_rollback_and_fork_are_caught_by_heads",),
    ),
    Mutant(
        name="keys-before-record",
        disables='the record "joined" before the keys leave',
        file=SESSION,
        old=_JOIN,
        new=_EARLY_KEYS + _JOIN,
        tests=_WITHOUT_CRASHES,
        phrase="no durable record 'joined'",
    ),
    Mutant(
        name="upload-before-debit",
        disables='the "spent" mark and the debit before the first byte',
        file=SESSION,
        old="        receipt = self._ledger.reserve(\n",
        new="        receipt = (lambda e: __import__('dp.ledger.receipt').ledger.receipt.Receipt(\n"
        "            issuer=__import__('dp.ledger.receipt').ledger.receipt.ISSUER, mode=e.mode,\n"
        "            descriptor_sha256=e.descriptor_sha256, dimension=e.dimension,\n"
        "            record=self._ledger.head()))(\n",
        tests=_WITHOUT_CRASHES,
        phrase="no durable record 'spent'",
    ),
    Mutant(
        name="survivors-mark-after-signature",
        disables='the mark "survivors signed" before the signature leaves',
        file=SESSION,
        old=_MARK + _AUDITED + _SIGN,
        new=_SIGN + _MARK + _AUDITED,
        tests=(_SESSION_TESTS + "test_the_mark_is_on_disk_before_the_signature_leaves",),
    ),
    Mutant(
        name="survivors-mark",
        disables='the mark "survivors signed"',
        file=SESSION,
        old=_MARK,
        new="",
        tests=_WITHOUT_CRASHES,
        phrase="no durable record 'signed_r3'",
    ),
    Mutant(
        name="survivors-mark-not-consulted",
        disables="refusal of a later attempt before any key is made",
        file=SESSION,
        old="if self._ledger.has_agreed(mine.run_id, mine.round, mine.step):",
        new="if not mine.run_id:",
        tests=(_SESSION_TESTS + "test_after_survivors_were_signed_no_later_attempt_is_joined",),
    ),
    Mutant(
        name="ledger-identity-not-consulted",
        disables="the ledger's newest identity in the check of R0",
        file=SESSION,
        old="newest_identity=newest_identity(ledger, self.identity.run_id),",
        new="newest_identity=None,",
        tests=(_SESSION_TESTS + "test_an_identity_that_is_not_newer_is_refused",),
    ),
    Mutant(
        name="second-message",
        disables="a second, different message of an answered step ends the session",
        file=SESSION,
        old="        if message != self.message:\n",
        new="        if message is None:\n",
        tests=(_SESSION_TESTS + "test_a_different_message_of_an_answered_step_ends_the_session",),
    ),
    Mutant(
        name="failure-closes",
        disables="wiping of the session when anything fails",
        file=SESSION,
        old="            self.close(check=error.check if isinstance(error, SecAggError) "
        "else None)\n",
        new="",
        tests=(_SESSION_TESTS + "test_a_message_out_of_order_ends_the_session_and_wipes",),
    ),
    Mutant(
        name="unfinite-refused",
        disables="a zero vector in place of a delta that is not finite",
        file=SESSION,
        old="        except NonFiniteError:\n",
        new="        except ZeroDivisionError:\n",
        tests=(_SESSION_TESTS + "test_a_delta_that_is_not_finite_goes_up_as_zeros",),
    ),
    Mutant(
        name="spool-twice",
        disables="one spool per identity",
        file=SPOOL,
        old="            if path.exists():\n",
        new="            if path.is_dir():\n",
        tests=(_SPOOL_TESTS + "test_one_identity_is_written_once",),
    ),
    Mutant(
        name="spool-digest",
        disables="the digest of a spool before it is sent again",
        file=SPOOL,
        old=" and self._digest(file) == self.sha256\n",
        new="\n",
        tests=(_UNFINISHED_TESTS + "test_damage_is_found_before_the_first_byte_is_sent",),
    ),
    Mutant(
        name="spool-flush",
        disables="the flush of a spool before its first byte leaves",
        file=DURABLE,
        old="            os.fsync(file.fileno())\n        temporary.replace(path)\n",
        new="        temporary.replace(path)\n",
        tests=(_SPOOL_TESTS + "test_the_file_and_its_directory_are_flushed_before_write_returns",),
    ),
    Mutant(
        name="unfinished-uncharged",
        disables="only charged uploads are finished after a restart",
        file=UNFINISHED,
        old="""        if spool.header.silo_id != silo_id or not ledger.has_spent(
            identity, spool.descriptor_sha256
        ):
""",
        new="        if spool.header.silo_id != silo_id:\n",
        tests=(_UNFINISHED_TESTS + "test_what_was_never_charged_is_deleted_unsent",),
    ),
    Mutant(
        name="unfinished-older",
        disables="only the newest aggregation's upload is finished after a restart",
        file=UNFINISHED,
        old="        if ledger.highest_identity(identity.run) != identity:\n",
        new="        if not identity.run:\n",
        tests=(_UNFINISHED_TESTS + "test_an_older_spool_is_deleted_unsent",),
    ),
    Mutant(
        name="ledger-lost",
        disables="refusal of a new ledger where the silo is not new",
        file=SILO_LEDGER,
        old="    if not path.exists() and (store.chain_heads() or ",
        new="    if not store and (store.chain_heads() or ",
        tests=(_FILE_TESTS + "test_a_lost_ledger_is_not_replaced_by_a_new_one",),
    ),
    Mutant(
        name="ledger-restored",
        disables="refusal of a ledger older than the silo remembers",
        file=SILO_LEDGER,
        old="            ledger.require_contains(*remembered)\n",
        new="            ledger.head()\n",
        tests=(_FILE_TESTS + "test_an_older_copy_of_the_ledger_is_refused",),
    ),
)
