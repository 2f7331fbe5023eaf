"""A journal that forgets when the test ends, and reads back what the real one would."""

from server.history import History
from server.message_codec import decode, encode
from server.phase import STEPS


class MemoryJournal:
    """Holds rows, so that what is read back went through its stored form."""

    def __init__(self):
        self.rows = []
        self.folds = []
        self.phases_closed = 0

    def accepted(self, message):
        row = encode(message)
        if row not in self.rows:
            assert (row.phase, row.silo_id) not in {(r.phase, r.silo_id) for r in self.rows}
            self.rows.append(row)

    def folded(self, silo_id, generation):
        assert generation == len(self.folds) + 1
        self.folds.append(silo_id)

    def closed(self, phase):
        assert STEPS.index(phase) == self.phases_closed
        self.phases_closed += 1

    def history(self):
        return History(
            messages=tuple(decode(row) for row in self.rows),
            folded=tuple(self.folds),
            phases_closed=self.phases_closed,
        )
