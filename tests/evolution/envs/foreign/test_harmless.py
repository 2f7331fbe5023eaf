"""Which texts are given to code that evaluates them."""

from __future__ import annotations

import pytest

from evolution.envs.foreign.harmless import is_expression, is_literal

CODE = [
    "__import__('os').system('id')",
    "open('x', 'w')",
    "input()",
    "exit()",
    "[].__class__",
    "(lambda: 1)()",
    "[x for x in (1,)]",
    "f'{1}'",
    "[print(1)]",
    "(a := 1)",
    "S('print(1)')",
    "x.func",
    "x[0]",
    "sin(open('x'))",
    "sin(x, evaluate=print)",
    "eval",
    "1 if x else 2",
]


@pytest.mark.parametrize("text", CODE)
def test_code_is_neither(text):
    assert not is_literal(text)
    assert not is_expression(text)


@pytest.mark.parametrize("text", ["['a', 'b']", "[[0, -1], (1.5,)]", "'abc'", "None", "[]"])
def test_literals(text):
    assert is_literal(text)


@pytest.mark.parametrize("text", ["", "1 2 3", "_ Q _\n_ _ Q", "the answer is 5", "print 1"])
def test_what_is_a_syntax_error_is_evaluated_to_nothing_at_all(text):
    assert is_literal(text)
    with pytest.raises(SyntaxError):
        compile(text, "", "eval")
    assert not is_expression(text)


@pytest.mark.parametrize("text", ["oracle_answer", "answer", "[1] * 10**9", "1 + 1", "{1: 2}"])
def test_a_list_has_no_names_and_no_sums(text):
    assert not is_literal(text)


@pytest.mark.parametrize(
    "text", ["(3 + 5) * 3", "-x**2/2 + C", "3*exp(2*x) - log(Abs(x))", "24", "0.5*t**(3/2)"]
)
def test_formulas(text):
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    ["1 # x", "'a' * 2", "True", "1j", "x\\\n", "abc", "9!", "ｘ", "1 " * 600, "-" * 900 + "1"],
)
def test_what_is_no_formula(text):
    assert not is_expression(text)


@pytest.mark.parametrize("text", ["(" * 5_000, "[" * 99_999, "\0", "-" * 100_000 + "1"])
def test_what_the_parser_cannot_read_is_refused_or_harmless(text):
    assert not is_expression(text)
    assert is_literal(text) in {True, False}
