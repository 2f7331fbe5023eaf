"""What runs beside the daemon for ``reasoning-gym:``: a task's question, and an answer's score.

::

    {"generator", "options", "index"}             -> {"question": …}
    {"generator", "options", "index", "answer"}   -> {"score": …, "valid": …}

A task is the first entry of a dataset of size 1 whose seed is the task's number. Scoring is the
package's own ``score_answer``. Nine generators of version 0.1.25 give the answer to ``eval`` or to
``sympy.parse_expr``, which evaluates it as well: whoever chooses the answer would run code with the
daemon's rights, and a model's answer is chosen by weights that other sites helped to train.
Invariants:

1. No answer is evaluated but literals (``LITERALS``) and formulas (``EXPRESSIONS``), as
   ``harmless.py`` tells them. Another one is scored as no answer is.
2. A generator whose scorer evaluates something and that is not named here is refused.
3. Options have the types that the generator's own configuration says, and pass its own checks.

Covered: every generator of version 0.1.25 but ``composite``, which scores by way of others. Not
covered: an expression whose evaluation never ends, which the parent's time limit is for.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from reasoning_gym.factory import DATASETS, create_dataset

from evolution.envs.foreign.harmless import is_expression, is_literal
from evolution.errors import EnvironmentSetupError

__all__ = ["EXPRESSIONS", "LITERALS", "OWN_TEXT", "answer", "evaluates"]

LITERALS: Final = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators that evaluate the answer as a Python list."""
EXPRESSIONS: Final = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Generators that evaluate the answer as a formula."""
OWN_TEXT: Final = frozenset({"bitwise_arithmetic", "number_sorting"})
"""Generators that evaluate text of their own, never the answer."""

_REFUSED: Final = frozenset({"composite"})
_EVALUATORS: Final = frozenset({"__import__", "compile", "eval", "exec", "parse_expr", "sympify"})
_PACKAGE: Final = "reasoning_gym"


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The question of a task, or with an answer its score.

    Raises:
        EnvironmentSetupError: There is no such generator, or it does not take the options.
    """
    name, options = question["generator"], json.dumps(question["options"], sort_keys=True)
    entry = _entry(name, options, question["index"])
    if "answer" not in question:
        return {"question": entry["question"]}
    given = question["answer"]
    if name in LITERALS or name in EXPRESSIONS:
        given = given.strip()
        harmless = is_literal(given) if name in LITERALS else is_expression(given)
        if not harmless and given != entry["answer"]:
            given = None
    try:
        score = float(_dataset(name, options, 0).score_answer(given, entry))
    except Exception:  # noqa: BLE001  # some scorers raise at an answer that they cannot read
        return {"score": 0.0, "valid": False}
    return {"score": score, "valid": True}


def evaluates(generator: str) -> bool:
    """Whether a generator's scorer, or a function of the package it calls, evaluates text."""
    scorer = DATASETS[generator][0].score_answer
    return bool(_EVALUATORS & _names(scorer, DATASETS[generator][0], set()))


def _names(function: FunctionType, owner: type, seen: set[FunctionType]) -> set[str]:
    """Every name that a function uses, with those of the package's functions among them."""
    if function in seen:
        return set()
    seen.add(function)
    module = sys.modules[function.__module__]
    found = _code_names(function.__code__)
    for name in tuple(found):
        used = getattr(owner, name, None) or getattr(module, name, None)
        methods = [(used, owner)] if isinstance(used, FunctionType) else []
        if isinstance(used, type):
            methods = [(item, used) for item in vars(used).values()]
        for method, its_owner in methods:
            if isinstance(method, FunctionType) and method.__module__.startswith(_PACKAGE):
                # A parser of the package's own is no evaluator, whatever it is called.
                found.discard(name)
                found |= _names(method, its_owner, seen)
    return found


def _code_names(code: CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*map(_code_names, inner))


@lru_cache(maxsize=256)
def _entry(name: str, options: str, seed: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(name, options, seed)[0]
    return entry


def _dataset(name: str, options: str, seed: int) -> Any:
    # Scoring needs no seed of its own, and some datasets read a file when they are made.
    return _scorer(name, options) if seed == 0 else _made(name, options, seed)


@lru_cache(maxsize=8)
def _scorer(name: str, options: str) -> Any:
    return _made(name, options, 0)


def _made(name: str, options: str, seed: int) -> Any:
    try:
        return create_dataset(name, seed=seed, size=1, **_checked(name, options))
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        raise EnvironmentSetupError(f"{name} does not take these options: {error}") from error


@lru_cache(maxsize=8)
def _checked(name: str, options: str) -> dict[str, Any]:
    if name not in DATASETS or name in _REFUSED:
        close = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.0)
        raise EnvironmentSetupError(
            f"reasoning-gym has no generator {name!r} that can be used here; nearest: "
            f"{', '.join(close)}"
        )
    if evaluates(name) and name not in LITERALS | EXPRESSIONS | OWN_TEXT:
        raise EnvironmentSetupError(
            f"the scorer of {name} evaluates answers as code, and nothing here knows which of them "
            "do no harm"
        )
    settings = DATASETS[name][1]
    hints = get_type_hints(settings)
    known = sorted({field.name for field in dataclasses.fields(settings)} - {"seed", "size"})
    found = {}
    for key, value in json.loads(options).items():
        if key not in known:
            raise EnvironmentSetupError(f"{name} has no option {key!r}; known: {', '.join(known)}")
        try:
            found[key] = TypeAdapter(_meant(hints[key])).validate_json(
                json.dumps(value), strict=True
            )
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise EnvironmentSetupError(f"option {key} of {name}: {problem}") from error
    return found


def _meant(hint: Any) -> Any:
    # Some generators write tuple[str] for as many texts as there are.
    inner, several = get_args(hint), cast("Any", tuple)
    return several[inner[0], ...] if get_origin(hint) is tuple and len(inner) == 1 else hint
