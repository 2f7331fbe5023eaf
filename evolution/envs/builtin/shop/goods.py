"""The market's content: 2,000 products with five text fields each, and 3,328 wishes.

Products are drawn as the shop's are (``products.py``), from a seed of their own. Their texts are of
words that the small base model knows, and each field says something else, so that it matters which
of them a search sees:

- **name**: one attribute, and the category;
- **title**: all attributes and the category; what a results page shows;
- **description**: the category, and what attributes are about (``ABOUT``: warm is about wool), and
  now and then an attribute itself, or what another of the department's is about;
- **features**: most attributes, what some are about, and the colours;
- **bullet points**: some attributes, the colours and the sizes, the category half of the time.

Of each category's 250 products the first 104 that have four wishes which a careful customer can
meet are targets, and eight others are held out: 832 targets, 64 held out and 1,104 distractors, in
nearly the shares of FedAgent's 415, 30 and 555. Of every thirteen targets of a category two belong
to the split ``pretrain``, two to ``held_out`` and nine to ``train``, so no target of one split is
asked for in another: 512, 512 and 2,304 wishes.

Covered: one content, the same at every silo. Not covered: somebody's own products (``webshop.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from evolution.envs.builtin.shop.goal import CAREFUL_STEPS, Goal, careful_steps, wish_for
from evolution.envs.builtin.shop.products import (
    CATEGORIES,
    DEPARTMENTS,
    Product,
    department,
    draw_product,
)
from evolution.envs.tasks import Split
from evolution.envs.variants.content import FIELDS, Content, Document, Wish
from evolution.envs.variants.stages import Encoding, Search, Stages

__all__ = ["ABOUT", "Aisles", "market_goals", "market_stages"]

ABOUT: MappingProxyType[str, str] = MappingProxyType(
    {
        "warm": "wool",
        "soft": "cloth",
        "lined": "thread",
        "striped": "dye",
        "slim": "rope",
        "waterproof": "flag",
        "wooden": "plank",
        "folding": "ladder",
        "round": "table",
        "narrow": "pole",
        "tall": "wall",
        "padded": "log",
        "steel": "forge",
        "ceramic": "brick",
        "deep": "oven",
        "heavy": "stone",
        "quick": "egg",
        "polished": "glass",
        "wireless": "key",
        "loud": "door",
        "compact": "box",
        "stereo": "ball",
        "digital": "word",
        "portable": "lamp",
    }
)
"""Attribute → the word that descriptions have for it."""
_PRODUCTS: Final = 2_000
_SEED: Final = 0x4D41524B  # "MARK"
_TARGETS: Final = 104
_WISHES: Final = 4
_HELD_OUT: Final = 8
_CANDIDATES: Final = 16
_TURN: Final = 13
_SPLIT_OF_TURN: Final = {0: Split.PRETRAIN, 1: Split.PRETRAIN, 2: Split.HELD_OUT, 3: Split.HELD_OUT}
_HIGHEST_PRICE: Final = 9


class Aisles:
    """A content's products, and the search for them: what the shop's pages are made from."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.products = _products_of(stages.content)
        self._search = Search(stages)

    def begin(self, task_id: int) -> None:
        """Start an episode."""
        self._search.begin(task_id)

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """See ``Shelves``."""
        return self._search.find(words)


def market_stages() -> Stages:
    """What answers a search in the market as it is; the same object on every call."""
    return _made()[0]


def market_goals(split: Split, category: str) -> tuple[Goal, ...]:
    """The wishes of a split for a category; neighbours are for different products."""
    return _made()[1][split, category]


@functools.cache
def _made() -> tuple[Stages, Mapping[tuple[Split, str], tuple[Goal, ...]]]:
    rng = np.random.default_rng(_SEED)
    products = [draw_product(CATEGORIES[n % len(CATEGORIES)], rng=rng) for n in range(_PRODUCTS)]
    documents = tuple(_document(n, product, rng) for n, product in enumerate(products))
    aisles = Aisles(_stages(Content(documents=documents, wishes=())))
    goals: dict[tuple[Split, str], tuple[Goal, ...]] = {}
    wishes: list[Wish] = []
    held_out: set[str] = set()
    for first, category in enumerate(CATEGORIES):
        numbers = range(first, _PRODUCTS, len(CATEGORIES))
        wanted: dict[int, list[Goal]] = {}
        for number in numbers:
            if len(wanted) == _TARGETS:
                break
            found = _goals_of(products[number], aisles, rng)
            if len(found) == _WISHES:
                wanted[number] = found
        spare = [documents[number].key for number in numbers if number not in wanted]
        held_out.update(spare[:_HELD_OUT])
        for number, found in wanted.items():
            wishes += [_wish(documents[number].key, goal) for goal in found]
        turns = list(wanted.values())
        for split in Split:
            own = [
                found
                for turn, found in enumerate(turns)
                if _SPLIT_OF_TURN.get(turn % _TURN, Split.TRAIN) is split
            ]
            goals[split, category] = tuple(found[k] for k in range(_WISHES) for found in own)
    content = Content(
        documents=documents,
        wishes=tuple(wishes),
        held_out=frozenset(held_out),
        synonyms=ABOUT,
        prices=tuple(float(price) for price in range(1, _HIGHEST_PRICE + 1)),
    )
    return _stages(content), goals


def _stages(content: Content) -> Stages:
    return Stages(content=content, encoding=Encoding(fields=FIELDS))


def _goals_of(product: Product, aisles: Aisles, rng: np.random.Generator) -> list[Goal]:
    """Up to ``_WISHES`` different wishes for a product that a careful customer can meet."""
    found: dict[Goal, None] = {}
    for _ in range(_CANDIDATES):
        goal = wish_for(product, rng=rng)
        if careful_steps(aisles, goal) <= CAREFUL_STEPS:
            found[goal] = None
        if len(found) == _WISHES:
            break
    return list(found)


def _wish(key: str, goal: Goal) -> Wish:
    return Wish(
        target=key,
        words=goal.words,
        options={"colour": goal.colour, "size": goal.size},
        budget=float(goal.budget),
    )


def _document(number: int, product: Product, rng: np.random.Generator) -> Document:
    attributes, category = product.attributes, product.category
    about = [ABOUT[word] for word in attributes]
    others = [ABOUT[word] for word in DEPARTMENTS[department(category)][1]]
    text = {
        "name": (str(rng.choice(attributes)), category),
        "title": product.title,
        "description": (
            category,
            *_some(about, 0.8, rng),
            *_some(attributes, 0.3, rng),
            str(rng.choice(others)),
        ),
        "features": (
            *_some(attributes, 0.7, rng),
            *_some(about, 0.4, rng),
            *product.colours,
        ),
        "bullet_points": (
            *_some(attributes, 0.5, rng),
            *product.colours,
            *product.sizes,
            *_some([category], 0.5, rng),
        ),
    }
    return Document(
        key=f"M{number:04d}",
        text=text,
        options={"colour": product.colours, "size": product.sizes},
        price=float(product.price),
        traits={"category": (category,), "attributes": attributes},
    )


def _some(words: Sequence[str], share: float, rng: np.random.Generator) -> list[str]:
    """Each word with this probability."""
    return [word for word in words if rng.random() < share]


@functools.lru_cache(maxsize=256)
def _products_of(content: Content) -> tuple[Product, ...]:
    return tuple(_product_of(document) for document in content.documents)


def _product_of(document: Document) -> Product:
    attributes = document.traits["attributes"]
    # What a results page shows is the title, in its own order.
    shown = document.text["title"]
    return Product(
        category=document.traits["category"][0],
        attributes=tuple(sorted(attributes, key=lambda word: _place(word, shown))),
        colours=document.options["colour"],
        sizes=document.options["size"],
        price=int(document.price or 0),
    )


def _place(word: str, shown: tuple[str, ...]) -> int:
    """Where a word stands in a title; a synonym stands where its word would."""
    return next((n for n, seen in enumerate(shown) if seen in (word, ABOUT.get(word))), len(shown))
