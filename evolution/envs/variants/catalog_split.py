"""Catalog Split (stage 1): each silo's catalogue lacks some products, each silo's others.

FedAgent, algorithm 5. What tasks ask for stays everywhere; of the other products a part is kept ::

    e_c = (1 − env_div)·u_c + env_div·v_{c,i}      u ~ U(0,1) from σ0, shared by all silos
                                                   v ~ U(0,1) from σ0 + 1000·i, silo i's own
    kept = the round(keep_ratio · |R|) products with the smallest e_c

With ``env_div`` 0 all silos keep the same products, with 1 each its own. The content's held-out
products are in no silo's catalogue. FedAgent's code protects a silo's own targets only; this is the
paper's rule, by which no silo loses a task.

Covered: any content. Not covered: catalogues that change from round to round.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from evolution.envs.variants.content import Content
from evolution.envs.variants.seeds import BASE_SEED

__all__ = ["ENV_DIV", "KEEP_RATIO", "split_catalog"]

ENV_DIV: Final = 1.0
KEEP_RATIO: Final = 0.7
_SILO_STRIDE: Final = 1000


def split_catalog(
    content: Content, *, index: int, env_div: float = ENV_DIV, keep_ratio: float = KEEP_RATIO
) -> Content:
    """The catalogue of silo ``index``, counted from 1."""
    left_out = content.targets | content.held_out
    distractors = [one.key for one in content.documents if one.key not in left_out]
    shared = np.random.RandomState(BASE_SEED).uniform(size=len(distractors))
    own = np.random.RandomState(BASE_SEED + _SILO_STRIDE * index).uniform(size=len(distractors))
    order = np.argsort((1 - env_div) * shared + env_div * own, kind="stable")
    kept = {distractors[place] for place in order[: round(keep_ratio * len(distractors))]}
    kept |= content.targets
    documents = tuple(one for one in content.documents if one.key in kept)
    return dataclasses.replace(content, documents=documents, held_out=frozenset())
