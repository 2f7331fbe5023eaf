"""The server optimiser: how a mean becomes a move, before the server step η_s scales it.

    fedavg                                 move = mean of deltas       no state
    sgd                                    move = mean of gradients    no state
    adam                                   ``federation.aggregate.adam``, moments of one round
    fedavgm fedadagrad fedyogi fedadam     ``federation.aggregate.delta_moments``, of the run

Sums of gradients exist in mode record_distributed; in the other modes deltas are summed. What the
silos sum are deltas or negative gradients, directions of descent, so a move is added. It is
post-processing of noisy sums and costs no privacy; the coordinator and every silo compute it from
the published sums alone.

Invariants:
    1. The same bits everywhere: float64, element by element, one ufunc for each operation of
       IEEE 754, no reduction, no library function of a real power.
    2. A state begins with zeros, at step 0 of every round, or at the first release of the run if
       ``crosses_rounds``. So the sums since then are all that ``federation.chain.replay`` needs.
       State that crosses rounds excludes whatever changes the coordinates in between: the gauge,
       and methods whose trained factor alternates (``federation.aggregate.registry``).
    3. Releases come in order. Asking again for the newest one repeats it from the state before
       it, so that a check or a write that failed can be made again; any other order is an error
       that says to replay.
    4. A skipped release moves nothing and changes no moment. A rollback moves nothing and begins
       the state again with zeros: moments of moves that were taken back would repeat them.

Covered: the above; moves are read slice by slice. Not covered: the server step and which tensors
(``federation.aggregate.aggregator``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from federation.aggregate.server_step import Mean


class Optimiser(ABC):
    """Turns the means of releases into moves."""

    name: ClassVar[str]
    crosses_rounds: ClassVar[bool] = False
    """Whether a round's state continues that of the round before."""

    @abstractmethod
    def move(
        self, mean: Mean, *, round_number: int, step: int, noise_variance: float = 0.0
    ) -> Mean:
        """The move of a release from its mean; it may be read any number of times.

        The variance is of one coordinate of the mean, as far as everyone knows it
        (``federation.chain.sums.least_noise_variance``).

        Raises:
            OptimiserStateError: If this release does not follow the newest one.
            UpdateError: If the mean is not finite.
        """

    @abstractmethod
    def skip(self, *, round_number: int, step: int) -> None:
        """Take notice of a release that had no sum.

        Raises:
            OptimiserStateError: If it does not follow the newest one.
        """

    @abstractmethod
    def restart(self, *, round_number: int, step: int) -> None:
        """Take notice of a rollback, from any state: what follows it begins with zeros."""

    @abstractmethod
    def is_ready_for(self, round_number: int, step: int) -> bool:
        """Whether ``move`` can take this release without a replay."""


class Plain(Optimiser):
    """No state: the mean itself."""

    def move(
        self, mean: Mean, *, round_number: int, step: int, noise_variance: float = 0.0
    ) -> Mean:
        """The mean."""
        del round_number, step, noise_variance
        return mean

    def skip(self, *, round_number: int, step: int) -> None:
        """Nothing to notice."""

    def restart(self, *, round_number: int, step: int) -> None:
        """Nothing to forget."""

    def is_ready_for(self, round_number: int, step: int) -> bool:
        """Always."""
        del round_number, step
        return True


class FedAvg(Plain):
    """On mean deltas."""

    name: ClassVar[str] = "fedavg"


class Sgd(Plain):
    """On mean gradients."""

    name: ClassVar[str] = "sgd"
