"""Market: the shop with a larger catalogue, several text fields, and a fixed set of wishes.

Pages, actions, reward and success are the shop's (``shop.py``). What is searched are five fields of
2,000 products, and what is wished for is one of 3,328 wishes (``goods.py``); a task's number says
which, so a split has 512 or 2,304 different tasks and its task ids go through them again and again.
What answers a search are stages (``evolution/envs/variants``), so every silo can have a market of
its own: with other products, fields, weights, lookalikes or another order of the results. Wishes
are the same in all of them.

Pages show titles, as the shop's do, and no other field. A line with the description on a product's
page was tried: the small base model, which solves 21 % of 256 tasks without it at temperature 1,
solves 8 % with it before the colours and 1 % with it at the end, for it never met such a page.

Covered: the market's own goods, in any stages made from them. Not covered: products of others.
"""

from __future__ import annotations

from evolution.envs.builtin.shop.goods import ABOUT, Aisles, market_goals, market_stages
from evolution.envs.builtin.shop.products import CATEGORIES
from evolution.envs.builtin.shop.shop import Shop
from evolution.envs.environment import Info
from evolution.envs.tasks import Split, label_index, task_range
from evolution.envs.variants.stages import Stages

__all__ = ["Market"]


class Market(Shop):
    """See the module."""

    name = "market"
    family = "market"
    vocabulary = Shop.vocabulary | set(ABOUT.values())

    def __init__(self, stages: Stages | None = None) -> None:
        self._aisles = Aisles(market_stages() if stages is None else stages)
        super().__init__(catalogue=self._aisles)

    @property
    def stages(self) -> Stages:
        """What answers a search."""
        return self._aisles.stages

    def use(self, stages: Stages) -> None:
        """Let other stages answer, from the next reset on."""
        self._aisles = Aisles(stages)
        self._catalogue = self._aisles
        self._over = True

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        category = CATEGORIES[label_index(task_id, labels=len(CATEGORIES))]
        labels = len(CATEGORIES)
        split = next(s for s in Split if task_id in task_range(s, labels=labels))
        place = (task_id - task_range(split, labels=labels).start) // labels
        goals = market_goals(split, category)
        self._aisles.begin(task_id)
        return self._begin(goals[place % len(goals)])
