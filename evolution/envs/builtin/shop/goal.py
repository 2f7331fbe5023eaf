"""What the shop's customer wants, and how well a purchase answers it.

The reward is WebShop's (Yao et al., "WebShop", NeurIPS 2022, arXiv 2207.01206, §3.1): with the
attributes, options and price bound of the wish, and ``r_type`` for the kind of product ::

    r = r_type · (|attributes matched| + |options matched| + [price ≤ bound])
               / (|attributes wished| + |options wished| + 1)

WebShop compares titles to find ``r_type``; this catalogue knows its categories, so it is 1 for the
same category, ½ for another of the same department and 0 otherwise.

A goal is drawn so that a careful customer can meet it: one who searches for all the words of the
goal, goes through the results in order, opens what fits by its title and price, goes back if it
does not come in the colour and size, and buys otherwise, needs at most ``CAREFUL_STEPS`` actions.

Covered: goals about one product. Not covered: baskets, wishes in sentences.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from evolution.envs.builtin.shop.products import Product, Shelves, department
from evolution.errors import EnvironmentFailureError

__all__ = [
    "CAREFUL_STEPS",
    "PAGE",
    "Goal",
    "NoGoalError",
    "careful_steps",
    "draw_goal",
    "score",
    "wish_for",
]

PAGE = 4  # products on a results page
CAREFUL_STEPS = 8

_SEARCH, _OPEN, _BACK, _PICK, _BUY = 1, 1, 1, 2, 1
_HIGHEST_PRICE = 9


class NoGoalError(EnvironmentFailureError):
    """The catalogue holds nothing of the category that a careful customer could find."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A wish."""

    category: str
    """What kind of product."""
    attributes: tuple[str, ...]
    """What it must be like."""
    colour: str
    """The colour to pick."""
    size: str
    """The size to pick."""
    budget: int
    """The highest price."""

    @property
    def words(self) -> tuple[str, ...]:
        """What a careful customer searches for."""
        return (*self.attributes, self.category)

    def fits_title(self, product: Product) -> bool:
        """Whether a product is right by what a results page shows: title and price."""
        return (
            product.category == self.category
            and set(self.attributes) <= set(product.attributes)
            and product.price <= self.budget
        )

    def fits(self, product: Product) -> bool:
        """Whether buying a product in the right options gives the full reward."""
        return self.fits_title(product) and product.offers(self.colour, self.size)


def score(goal: Goal, product: Product, picked: Collection[str]) -> float:
    """The reward of a purchase; see the module.

    From 0 to 1, and exactly 1 if and only if everything matches.
    """
    if product.category == goal.category:
        r_type = 1.0
    elif department(product.category) == department(goal.category):
        r_type = 0.5
    else:
        r_type = 0.0
    attributes = len(set(goal.attributes) & set(product.attributes))
    options = len({goal.colour, goal.size} & set(picked))
    matched = attributes + options + (product.price <= goal.budget)
    return r_type * matched / (len(goal.attributes) + 2 + 1)


def draw_goal(catalogue: Shelves, category: str, *, rng: np.random.Generator) -> Goal:
    """Draw a wish that some product of a category fulfils.

    Raises:
        NoGoalError: No product of that category can be found in ``CAREFUL_STEPS`` actions.
    """
    candidates = [p for p in catalogue.products if p.category == category]
    for number in rng.permutation(len(candidates)):
        goal = wish_for(candidates[number], rng=rng)
        if careful_steps(catalogue, goal) <= CAREFUL_STEPS:
            return goal
    raise NoGoalError(f"no {category} in the catalogue can be found in {CAREFUL_STEPS} actions")


def wish_for(wanted: Product, *, rng: np.random.Generator) -> Goal:
    """Draw a wish that a product fulfils."""
    return Goal(
        category=wanted.category,
        attributes=tuple(str(word) for word in rng.permutation(wanted.attributes)),
        colour=str(rng.choice(wanted.colours)),
        size=str(rng.choice(wanted.sizes)),
        budget=min(_HIGHEST_PRICE, wanted.price + int(rng.integers(0, 2))),
    )


def careful_steps(catalogue: Shelves, goal: Goal) -> int:
    """How many actions a careful customer needs; one more than allowed if it is more than that."""
    steps = _SEARCH
    for place, number in enumerate(catalogue.search(goal.words)):
        if place and place % PAGE == 0:
            steps += 1  # next
        product = catalogue.products[number]
        if goal.fits(product):
            return steps + _OPEN + _PICK + _BUY
        if goal.fits_title(product):
            steps += _OPEN + _BACK
        if steps > CAREFUL_STEPS:
            break
    return CAREFUL_STEPS + 1
