"""The shop's catalogue: 1,000 products made from one fixed seed.

Four departments with two categories and six attributes each. A product has a category, two or three
of its department's attributes, a price from 1 to 9, and offers some colours and some sizes. Its
title is its attributes in an order of its own, then its category. Categories are dealt out to the
products in turn, so each has 125.

The categories are listed so that those of one department are four apart: of four shards, each is
one department, and words of one shard's attributes never occur in another's.

Covered: one catalogue, the same at every silo; a catalogue of someone's own products can be made
from ``Product`` objects. Not covered: descriptions, reviews, stock that runs out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from evolution.envs.builtin.shop.ranking import Bm25

__all__ = [
    "CATEGORIES",
    "COLOURS",
    "DEPARTMENTS",
    "SIZES",
    "Catalogue",
    "Product",
    "Shelves",
    "department",
    "draw_product",
    "standard_catalogue",
]

# Department → its categories and its attributes.
DEPARTMENTS: MappingProxyType[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "clothes": (("coat", "boots"), ("warm", "soft", "lined", "striped", "slim", "waterproof")),
        "furniture": (
            ("chair", "shelf"),
            ("wooden", "folding", "round", "narrow", "tall", "padded"),
        ),
        "kitchen": (("kettle", "pan"), ("steel", "ceramic", "deep", "heavy", "quick", "polished")),
        "audio": (
            ("speaker", "radio"),
            ("wireless", "loud", "compact", "stereo", "digital", "portable"),
        ),
    }
)
CATEGORIES = tuple(
    categories[index] for index in range(2) for categories, _ in DEPARTMENTS.values()
)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
SIZES = ("small", "medium", "large")

_PRODUCTS = 1_000
_SEED = 0x53484F50  # "SHOP"


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One thing on sale."""

    category: str
    """One of ``CATEGORIES``."""
    attributes: tuple[str, ...]
    """Two or three of its department's, in the order of the title."""
    colours: tuple[str, ...]
    """The colours it can be had in."""
    sizes: tuple[str, ...]
    """The sizes it can be had in."""
    price: int
    """From 1 to 9."""

    @property
    def title(self) -> tuple[str, ...]:
        """The words that the search looks at and a results page shows."""
        return (*self.attributes, self.category)

    def offers(self, colour: str, size: str) -> bool:
        """Whether it can be had in a colour and a size."""
        return colour in self.colours and size in self.sizes


class Shelves(Protocol):
    """What a shop sells, and how it is found."""

    @property
    def products(self) -> Sequence[Product]:
        """By number."""

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """Numbers of products that answer a query, in the order in which they are shown."""


class Catalogue:
    """Products and the search over their titles."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = tuple(products)
        self._index = Bm25([product.title for product in self.products])

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """Numbers of products with any of the words in their titles, best first."""
        return self._index.rank(words)


def department(category: str) -> str:
    """The department that sells a category: a key of ``DEPARTMENTS``."""
    return next(name for name, (categories, _) in DEPARTMENTS.items() if category in categories)


@functools.cache
def standard_catalogue() -> Catalogue:
    """The catalogue every silo has, the same object on every call."""
    rng = np.random.default_rng(_SEED)
    return Catalogue(
        [draw_product(CATEGORIES[n % len(CATEGORIES)], rng=rng) for n in range(_PRODUCTS)]
    )


def draw_product(category: str, *, rng: np.random.Generator) -> Product:
    """Draw a product of a category."""
    _, attributes = DEPARTMENTS[department(category)]
    return Product(
        category=category,
        attributes=_some(attributes, int(rng.integers(2, 4)), rng),
        colours=_some(COLOURS, int(rng.integers(3, 6)), rng),
        sizes=_some(SIZES, int(rng.integers(2, 4)), rng),
        price=int(rng.integers(1, 10)),
    )


def _some(values: tuple[str, ...], count: int, rng: np.random.Generator) -> tuple[str, ...]:
    return tuple(str(value) for value in rng.choice(values, size=count, replace=False))
