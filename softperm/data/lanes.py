"""Vectors of ``WIDTH`` float64 numbers that kernels keep in the processor's vector registers.

numba turns a loop over a few numbers into scalar code. A kernel that reads rows of a table
(rows, ``WIDTH``) as values of this type has vector instructions instead, on every processor.

>>> from softperm.jit import kernel
>>> import numpy as np
>>> @kernel
... def add_rows(table):
...     store(table, 0, add(load(table, 0), load(table, 1)))
>>> table = np.ones((2, WIDTH))
>>> add_rows(table)
>>> float(table[0].min()), float(table[1].max())
(2.0, 1.0)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

WIDTH = 32
_VECTOR: Any = ir.VectorType(ir.DoubleType(), WIDTH)
_operation: Any = intrinsic  # called by kernels with values, not with types
_CONTRACT = ("contract",)  # a product and a sum may become one instruction


class Lanes(types.Type):
    """The type of a vector in compiled code."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({WIDTH})")


_LANES = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Where a row of a table begins."""
    table = make_array(signature.args[0])(context, builder, arguments[0])
    row = context.cast(builder, arguments[1], signature.args[1], types.intp)
    start = builder.gep(table.data, [builder.mul(row, ir.Constant(row.type, WIDTH))])
    return builder.bitcast(start, _VECTOR.as_pointer())


@_operation
def load(_typing: Any, table: Any, row: Any) -> Any:
    """A row of a contiguous table (rows, ``WIDTH``); the index is not checked."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature, arguments), align=8)

    return _LANES(table, row), emit


@_operation
def store(_typing: Any, table: Any, row: Any, value: Any) -> Any:
    """Writes a row of a contiguous table (rows, ``WIDTH``); the index is not checked."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _address(context, builder, signature, arguments)
        builder.store(arguments[2], place, align=8)
        return context.get_dummy_value()

    return types.void(table, row, value), emit


@_operation
def spread(_typing: Any, number: Any) -> Any:
    """A vector of one number."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        index = ir.IntType(32)
        none = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(none, arguments[0], ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(first, none, everywhere)

    return _LANES(types.float64), emit


@_operation
def add(_typing: Any, a: Any, b: Any) -> Any:
    """The sums a + b."""
    return _LANES(a, b), lambda _context, builder, _signature, values: builder.fadd(*values)


@_operation
def multiply(_typing: Any, a: Any, b: Any) -> Any:
    """The products a · b."""
    return _LANES(a, b), lambda _context, builder, _signature, values: builder.fmul(*values)


@_operation
def multiply_add(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """The sums a · b + c, rounded once where the processor can."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        product = builder.fmul(values[0], values[1], flags=_CONTRACT)
        return builder.fadd(product, values[2], flags=_CONTRACT)

    return _LANES(a, b, c), emit
