"""Lookalike Injection (stages 1 and 3): clones of targets that a search cannot tell apart.

Each target gets a clone whose text is the target's with light noise (two neighbours swapped in
each field, some words replaced by a synonym), and which breaks what no search sees: the price is
above every budget of the target's tasks, or the wished colour or size is not to be had. So the
clone is found beside its target, and buying it solves no task of that target. Its key is
``LK_<dimension>_<target's key>_<four random hexadecimal digits>``, and it stands just before or
just after its target, by chance, so that equal scores favour neither.

Dimensions are FedAgent's four; clones come from its seed 99999, so silos with the same dimension
have the same clones. FedAgent clones 1000, 286, 268 and 286 documents; here it is every target
that can be broken: a target without a dimension, or whose tasks ask for everything there is, has no
clone.

Covered: price and any option dimensions of a content. Not covered: clones of what no task asks for.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from evolution.envs.variants.content import Content, Document, Wish
from evolution.errors import EnvironmentSetupError

__all__ = ["DIMENSIONS", "inject_lookalikes", "lookalike_line"]

DIMENSIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("price",),
    ("colour",),
    ("size",),
    ("price", "colour"),
)
_SEED: Final = 99999
_SYNONYM_SHARE: Final = 0.1
_WORDS: Final = {"price": "budget"}
"""What the built-in shops call a dimension in their observations."""


def inject_lookalikes(content: Content, choice: int) -> Content:
    """The content with a lookalike beside each target that can be broken.

    Raises:
        EnvironmentSetupError: None can be.
    """
    dimensions = DIMENSIONS[choice]
    rng = np.random.RandomState(_SEED)
    wishes: dict[str, list[Wish]] = {}
    for wish in content.wishes:
        wishes.setdefault(wish.target, []).append(wish)
    documents: list[Document] = []
    for one in content.documents:
        clone = None
        if one.key in wishes:
            clone = _broken(one, wishes[one.key], content, dimensions, rng)
        pair = [one] if clone is None else [one, clone]
        documents += pair if rng.randint(2) else reversed(pair)
    if len(documents) == len(content.documents):
        raise EnvironmentSetupError(
            f"no target of the environment can be broken in {' and '.join(dimensions)}: take "
            f"another variant than lookalike {choice}"
        )
    return dataclasses.replace(content, documents=tuple(documents))


def lookalike_line(choice: int | None) -> str:
    """Of which facts a page may look right and be wrong; None where there are no lookalikes."""
    if choice is None:
        return "colour size budget known ."
    names = " ".join(_WORDS.get(name, name) for name in DIMENSIONS[choice])
    return f"{names} not known ."


def _broken(
    one: Document,
    wishes: list[Wish],
    content: Content,
    dimensions: tuple[str, ...],
    rng: np.random.RandomState,
) -> Document | None:
    """A lookalike; None if some dimension cannot be broken."""
    price, options = one.price, dict(one.options)
    for dimension in dimensions:
        if dimension == "price":
            price = _too_dear(one, wishes, content, rng)
            if price is None:
                return None
            continue
        wished = {wish.options[dimension] for wish in wishes if dimension in wish.options}
        offered = [o for o in one.options.get(dimension, ()) if o not in wished]
        others = [o for o in content.options_of(dimension) if o not in wished]
        if not wished or not others:
            return None
        options[dimension] = tuple(offered) or (others[rng.randint(len(others))],)
    name = "+".join(dimensions)
    return dataclasses.replace(
        one,
        key=f"LK_{name}_{one.key}_{rng.randint(1 << 16):04x}",
        text={field: _noisy(words, content, rng) for field, words in one.text.items()},
        price=price,
        options=options,
    )


def _too_dear(
    one: Document, wishes: list[Wish], content: Content, rng: np.random.RandomState
) -> float | None:
    """A price above every budget; None if there is no such price."""
    budgets = [wish.budget for wish in wishes if wish.budget is not None]
    if one.price is None or not budgets:
        return None
    if not content.prices:
        return round(max(budgets) * float(rng.uniform(1.1, 2.0)), 2)
    dearer = [price for price in content.prices if price > max(budgets)]
    return dearer[rng.randint(len(dearer))] if dearer else None


def _noisy(words: tuple[str, ...], content: Content, rng: np.random.RandomState) -> tuple[str, ...]:
    """Two neighbours swapped, and some words replaced by their synonyms."""
    changed = [
        content.synonyms.get(word, word) if rng.random_sample() < _SYNONYM_SHARE else word
        for word in words
    ]
    if len(changed) > 1:
        place = rng.randint(len(changed) - 1)
        changed[place], changed[place + 1] = changed[place + 1], changed[place]
    return tuple(changed)
