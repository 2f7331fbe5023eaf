"""Which texts may be given to code that evaluates them.

Some packages judge an answer by ``eval``, or by ``sympy.parse_expr``, which is ``eval`` in the end.
Both run whatever the text says, so a text gets there only if its syntax tree holds nothing that can
call, look up or build: what a tree of these nodes evaluates to is a number, a formula or a list.

Covered: code that does something. Not covered: a value that takes long to compute, as ``9**9**9``
does; whoever evaluates has a limit of time.
"""

from __future__ import annotations

import ast
from typing import Final

__all__ = ["is_expression", "is_literal"]

_FUNCTIONS: Final = frozenset(
    {
        *("Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log", "sec"),
        *("sin", "sinh", "sqrt", "tan", "tanh"),
    }
)
_MAX_EXPRESSION: Final = 1_000
_LITERAL_NODES: Final = (
    *(ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.Load, ast.UnaryOp, ast.USub),
)
_EXPRESSION_NODES: Final = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub),
)


def is_literal(text: str) -> bool:
    """Whether evaluating the text makes lists and constants at most, or is an error at once."""
    tree = _tree(text)
    if tree is None:
        return False
    return isinstance(tree, SyntaxError) or all(
        isinstance(node, _LITERAL_NODES) for node in ast.walk(tree)
    )


def is_expression(text: str) -> bool:
    """Whether the text is an arithmetic formula and nothing else."""
    if len(text) > _MAX_EXPRESSION or not text.isascii() or "#" in text or "\\" in text:
        return False
    tree = _tree(text)
    try:
        return isinstance(tree, ast.Expression) and _arithmetic(tree)
    except RecursionError:
        return False


def _arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in {int, float}
    if isinstance(node, ast.Name):
        return len(node.id) == 1 and node.id.isalpha()
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        return named and not node.keywords and all(map(_arithmetic, node.args))
    return isinstance(node, _EXPRESSION_NODES) and all(map(_arithmetic, ast.iter_child_nodes(node)))


def _tree(text: str) -> ast.Expression | SyntaxError | None:
    """None where not even the parser comes to an end."""
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None
