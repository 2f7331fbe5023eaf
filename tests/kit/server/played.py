"""One attempt played with real silos' protocol states."""

import numpy as np

from secagg import client
from server.attempt.accumulator import Accumulator
from server.attempt.attempt import Attempt
from server.figures import Phase
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server.memory_journal import MemoryJournal
from tests.kit.simulation.secagg_cohort import FAMILIES, Cohort

NAMES = silo_names(5)


class Played:
    """An attempt and its silos; each step is played for everyone who is still there."""

    def __init__(self, directory, n=5, **identity):
        self.cohort = Cohort(n, **identity)
        self.states = self.cohort.states
        self.words = self.cohort.descriptor.descriptor.words
        self.directory = directory / "sum"
        self.journal = MemoryJournal()
        self.journal.hybrid = self.cohort.hybrid
        self.attempt = self.attempt_on(Accumulator(self.directory, length=self.words))
        self.identity = self.attempt.identity
        self.masked = {}
        self.leaves = {}
        """Of the uploads' digest trees; empty in suite v1."""

    def attempt_on(self, accumulator):
        return Attempt(
            descriptor=self.cohort.descriptor,
            roster=self.cohort.roster,
            families=dict.fromkeys(NAMES, FAMILIES),
            accumulator=accumulator,
            journal=self.journal,
        )

    def restart(self):
        """Another process: it has the journal and the directory, and nothing else."""
        before, history = self.attempt, self.journal.history()
        self.attempt = self.attempt_on(
            Accumulator.reopen(self.directory, length=self.words, generation=len(history.folded))
        )
        self.attempt.replay(history)
        return before

    def message(self, name):
        return self.attempt.instruction(name).message

    def act(self, name):
        """One silo answers what it is told."""
        attempt, phase = self.attempt, self.attempt.phase
        if phase is Phase.ADVERTISE_KEYS:
            self.states[name], bundle = client.begin(self.cohort.setup(name))
            attempt.receive_bundle(self.identity, bundle)
            return
        self.states[name], answer = self.states[name].handle(self.message(name))
        if phase is Phase.SHARE_KEYS:
            attempt.receive_boxes(self.identity, answer)
        elif phase is Phase.MASKED_INPUT:
            vector = (self.cohort.plain(name) % 2**32).astype("<u4")
            self.mask(name, vector)
            self.send(name)
        elif phase is Phase.CONSISTENCY_CHECK:
            attempt.receive_consistency(self.identity, answer)
        else:
            attempt.receive_unmasking(self.identity, answer)

    def mask(self, name, vector):
        state, header = self.states[name].mask(vector, self.cohort.debit(name))
        self.states[name], self.leaves[name] = state, state.leaves
        self.masked[name] = (header, vector.tobytes())

    def send(self, name):
        header, content = self.masked[name]
        upload = self.attempt.open_upload(self.identity, header, self.leaves.get(name, b""))
        upload.append(upload.received_bytes, content[upload.received_bytes :])
        self.attempt.fold_upload(self.identity, name)

    def step(self, *lost):
        for name in sorted(self.attempt.waiting_for):
            if name not in lost:
                self.act(name)

    def until(self, phase):
        while self.attempt.phase is not phase:
            self.step()
            self.attempt.close_phase()
        return self

    def masking(self):
        """The first silo has masked its vector and sent nothing."""
        self.until(Phase.MASKED_INPUT)
        name = NAMES[0]
        self.states[name], _ = self.states[name].handle(self.message(name))
        self.mask(name, (self.cohort.plain(name) % 2**32).astype("<u4"))
        return self

    def total(self):
        return self.attempt.unmask().view(np.int32).astype(np.int64)
