"""Filters on metadata, such as ``mass < 300 and source == 'ZINC'``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool

_COMPARE: dict[type, Callable] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_EXPECTED = "expected comparisons of columns with numbers or strings, joined by and, or, not"


def evaluate(condition: str, columns: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " B"]:
    """The rows that fulfil a condition.

    Args:
        condition: comparisons (``< <= > >= == !=``, ``in``) of columns with numbers or strings,
            joined by ``and``, ``or`` and ``not``. Nothing else is evaluated.
        columns: values by name.

    Returns:
        Whether each row fulfils the condition.

    Raises:
        ValueError: the condition is something else, or names a column that does not exist.

    >>> evaluate("mass < 300 and not name == 'b'", {
    ...     "mass": np.array([100, 200, 400]), "name": np.array(["a", "b", "c"])}).tolist()
    [True, False, False]
    """
    return np.asarray(_truth(_parse(condition).body, columns, condition), dtype=bool)


def names(condition: str) -> set[str]:
    """The columns that a condition names."""
    return {node.id for node in ast.walk(_parse(condition)) if isinstance(node, ast.Name)}


def _parse(condition: str) -> ast.Expression:
    try:
        tree = ast.parse(condition.strip(), mode="eval")
        ast.unparse(tree)  # messages quote parts of it, and nesting must not exceed the stack then
        return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"condition {condition!r:.200} cannot be read; {_EXPECTED}") from None


def _truth(node: ast.expr, columns: Mapping[str, np.ndarray], condition: str) -> np.ndarray:
    match node:
        case ast.BoolOp(op=ast.And()):
            return np.logical_and.reduce([_truth(v, columns, condition) for v in node.values])
        case ast.BoolOp(op=ast.Or()):
            return np.logical_or.reduce([_truth(v, columns, condition) for v in node.values])
        case ast.UnaryOp(op=ast.Not()):
            return ~_truth(node.operand, columns, condition)
        case ast.Compare():
            sides = [_value(side, columns, condition) for side in (node.left, *node.comparators)]
            results = [
                _compared(op, one, other, condition)
                for op, one, other in zip(node.ops, sides[:-1], sides[1:], strict=True)
            ]
            return np.logical_and.reduce(results)
    raise ValueError(f"condition {condition!r:.200} contains {ast.unparse(node)!r}; {_EXPECTED}")


def _compared(op: ast.cmpop, one: object, other: object, condition: str) -> np.ndarray:
    members = other if isinstance(op, ast.In) and isinstance(other, list) else None
    sides = [one, other] if members is None else [one, *members]
    alike = len({_is_text(side) for side in sides}) == 1
    if members is not None and alike:
        return np.isin(np.asarray(one), np.asarray(members))
    if type(op) in _COMPARE and alike and not any(isinstance(side, list) for side in sides):
        return np.asarray(_COMPARE[type(op)](one, other), dtype=bool)
    raise ValueError(
        f"condition {condition!r:.200} compares a number with a string, or uses an unknown "
        f"operator; {_EXPECTED}"
    )


def _is_text(value: object) -> bool:
    """Whether a value or a column holds strings."""
    return not isinstance(value, int | float) and np.asarray(value).dtype.kind not in "biuf"


def _value(node: ast.expr, columns: Mapping[str, np.ndarray], condition: str) -> object:
    match node:
        case ast.Name():
            if node.id not in columns:
                known = ", ".join(columns) or "none"
                raise ValueError(f"the index has no column {node.id!r}; its columns are: {known}")
            return columns[node.id]
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -node.operand.value  # type: ignore[operator]
        case ast.Tuple() | ast.List():
            return [_value(element, columns, condition) for element in node.elts]
    raise ValueError(f"condition {condition!r:.200} contains {ast.unparse(node)!r}; {_EXPECTED}")
