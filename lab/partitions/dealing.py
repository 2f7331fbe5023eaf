"""Which tasks each silo gets of one pool, by four constructions of FedAgent (its appendix).

A pool is a row of tasks; a task is its place in it. ``types`` has the category of each, ``solved``
whether the reference, the base model, solves it.

::

    construction  a dial sets                     stays as it is
    preference    ω: which types a silo has       how many tasks, how hard
    coverage      ξ: how many tasks a silo has    which types, how hard
    hardness      ξ′: how many of its tasks are   how many tasks, which types
                  solved by the base
    joint         all three at once               –

ω near 1 makes silos unlike, ξ and ξ′ near 0 do.

Invariants:
    1. A silo has a task once, and as many as its quota says, whatever else happens.
    2. A category that runs out sends the excess to others, by the silo's own preference among
       those that have room; where that is 0 for all of them, by how many tasks they have.
    3. Tasks beside the solved ones are unsolved, all of them: the quota of solved tasks is exact.
       FedAgent's code fills from both (its realised dispersion at ξ′ = 1 was 0.086 where the
       quotas' was 0.149).
    4. What a silo draws comes from streams that are its own. What the silos draw between them
       (whose a copy of a task is, in coverage) comes from one that is nobody's.

Covered: exact counts, shared tasks, both kinds of clipping. Not covered: whether types and solved
tasks depend on each other, on which the second column of the table rests (``independence.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.partitions.errors import DialError, PoolError
from lab.partitions.quotas import Bounds, quotas, shares
from lab.partitions.streams import Streams

__all__ = ["Dealt", "coverage", "hardness", "joint", "preference"]

Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """Who has what."""

    silos: tuple[Places, ...]
    """The tasks of each silo, ascending."""
    moved: int = 0
    """Tasks that went to another category than was drawn, because that one had run out."""

    @property
    def sizes(self) -> Places:
        """How many tasks each silo has."""
        return np.array([len(places) for places in self.silos], dtype=np.int64)

    @property
    def union(self) -> int:
        """How many tasks of the pool any silo has."""
        return len(np.unique(np.concatenate(self.silos)))


def preference(
    types: Sequence[int] | Places, *, omega: float, length: int, silos: int, rng: Streams
) -> Dealt:
    """``length`` tasks for each silo, of types by its own draw from a Dirichlet distribution.

    Raises:
        DialError: ω is not between 0 and 1, or a number is too small.
        PoolError: The pool has fewer than ``length`` tasks.
    """
    names, which = np.unique(_row("types", types), return_inverse=True)
    categories = _Categories(which, len(names))
    _require_silos(silos)
    if length < 1:
        raise DialError(f"length: at least one task for each silo, got {length}")
    _require_tasks(categories.size, length, "tasks")
    dealt, moved = [], 0
    for silo in range(silos):
        own = rng.of("preference", silo)
        liking = _liking(categories.shares, omega, own)
        places, excess = categories.draw(length, liking, own)
        dealt.append(places)
        moved += excess
    return Dealt(silos=tuple(dealt), moved=moved)


def coverage(
    pool_size: int, *, xi: float, sizes: Bounds, silos: int, rng: Streams, r: float | None = None
) -> Dealt:
    """As many tasks for each silo as its Beta quota says, every task about equally often.

    ``r`` is how many copies of the pool are dealt; if not given, so many that silos have
    ``sizes.average`` tasks in the mean.

    Raises:
        DialError: The bounds, ξ or ``r`` do not fit each other.
        PoolError: The pool has fewer than ``sizes.most`` tasks.
    """
    _require_silos(silos)
    _require_tasks(pool_size, int(sizes.most), "tasks")
    total = round(silos * sizes.average) if r is None else int(r * pool_size)
    counts = quotas(sizes, xi, silos=silos, total=total, rng=rng)
    return Dealt(silos=_spread(pool_size, counts, rng.of("copies")))


def hardness(
    solved: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    xi_hard: float,
    length: int,
    solved_counts: Bounds,
    silos: int,
    rng: Streams,
) -> Dealt:
    """``length`` tasks for each silo, of which a Beta quota, within the bounds, are solved ones.

    Raises:
        DialError: The bounds and ξ′ do not fit each other, or a bound is above ``length``.
        PoolError: The pool has too few solved or too few unsolved tasks.
    """
    _require_silos(silos)
    least, most = int(solved_counts.least), int(solved_counts.most)
    if length < 1 or most > length:
        raise DialError(f"most: of {length} tasks of a silo no more can be solved, got {most}")
    easy, hard = _by_flag(solved)
    _require_tasks(len(easy), most, "solved tasks")
    _require_tasks(len(hard), length - least, "unsolved tasks")
    below = rng.below("solved")
    chosen = coverage(len(easy), xi=xi_hard, sizes=solved_counts, silos=silos, rng=below)
    dealt = []
    for silo, places in enumerate(chosen.silos):
        own = rng.of("unsolved", silo)
        fill = own.choice(hard, size=length - len(places), replace=False)
        dealt.append(np.sort(np.concatenate([easy[places], fill])))
    return Dealt(silos=tuple(dealt))


def joint(
    types: Sequence[int] | Places,
    solved: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    omega: float,
    xi: float,
    xi_hard: float,
    sizes: Bounds,
    solved_shares: Bounds,
    silos: int,
    rng: Streams,
) -> Dealt:
    """All three at once: sizes, then preferences, then shares of solved tasks, silo by silo.

    Raises:
        DialError: Bounds and dials do not fit each other.
        PoolError: The pool has too few solved or too few unsolved tasks.
    """
    kinds, flags = _row("types", types), np.asarray(solved, dtype=bool)
    _require_silos(silos)
    if flags.shape != kinds.shape:
        raise DialError(f"solved: one flag for each of {len(kinds)} tasks, got {len(flags)}")
    easy, hard = _by_flag(flags)
    total = round(silos * sizes.average)
    counts = quotas(sizes, xi, silos=silos, total=total, rng=rng.below("size"))
    easiness = shares(solved_shares, xi_hard, silos=silos, rng=rng.below("solved"))
    solved_counts = np.rint(easiness * counts).astype(np.int64)
    _require_tasks(len(easy), int(solved_counts.max()), "solved tasks")
    _require_tasks(len(hard), int((counts - solved_counts).max()), "unsolved tasks")
    names, which = np.unique(kinds, return_inverse=True)
    everything = _Categories(which, len(names))
    cells = [(places, _Categories(which[places], len(names))) for places in (easy, hard)]
    dealt, moved = [], 0
    for silo in range(silos):
        liking = _liking(everything.shares, omega, rng.of("preference", silo))
        parts = []
        for name, (places, cell), count in zip(
            ("easy", "hard"), cells, _split(counts[silo], solved_counts[silo]), strict=True
        ):
            if count:
                found, excess = cell.draw(count, liking, rng.of(name, silo))
                parts.append(places[found])
                moved += excess
        dealt.append(np.sort(np.concatenate(parts)))
    return Dealt(silos=tuple(dealt), moved=moved)


class _Categories:
    """Tasks by category, of which some may have none."""

    def __init__(self, which: Places, names: int) -> None:
        """Sort tasks by the number of their category, of so many."""
        self.size = len(which)
        self._counts = np.bincount(which, minlength=names)
        self.shares: Floats = self._counts / max(1, self.size)
        self._members = np.split(np.argsort(which, kind="stable"), np.cumsum(self._counts)[:-1])

    def draw(self, count: int, liking: Floats, own: np.random.Generator) -> tuple[Places, int]:
        """So many tasks, of categories by ``liking``; and how many went elsewhere than drawn."""
        amounts = own.multinomial(count, liking)
        moved = 0
        # Safety: each pass deals everything, or fills one more category, and there is room.
        while (excess := int(np.maximum(amounts - self._counts, 0).sum())) > 0:
            moved += excess
            amounts = np.minimum(amounts, self._counts)
            amounts += own.multinomial(excess, _normed(liking, self.shares, amounts < self._counts))
        drawn = [
            own.choice(members, size=int(amount), replace=False)
            for members, amount in zip(self._members, amounts, strict=True)
            if amount
        ]
        return np.sort(np.concatenate(drawn)), moved


def _normed(weights: Floats, otherwise: Floats, room: npt.NDArray[np.bool_]) -> Floats:
    """The weights of what has room, as probabilities; where they are all 0, the other weights."""
    kept = np.where(room, weights, 0.0)
    if not kept.sum() > 0:
        kept = np.where(room, otherwise, 0.0)
    return np.asarray(kept / kept.sum(), dtype=np.float64)


def _liking(shares_of: Floats, omega: float, own: np.random.Generator) -> Floats:
    """A draw from Dirichlet(p0·(1−ω)/ω): p0 itself for small ω, one single category near 1."""
    if not 1e-6 <= omega <= 1 - 1e-6:  # nearer to the ends floats have no draws
        raise DialError(f"omega: between 0 and 1, at least 1e-6 from both, got {omega:g}")
    return own.dirichlet(shares_of * (1 - omega) / omega)


def _spread(pool_size: int, sizes: Places, nobodys: np.random.Generator) -> tuple[Places, ...]:
    """Copies of tasks for silos of these sizes, each task ⌊r⌋ or ⌈r⌉ times, to distinct silos.

    For one task after the other, silos are drawn without replacement by what they still have to
    get. A silo that has to get every task that is left is among them, without which the last tasks
    could find too few silos; with it they always find enough, because copies per task differ by
    one at most (Gale–Ryser).
    """
    total = int(sizes.sum())
    each, more = divmod(total, pool_size)
    copies = np.full(pool_size, each, dtype=np.int64)
    copies[nobodys.choice(pool_size, size=more, replace=False)] += 1
    items = nobodys.permutation(np.flatnonzero(copies))
    if each == 0:
        # A copy at most: drawing by what is left is drawing all places of silos in any order.
        owners = nobodys.permutation(np.repeat(np.arange(len(sizes)), sizes))
        return _collected(items, owners, len(sizes))
    left = sizes.astype(np.float64)
    owners = np.empty(total, dtype=np.int64)
    filled = 0
    with np.errstate(divide="ignore"):
        for done, item in enumerate(items):
            # The first of independent clocks with these rates: proportional, without replacement.
            clocks = nobodys.standard_exponential(len(left)) / left
            clocks[left == pool_size - done] = -1.0
            chosen = np.argpartition(clocks, copies[item] - 1)[: copies[item]]
            left[chosen] -= 1
            owners[filled : filled + copies[item]] = chosen
            filled += copies[item]
    return _collected(np.repeat(items, copies[items]), owners, len(sizes))


def _collected(items: Places, owners: Places, silos: int) -> tuple[Places, ...]:
    """The items of each owner, ascending."""
    order = np.lexsort((items, owners))
    ends = np.cumsum(np.bincount(owners, minlength=silos))[:-1]
    return tuple(np.split(items[order], ends))


def _split(count: int, of_these: int) -> tuple[int, int]:
    return int(of_these), int(count - of_these)


def _by_flag(solved: Sequence[bool] | npt.NDArray[np.bool_]) -> tuple[Places, Places]:
    """Places of solved and of unsolved tasks."""
    flags = np.asarray(solved)
    if flags.ndim != 1 or flags.dtype != np.bool_:
        raise DialError("solved: a row of true and false, one for each task of the pool")
    return np.flatnonzero(flags), np.flatnonzero(~flags)


def _row(name: str, values: Sequence[int] | Places) -> Places:
    row = np.asarray(values)
    if row.ndim != 1 or not len(row) or not np.issubdtype(row.dtype, np.integer):
        raise DialError(f"{name}: a row of whole numbers, one for each task of the pool")
    return row.astype(np.int64)


def _require_silos(silos: int) -> None:
    if silos < 1:
        raise DialError(f"silos: at least 1, got {silos}")


def _require_tasks(there: int, wanted: int, what: str) -> None:
    if there < wanted:
        raise PoolError(
            f"a silo may get {wanted} {what} and the pool has {there}: deal fewer to a silo, or "
            "take a larger pool"
        )
