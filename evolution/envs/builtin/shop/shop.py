"""Shop: search a catalogue, open a product, pick its options, buy.

The shape of WebShop (Yao et al., NeurIPS 2022, arXiv 2207.01206) over a catalogue of our own
(``products.py``): a search box (BM25 over the titles, ``ranking.py``), results pages of
four, a page per product, and WebShop's reward (``goal.py``). The agent buys once; the episode
is a success if the reward is 1.

Built for small models: every observation repeats the goal, a results page shows what the titles
and prices are, a product's page what it comes in and what is picked, and products that were opened
before are marked ``seen``. What a product comes in is on its own page only, so some must be opened
in vain.

Actions:

- ``search <words>``: up to eight words, from anywhere. Finding nothing changes nothing.
- ``next``: the following results page; ``open <1..4>``: a product of this page.
- ``pick <option>``: a colour or a size that the product comes in; the last one of a kind counts.
- ``buy``: the open product with what is picked; ends the episode.
- ``back``: from a product to the results, from the results to the empty search box.

The label of a task is the category wished for; see the catalogue for what shards mean.

Covered: any catalogue of the same vocabulary. Not covered: wishes in sentences, and descriptions.
"""

from __future__ import annotations

import numpy as np

from evolution.envs.builtin.shop.goal import PAGE, Goal, draw_goal, score
from evolution.envs.builtin.shop.products import (
    CATEGORIES,
    COLOURS,
    DEPARTMENTS,
    SIZES,
    Product,
    Shelves,
    department,
    standard_catalogue,
)
from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import task_rng
from evolution.errors import EpisodeStateError

__all__ = ["Shop"]

_NEVER = "not possible ."
_MAX_QUERY_WORDS = 8
_PLACES = tuple(str(place + 1) for place in range(PAGE))
_WORDS = (
    "buy the goal . actions : search open pick next back budget page item colour size picked seen "
    "none done not possible 1 2 3 4 5 6 7 8 9"
)
_MAX_PAGE = 9  # what the vocabulary can count


class Shop(ScriptedEnvironment):
    """See the module."""

    name = "shop"
    family = "shop"
    max_steps = 10
    labels = CATEGORIES
    vocabulary = (
        frozenset(_WORDS.split())
        | set(CATEGORIES)
        | set(COLOURS)
        | set(SIZES)
        | {word for _, attributes in DEPARTMENTS.values() for word in attributes}
    )

    def __init__(self, *, catalogue: Shelves | None = None) -> None:
        self._catalogue: Shelves = standard_catalogue() if catalogue is None else catalogue
        self._goal = Goal(category="", attributes=(), colour="", size="", budget=0)
        self._query: frozenset[str] = frozenset()
        self._found: tuple[int, ...] = ()
        self._page = 0
        self._item: Product | None = None
        self._picked: dict[str, str] = {}
        self._seen: set[int] = set()
        self._reward = 0.0
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "buy the goal . actions : search warm coat . open 1 . pick red . next . back . buy ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task.

        Raises:
            NoGoalError: The catalogue has nothing to wish for.
        """
        category = self.task_label(task_id)
        rng = task_rng(self.name, task_id)
        return self._begin(draw_goal(self._catalogue, category, rng=rng))

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one of the actions that the module lists.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over; reset first")
        self._step += 1
        words = action.split()
        valid = _readable(words)
        bought = words == ["buy"] and self._item is not None
        if bought and self._item is not None:
            self._reward = score(self._goal, self._item, self._picked.values())
            note = "done ."
        else:
            note = "" if self._apply(words) else _NEVER
        truncated = not bought and self._step >= self.max_steps
        self._over = bought or truncated
        info = {**self._info(), "valid": valid}
        return self._observe(note), self._reward, bought, truncated, info

    def success(self, info: Info) -> bool:
        """Whether the purchase answers the wish in every respect."""
        return bool(info["score"] == 1.0)

    def expert_action(self, rng: np.random.Generator) -> str:
        """The next action of a careful customer, who knows no more than what was shown."""
        del rng
        if self._item is not None:
            if not self._goal.fits(self._item):
                return "back"
            for option in (self._goal.colour, self._goal.size):
                if option not in self._picked.values():
                    return f"pick {option}"
            return "buy"
        for place, number in zip(_PLACES, self._shown(), strict=False):
            product = self._catalogue.products[number]
            # What a product comes in is known once it was opened.
            known_to_fail = number in self._seen and not self._goal.fits(product)
            if self._goal.fits_title(product) and not known_to_fail:
                return f"open {place}"
        if self._query == frozenset(self._goal.words) and self._has_next():
            return "next"
        return f"search {' '.join(self._goal.words)}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Any action that is possible here."""
        if self._item is not None:
            options = (*self._item.colours, *self._item.sizes)
            choices = [f"pick {rng.choice(options)}", "back", "buy"]
            return str(rng.choice(choices, p=(0.6, 0.3, 0.1)))
        shown = self._shown()
        if shown and rng.random() < 0.6:
            return f"open {rng.integers(1, len(shown) + 1)}"
        if self._has_next() and rng.random() < 0.5:
            return "next"
        category = str(rng.choice(CATEGORIES))
        words = [*DEPARTMENTS[department(category)][1], category]
        return f"search {' '.join(rng.choice(words, size=int(rng.integers(1, 4)), replace=False))}"

    def _begin(self, goal: Goal) -> tuple[str, Info]:
        """Start an episode with a wish."""
        self._goal = goal
        self._leave()
        self._seen = set()
        self._reward = 0.0
        self._step = 0
        self._over = False
        return self._observe(""), self._info()

    def _apply(self, words: list[str]) -> bool:
        """Play an action that does not buy; False if it is not possible."""
        if len(words) == 1:
            return self._turn(words[0])
        if len(words) == 2 and words[0] == "open":
            return self._open(words[1])
        if len(words) == 2 and words[0] == "pick":
            return self._pick(words[1])
        if words[:1] == ["search"] and len(words) <= 1 + _MAX_QUERY_WORDS:
            return self._search(words[1:])
        return False

    def _turn(self, word: str) -> bool:
        if word == "next" and self._has_next():
            self._page += 1
            return True
        if word == "back" and self._item is not None:
            self._close_item()
            return True
        if word == "back" and self._found:
            self._leave()
            return True
        return False

    def _open(self, place: str) -> bool:
        shown = self._shown()
        if place not in _PLACES[: len(shown)]:
            return False
        number = shown[_PLACES.index(place)]
        self._item = self._catalogue.products[number]
        self._seen.add(number)
        return True

    def _pick(self, option: str) -> bool:
        if self._item is None:
            return False
        if option in self._item.colours:
            self._picked["colour"] = option
        elif option in self._item.sizes:
            self._picked["size"] = option
        else:
            return False
        return True

    def _search(self, words: list[str]) -> bool:
        found = self._catalogue.search(words)
        if not found:
            return False
        self._leave()
        self._query = frozenset(words)
        self._found = found[: _MAX_PAGE * PAGE]
        return True

    def _leave(self) -> None:
        """Go back to the empty search box."""
        self._close_item()
        self._query = frozenset()
        self._found = ()
        self._page = 0

    def _close_item(self) -> None:
        self._item = None
        self._picked = {}

    def _shown(self) -> tuple[int, ...]:
        """The products on this results page; none while a product is open."""
        if self._item is not None:
            return ()
        return self._found[self._page * PAGE : (self._page + 1) * PAGE]

    def _has_next(self) -> bool:
        return self._item is None and (self._page + 1) * PAGE < len(self._found)

    def _observe(self, note: str) -> str:
        goal = self._goal
        parts = [note] if note else []
        parts.append(
            f"goal {' '.join(goal.words)} {goal.colour} {goal.size} budget {goal.budget} ."
        )
        if self._item is not None:
            picked = " ".join(self._picked.values()) or "none"
            parts += [
                f"item {' '.join(self._item.title)} {self._item.price} .",
                f"colour {' '.join(self._item.colours)} .",
                f"size {' '.join(self._item.sizes)} .",
                f"picked {picked} .",
            ]
            return " ".join(parts)
        parts.append(f"page {self._page + 1 if self._found else 'none'} .")
        for place, number in zip(_PLACES, self._shown(), strict=False):
            product = self._catalogue.products[number]
            seen = " seen" if number in self._seen else ""
            parts.append(f"{place} {' '.join(product.title)} {product.price}{seen} .")
        return " ".join(parts)

    def _info(self) -> Info:
        return {"score": self._reward, "step": self._step}


def _readable(words: list[str]) -> bool:
    """Whether an action is one of the module's, possible here or not."""
    match words:
        case ["next" | "back" | "buy"]:
            return True
        case ["open", place]:
            return place in _PLACES
        case ["pick", option]:
            return option in COLOURS or option in SIZES
        case ["search", _, *_]:
            return len(words) <= 1 + _MAX_QUERY_WORDS
    return False
