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
    try:
        tree = ast.parse(condition.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(f"condition {condition!r} cannot be read; {_EXPECTED}") from None
    return np.asarray(_truth(tree, columns, condition), dtype=bool)


def names(condition: str) -> set[str]:
    """The columns that a condition names."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except (SyntaxError, ValueError):
        raise ValueError(f"condition {condition!r} cannot be read; {_EXPECTED}") from None
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


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
    raise ValueError(f"condition {condition!r} contains {ast.unparse(node)!r}; {_EXPECTED}")


def _compared(op: ast.cmpop, one: object, other: object, condition: str) -> np.ndarray:
    try:
        if isinstance(op, ast.In):
            return np.isin(np.asarray(one), np.asarray(other))
        return np.asarray(_COMPARE[type(op)](one, other), dtype=bool)
    except (KeyError, TypeError):
        raise ValueError(
            f"condition {condition!r} compares a number with a string, or uses an unknown "
            f"operator; {_EXPECTED}"
        ) from None


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
    raise ValueError(f"condition {condition!r} contains {ast.unparse(node)!r}; {_EXPECTED}")
