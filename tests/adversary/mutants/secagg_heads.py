"""Mutants of what makes a ledger that went back in time visible to others."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

SESSION = "silo_agent/attempt/session.py"
GATE = "silo_agent/daemon/gate.py"
PEER_HEADS = "silo_agent/books/peer_heads.py"

_PEERS = "tests/silo_agent/books/test_peer_heads.py::"
_STEPS = "tests/silo_agent/daemon/test_daemon_steps.py::"
_SESSION_LEDGER = "tests/silo_agent/attempt/test_session_ledger.py::"
_ROLLED_BACK = "tests/adversary/simulation/test_rolled_back_ledger.py::"

MUTANTS = (
    Mutant(
        name="peer-heads-not-admitted",
        disables="the comparison of the peers' ledger heads before any share leaves",
        file=SESSION,
        old="                self._peers.admit(message, self._roster, identity)\n",
        new="",
        tests=(
            _ROLLED_BACK + "test_peers_leave_an_attempt_with_a_rolled_back_ledger",
            _PEERS + "test_a_rolled_back_peer_ends_the_attempt_before_any_share_leaves",
        ),
    ),
    Mutant(
        name="peer-heads-not-durable",
        disables="the peers' heads on disk before any share leaves",
        file=PEER_HEADS,
        old="        self._store.set_peer_heads(higher)\n",
        new="",
        tests=(_PEERS + "test_the_highest_head_is_remembered_across_restarts",),
    ),
    Mutant(
        name="peer-fork",
        disables="refusal of two records under one number of a peer's ledger",
        file=PEER_HEADS,
        old="    return bundle.ledger_seq == before.seq and not same\n",
        new="    return bundle.ledger_seq == before.seq and same is None\n",
        tests=(_PEERS + "test_two_records_under_one_number_are_a_fork",),
    ),
    Mutant(
        name="peer-quarantine",
        disables="the memory of a peer that was caught with a ledger that went back",
        file=PEER_HEADS,
        old="                    self._store.set_peer_heads({**seen, bundle.silo_id: caught})\n",
        new="",
        tests=(_PEERS + "test_a_peer_that_was_caught_stays_caught_until_it_enrols_anew",),
    ),
    Mutant(
        name="peer-framed-across-runs",
        disables="the need of one run's order, without which an honest peer can be framed",
        file=PEER_HEADS,
        old="    return identity.run_id == before.identity.run_id and newer and lower\n",
        new="    return newer is not None and lower\n",
        tests=(_PEERS + "test_the_order_in_which_two_runs_are_shown_frames_nobody",),
    ),
    Mutant(
        name="peer-back-in-one-run-no-proof",
        disables="the proof that a newer identity of one run with a lower head is",
        file=PEER_HEADS,
        old="        or _is_back(bundle, before, identity)\n",
        new="",
        tests=(_PEERS + "test_a_newer_identity_of_one_run_with_a_lower_head_is_a_proof",),
    ),
    Mutant(
        name="peer-quarantine-not-consulted",
        disables="the refusal of a peer that was caught before",
        file=PEER_HEADS,
        old="    if before.rolled_back:\n",
        new="    if before.seq < 0:\n",
        tests=(_PEERS + "test_a_peer_that_was_caught_stays_caught_until_it_enrols_anew",),
    ),
    Mutant(
        name="echo-not-required",
        disables="the comparison of the ledger with the head that the coordinator echoes",
        file=GATE,
        old="        require_echoed(ledger, echo, silo_id=identity.silo_id, "
        "signing_key=identity.signing_key)\n",
        new="",
        tests=(_STEPS + "test_a_rolled_back_ledger_works_on_nothing_says_so_and_asks_again",),
    ),
    Mutant(
        name="bundle-head-before-joined",
        disables="the record of this very attempt in the head that the bundle carries",
        file=SESSION,
        old="protocol.begin(replace(setup, ledger_head=_head_of(ledger)))",
        new="protocol.begin(replace(setup, silo_id=silo_id))",
        tests=(
            _SESSION_LEDGER + "test_the_bundle_carries_the_ledgers_head_with_its_own_mark_in_it",
        ),
    ),
)
