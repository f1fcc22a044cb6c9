"""Formulas over named numbers: arithmetic that is parsed once, and never run as a program. `+ - * /`, `^` for powers,
brackets, and `min max abs floor ceil exp sqrt log`."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import attrs

MAX_FORMULA = 1000

_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (min, max, abs, math.floor, math.ceil, math.exp, math.sqrt, math.log)
}
_MOST_ARGUMENTS: Mapping[str, float] = {"min": math.inf, "max": math.inf, "log": 2}


class FormulaError(ValueError):
    """A text is not a formula."""


@attrs.frozen
class Formula:
    text: str
    names: frozenset[str]

    def value(self, numbers: Mapping[str, float]) -> float | None:
        """Return its value; None if that is not a finite number, as after a division by 0."""
        try:
            found = float(_value(_body(self.text), numbers))
        except (ArithmeticError, ValueError):
            return None
        return found if math.isfinite(found) else None


@lru_cache(maxsize=256)
def read_formula(text: str) -> Formula:
    if len(text) > MAX_FORMULA:
        raise FormulaError(f"has more than {MAX_FORMULA} characters")
    try:
        return Formula(text, frozenset(_names(_body(text))))
    except FormulaError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError("is not a formula, such as 0.8 * right + 0.2 * short") from None


@lru_cache(maxsize=256)
def _body(text: str) -> ast.expr:
    return ast.parse(text.strip().replace("^", "**"), mode="eval").body


def _names(node: ast.expr) -> set[str]:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _names(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _names(left) | _names(right)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
            if len(args) > _MOST_ARGUMENTS.get(name, 1):
                raise FormulaError(f"gives {len(args)} arguments to {name}")
            return set().union(*map(_names, args))
    raise FormulaError(f"is not arithmetic at {ast.unparse(node)[:40]!r}")


def _value(node: ast.expr, numbers: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return numbers[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, numbers))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(argument, numbers) for argument in args]
            return _FUNCTIONS[name](values) if name in ("min", "max") else _FUNCTIONS[name](*values)
    raise AssertionError(node)
