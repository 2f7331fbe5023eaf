"""A journal that forgets when the test ends, and reads back what the real one would."""

from server.attempt.journal import History, decode, encode
from server.figures import STEPS, Phase


class MemoryJournal:
    """Holds rows, so that what is read back went through its stored form."""

    def __init__(self):
        self.rows = []
        self.folds = []
        self.members = []
        self.hybrid = False
        """Whether the aggregation is of suite v2."""
        self.charges = {}
        """The newest header of each silo that names its charge, with the members of U2."""

    def charged(self, header, members):
        self.charges[header.silo_id] = (header, members)

    def accepted(self, message):
        row = encode(message)
        if row not in self.rows:
            assert (row.phase, row.silo_id) not in {(r.phase, r.silo_id) for r in self.rows}
            self.rows.append(row)

    def folded(self, silo_id, generation):
        assert generation == len(self.folds) + 1
        self.folds.append(silo_id)

    def closed(self, phase, members):
        assert STEPS.index(phase) == len(self.members)
        known = {row.silo_id for row in self.rows if row.phase == phase}
        assert set(members) == (set(self.folds) if phase is Phase.MASKED_INPUT else known)
        self.members.append(members)

    def history(self):
        return History(
            messages=tuple(decode(row, hybrid=self.hybrid) for row in self.rows),
            folded=tuple(self.folds),
            members=tuple(self.members),
        )
