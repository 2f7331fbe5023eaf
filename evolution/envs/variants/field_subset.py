"""Field-Subset Index (stage 2): a silo's search sees some of the text fields only.

The pools are FedAgent's, in the paper's order; a search over everything comes first. (Its code's
"no name" lacks the title as well; this is the paper's, which lacks the name alone.) An environment
that lacks some of the fields has what is left of a subset, and a subset of which nothing is left is
refused.

Covered: pools of four and of eight. Not covered: weights of fields.
"""

from __future__ import annotations

from typing import Final

from evolution.envs.variants.content import FIELDS, Content
from evolution.envs.variants.stages import Encoding
from evolution.errors import EnvironmentSetupError

__all__ = ["SUBSETS", "field_line", "index_fields"]

SUBSETS: Final[tuple[tuple[str, ...], ...]] = (
    FIELDS,
    ("name", "title"),
    ("description",),
    ("bullet_points",),
    ("features",),
    ("name", "bullet_points"),
    ("description", "features"),
    ("title", "description", "features", "bullet_points"),
)
"""The first four are the pool of four."""


def index_fields(content: Content, choice: int) -> Encoding:
    """The fields that the search of a subset sees.

    Raises:
        EnvironmentSetupError: No document has a word in any of them.
    """
    there = tuple(name for name in SUBSETS[choice] if name in content.fields)
    if not there:
        raise EnvironmentSetupError(
            f"the environment has words in {', '.join(content.fields) or 'no field'} and none in "
            f"{', '.join(SUBSETS[choice])}: take another variant than field subset {choice}"
        )
    return Encoding(fields=there)


def field_line(choice: int) -> str:
    """A subset in words: fields are numbered from 1, name first."""
    numbers = " ".join(str(FIELDS.index(name) + 1) for name in SUBSETS[choice])
    return f"search on {numbers} ."
