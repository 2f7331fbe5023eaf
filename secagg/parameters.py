"""How many silos may collude, drop, or must remain.

c, the colluding silos assumed, is at least one: with c = 0 and one drop of three, a survivor could
subtract its own vector from the published sum and hold the other's. t follows from n and c and is
never configured. 2t > n + c means that two sets of t silos share more than c, hence an honest one,
so a coordinator cannot get two different survivor sets signed.
"""

from dataclasses import dataclass
from typing import Final

from secagg.errors import ParameterError

MIN_SILOS: Final = 3
MAX_SILOS: Final = 200


def threshold(n: int, c: int) -> int:
    """Return t = max(⌊(n+c)/2⌋ + 1, c + 2), of n = 3 to 200 silos of which c ≥ 1 may collude.

    So many silos must answer for a sum to be released. The first term is the least t with 2t > n +
    c (Bonawitz et al. 2017, security against an active server); the second keeps two honest silos
    in every released sum.

    Raises:
        ParameterError: n or c out of range, or t would exceed n.
    """
    if not MIN_SILOS <= n <= MAX_SILOS:
        raise ParameterError(f"a cohort has {MIN_SILOS} to {MAX_SILOS} silos, not {n}")
    if c < 1:
        raise ParameterError("at least one colluding silo is always assumed")
    t = max((n + c) // 2 + 1, c + 2)
    if t > n:
        raise ParameterError(f"{n} silos cannot withstand {c} colluding ones")
    return t


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """The sizes of one aggregation."""

    # Cohort size.
    n: int
    # Colluding silos assumed.
    c: int
    # Least number of survivors a silo accepts.
    n_min: int

    def __post_init__(self) -> None:
        threshold(self.n, self.c)
        if not 1 <= self.n_min <= self.n:
            raise ParameterError(f"n_min = {self.n_min} is not in [1, {self.n}]")

    @property
    def t(self) -> int:
        """Shares needed, and signatures needed."""
        return threshold(self.n, self.c)

    @property
    def least_survivors(self) -> int:
        """The fewest silos any released sum holds: max(t, n_min)."""
        return max(self.t, self.n_min)

    @property
    def drops(self) -> int:
        """How many silos may drop at any step."""
        return self.n - self.least_survivors
