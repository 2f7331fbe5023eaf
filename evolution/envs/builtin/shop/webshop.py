"""WebShop's own product files, as a content whose search can be varied.

The files are those of the WebShop repository (princeton-nlp/WebShop, its ``setup.sh`` fetches
them); they are not shipped here, for their licence is not stated::

    items_shuffle.json     [ { "asin", "name", "category", "query", "product_category",
                               "full_description", "small_description": text or [text, …],
                               "pricing": "$9.99" or "$9.99$19.99" or "" or null,
                               "customization_options": { name: [ { "value": text }, … ] or null }
                                                        or "" or null, … }, … ]
    items_ins_v2.json      { asin: { "attributes": [text, …], … }, … }
    items_human_ins.json   { asin: [ { "instruction", "instruction_attributes": [text, …],
                               "instruction_options": [text, …] or { name: text }, … }, … ], … }

Further keys are ignored. What WebShop does with them is kept: of two products with one asin the
first counts, one whose asin is ``nan`` or longer than ten characters is left out, a product without
a price costs 100, attributes default to none, an option's ``/`` becomes ``|``, an instruction
without attributes is no goal. Three things differ, because WebShop leaves them to chance at each
start and figures could not be compared: a price range is its middle; a goal's budget, the larger of
two out of the next four tens above the price, is drawn from the goal's own name; there is no
shuffling of goals.

Fields are WebShop's: ``name`` and ``title`` are both the product's name, ``features`` are its
attributes. Option dimensions keep their names, but ``color`` is called ``colour``.

Invariants:

1. Every text and number is bounded and typed. A wrong one is a ``ProductFileError`` that names the
   file, the entry (its asin, or its number) and the field.
2. The same files and limit give the same content and goals everywhere.

Covered: content and human goals, for the variants and their measurement. Not covered: WebShop's
pages, and its reward, which compares texts by similarity; synthetic goals; Lucene's stemming.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from evolution.envs.builtin.shop.entries import array_entries, object_entries
from evolution.envs.variants.content import FIELDS, Content, Document, Wish
from evolution.envs.variants.stages import Encoding, Stages
from evolution.errors import ProductFileError

__all__ = ["HumanGoal", "WebShopFiles", "load_webshop", "words_of"]

_MOST_PRODUCTS: Final = 2_000_000
_MOST_CHARACTERS: Final = 200_000
_MOST_ITEMS: Final = 1_000
_LONGEST_ASIN: Final = 10
_NO_PRICE: Final = 100.0
_HIGHEST_PRICE: Final = 1e7
_TENS: Final = tuple(10.0 * number for number in range(1, 100))
_WORD: Final = re.compile(r"[a-z0-9]+")
_PRICE: Final = re.compile(r"[0-9,]{1,12}(?:\.[0-9]{1,4})?")
_NAMES: Final = {"color": "colour"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HumanGoal:
    """What a person was asked to buy, in their words."""

    asin: str
    """Which product they saw."""
    instruction: str
    """What they wrote."""
    attributes: tuple[str, ...]
    """What the product must be like."""
    options: tuple[str, ...]
    """What must be picked."""
    budget: float | None
    """The highest price; None where WebShop asks for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WebShopFiles:
    """What the files hold."""

    stages: Stages
    """Products and wishes, with a search over all fields."""
    goals: tuple[HumanGoal, ...]
    """In the order of the products; the n-th wish of the content is the n-th goal's."""


def load_webshop(
    products: Path, *, attributes: Path | None = None, human: Path | None = None, most: int = 1000
) -> WebShopFiles:
    """Read the first ``most`` products, and what the other two files say about them.

    Raises:
        ProductFileError: A file is not of the form, or says nothing of any product.
    """
    if not 1 <= most <= _MOST_PRODUCTS:
        raise ValueError(f"most is between 1 and {_MOST_PRODUCTS}, not {most}")
    entries: dict[str, Mapping[str, Any]] = {}
    for number, value in enumerate(islice(array_entries(products), most)):
        where = _Where(products, str(number))
        asin = _bounded(_object(value, where).get("asin"), "asin", where)
        if asin not in ("", "nan") and len(asin) <= _LONGEST_ASIN:
            entries.setdefault(asin, value)
    if not entries:
        raise ProductFileError(products, "holds no product with a usable asin")
    described = _attributes(attributes, entries) if attributes is not None else {}
    documents = tuple(
        _document(value, described.get(asin, ()), _Where(products, asin))
        for asin, value in entries.items()
    )
    prices = {one.key: one.price for one in documents}
    offered = {one.key: one.options for one in documents}
    goals = tuple(_goals(human, prices)) if human is not None else ()
    wishes = tuple(
        Wish(
            target=goal.asin,
            words=words_of(goal.instruction),
            options=_dimensions(goal.options, offered[goal.asin]),
            budget=goal.budget,
        )
        for goal in goals
    )
    content = Content(documents=documents, wishes=wishes)
    return WebShopFiles(
        stages=Stages(content=content, encoding=Encoding(fields=FIELDS)), goals=goals
    )


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text: runs of letters and digits, in lower case."""
    return tuple(_WORD.findall(text.lower()))


@dataclass(frozen=True, slots=True)
class _Where:
    """A place in a file, for what is wrong there."""

    path: Path
    entry: str

    def wrong(self, field: str, what: str) -> ProductFileError:
        return ProductFileError(self.path, what, entry=self.entry, field=field)


def _attributes(path: Path, known: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for asin, value in object_entries(path):
        if asin in known:
            where = _Where(path, asin)
            found[asin] = _texts(_object(value, where).get("attributes", []), "attributes", where)
    return found


def _goals(path: Path, prices: Mapping[str, float | None]) -> Iterator[HumanGoal]:
    found: dict[str, Any] = {asin: v for asin, v in object_entries(path) if asin in prices}
    for asin, price in prices.items():
        where = _Where(path, asin)
        listed = found.get(asin, [])
        if not isinstance(listed, list) or len(listed) > _MOST_ITEMS:
            raise where.wrong("", f"expected at most {_MOST_ITEMS} instructions in an array")
        for number, value in enumerate(listed):
            at = _Where(path, f"{asin}[{number}]")
            one = _object(value, at)
            wanted = _texts(one.get("instruction_attributes"), "instruction_attributes", at)
            options = one.get("instruction_options", [])
            if isinstance(options, dict):
                options = list(options.values())
            if wanted:
                yield HumanGoal(
                    asin=asin,
                    instruction=_bounded(one.get("instruction"), "instruction", at).strip("."),
                    attributes=wanted,
                    options=_texts(options, "instruction_options", at),
                    budget=_budget(asin, number, price or _NO_PRICE),
                )


def _budget(asin: str, number: int, price: float) -> float | None:
    above = [ten for ten in _TENS if ten > price][:4]
    if len(above) < 2:
        return None
    rng = np.random.default_rng([number, *asin.encode()])
    return max(float(ten) for ten in rng.choice(above, size=2, replace=False))


def _document(entry: Mapping[str, Any], attributes: tuple[str, ...], where: _Where) -> Document:
    name = _bounded(entry.get("name"), "name", where)
    small = entry.get("small_description", "")
    points = [small] if isinstance(small, str) else small
    text = {
        "name": words_of(name),
        "title": words_of(name),
        "description": words_of(_bounded(entry.get("full_description"), "full_description", where)),
        "features": words_of(" ".join(attributes)),
        "bullet_points": words_of(" ".join(_texts(points, "small_description", where))),
    }
    kinds = ("category", "query", "product_category")
    return Document(
        key=where.entry,
        text=text,
        options=_options(entry.get("customization_options"), where),
        price=_price(entry.get("pricing"), where),
        traits={
            "attributes": attributes,
            **{kind: (_bounded(entry.get(kind), kind, where),) for kind in kinds},
        },
    )


def _options(value: object, where: _Where) -> dict[str, tuple[str, ...]]:
    if value is None or value == "":
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_ITEMS:
        raise where.wrong("customization_options", "expected an object of options")
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in value.items():
        if listed is None:
            continue
        field = f"customization_options.{name[:64]!r}"
        if not isinstance(listed, list) or len(listed) > _MOST_ITEMS:
            raise where.wrong(field, f"expected an array of at most {_MOST_ITEMS}")
        values = [
            _bounded(one.get("value") if isinstance(one, dict) else None, f"{field}.value", where)
            for one in listed
        ]
        lowered = name.lower()
        found[_NAMES.get(lowered, lowered)] = tuple(map(_option, values))
    return found


def _option(value: str) -> str:
    return value.strip().replace("/", " | ").lower()


def _dimensions(wished: tuple[str, ...], offered: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Wished options by the dimension in which the product offers them; others are left out."""
    found: dict[str, str] = {}
    for option in map(_option, wished):
        for name, values in offered.items():
            if option in values:
                found.setdefault(name, option)
    return found


def _price(value: object, where: _Where) -> float:
    if value is None or value == "":
        return _NO_PRICE
    said = _bounded(value, "pricing", where).split("$")[1:3]
    texts = [_PRICE.match(part.strip()) for part in said]
    prices = [float(found[0].replace(",", "") or "nan") for found in texts if found is not None]
    if not said or len(prices) != len(said) or not all(p <= _HIGHEST_PRICE for p in prices):
        raise where.wrong("pricing", 'expected a price such as "$9.99" or "$9.99$19.99"')
    return round(sum(prices) / len(prices), 2)


def _object(value: object, where: _Where) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise where.wrong("", "expected an object")
    return value


def _bounded(value: object, field: str, where: _Where) -> str:
    if not isinstance(value, str):
        raise where.wrong(field, "expected a text")
    if len(value) > _MOST_CHARACTERS:
        raise where.wrong(field, f"is longer than {_MOST_CHARACTERS} characters")
    return value


def _texts(value: object, field: str, where: _Where) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise where.wrong(field, f"expected an array of at most {_MOST_ITEMS} texts")
    return tuple(_bounded(one, field, where) for one in value)
