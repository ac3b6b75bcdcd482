"""A numba type for vectors of numbers, with arithmetic, reductions, exp and log.

numba leaves vectorisation to LLVM's optimiser, which gives up on reductions if it cannot prove that
their accumulators do not overlap, and which calls the scalar C library for every exponential. With
this type a kernel states the vector operations itself, and LLVM compiles them for any machine: to
one AVX register, or to several registers of NEON or SSE. Vectors have ``WIDTH`` numbers; rows of a
table that are read as a whole have ``WIDE``.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import lower_builtin, models, register_model
from numba.np import arrayobj

from softperm.jit import inner, kernel

intrinsic: Any = numba_intrinsic  # its first parameter is not part of a call
WIDTH = 8
"""Numbers in one vector."""

WIDE = 32
"""Numbers in a row of a table that is one vector."""

compiled = inner(error_model="numpy")
"""Decorator for functions that only kernels call."""

inlined = inner(error_model="numpy", forceinline=True)
"""The same for functions that are inlined."""

entry_point = kernel(error_model="numpy")
"""Decorator for the kernels, which Python calls."""


class Lanes(types.Type):
    """Type of a vector of numbers of a floating point type."""

    def __init__(self, dtype, width=WIDTH):
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        element = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, lanes.width))


def _operate(symbol, instruction: str) -> None:
    """Defines one arithmetic operator between vectors of one type."""

    @infer_global(symbol)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def _lower(context, builder, sig, args):
        return getattr(builder, instruction)(*args)


_operate(operator.add, "fadd")
_operate(operator.sub, "fsub")
_operate(operator.mul, "fmul")
_operate(operator.truediv, "fdiv")


def _splat(builder, scalar, width=WIDTH):
    """A vector whose numbers are all ``scalar``."""
    vector = ir.VectorType(scalar.type, width)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), width), None)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _lanes_of(array) -> Lanes:
    """The vectors that an array is read as: rows of a table, or parts of an array of one axis."""
    if not isinstance(array, types.Array) or array.ndim > 2 or array.layout != "C":
        raise TypingError(f"vectors need contiguous arrays of one or two axes; got {array}")
    return Lanes(array.dtype, WIDE if array.ndim == 2 else WIDTH)


def _address(context, builder, array_type, array, index):
    """Pointer to a vector in an array."""
    lanes = _lanes_of(array_type)
    if array_type.ndim == 2:
        index = builder.mul(index, index.type(WIDE))
    data = arrayobj.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), context.get_value_type(lanes).as_pointer())


@intrinsic
def load(typing, array, index):
    """The ``WIDTH`` numbers from ``index`` of a contiguous array of one axis, or a table's row.

    A table is contiguous and has ``WIDE`` columns. The index is not checked.
    """
    lanes = _lanes_of(array)

    def generate(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing, array, index, value):
    """Writes a vector to where :func:`load` reads it."""
    if value != _lanes_of(array):
        raise TypingError(f"{array} has no vectors {value}")

    def generate(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args[:2])
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def splat(typing, scalar):
    """A vector of ``WIDTH`` equal numbers."""
    return Lanes(scalar)(scalar), lambda context, builder, sig, args: _splat(builder, args[0])


def _fma(builder, x, y, z):
    """Builds x · y + z of three vectors."""
    name = f"llvm.fmuladd.v{x.type.count}f{64 if x.type.element == ir.DoubleType() else 32}"
    kind = ir.FunctionType(x.type, [x.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x, y, z])


@intrinsic
def fma(typing, x, y, z):
    """The sum x · y + z, fused where the machine has it."""
    return x(x, y, z), lambda context, builder, sig, args: _fma(builder, *args)


@intrinsic
def maximum(typing, x, y):
    """The larger of each two numbers."""

    def generate(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return x(x, y), generate


@intrinsic
def minimum(typing, x, y):
    """The smaller of each two numbers."""

    def generate(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return x(x, y), generate


@intrinsic
def where_less(typing, x, y, yes, no):
    """``yes`` where x < y; ``no`` elsewhere, also where x or y is NaN."""

    def generate(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args[:2]), *args[2:])

    return yes(x, y, yes, no), generate


def _reduction(x: Lanes, name: str, start: float | None):
    """A reduction of a vector to one number, in the fastest order, which is always the same."""

    def generate(context, builder, sig, args):
        scalar = context.get_value_type(x.dtype)
        initial = [] if start is None else [ir.Constant(scalar, start)]
        kind = ir.FunctionType(scalar, [a.type for a in initial] + [args[0].type])
        name_ = f"llvm.vector.reduce.{name}.v{x.width}f{x.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, kind, name_)
        return builder.call(function, [*initial, *args], fastmath=("reassoc",))

    return x.dtype(x), generate


@intrinsic
def total(typing, x):
    """Sum of a vector's numbers."""
    return _reduction(x, "fadd", -0.0)


@intrinsic
def peak(typing, x):
    """Largest of a vector's numbers."""
    return _reduction(x, "fmax", None)


@intrinsic
def trough(typing, x):
    """Smallest of a vector's numbers."""
    return _reduction(x, "fmin", None)


@intrinsic
def widen(typing, x):
    """The same numbers in float64."""

    def generate(context, builder, sig, args):
        if x.dtype == types.float64:
            return args[0]
        return builder.fpext(args[0], ir.VectorType(ir.DoubleType(), x.width))

    return Lanes(types.float64, x.width)(x), generate


@intrinsic
def narrow(typing, x, like):
    """The same float64 numbers in the type of the vector ``like``."""

    def generate(context, builder, sig, args):
        if like.dtype == types.float64:
            return args[0]
        return builder.fptrunc(args[0], args[1].type)

    return like(x, like), generate


@intrinsic
def fill(typing, like, number):
    """A vector of the type of ``like``, filled with one float64 number."""

    def generate(context, builder, sig, args):
        scalar = args[1]
        if like.dtype != types.float64:
            scalar = builder.fptrunc(scalar, args[0].type.element)
        return _splat(builder, scalar, like.width)

    return like(like, types.float64), generate


@intrinsic
def exp(typing, x, like):
    """Exponential of float64 numbers in the type of ``like``, to its rounding; 0 for underflow.

    With x = n log 2 + f the result is 2ⁿ times a polynomial in f. The reduction is done in float64
    even for float32, so that a large x does not lose the digits of f. For x up to 88 only.
    """
    double = like.dtype == types.float64
    degree, mantissa, bias = (13, 52, 1023) if double else (7, 23, 127)
    underflow = -708.0 if double else -87.0

    def generate(context, builder, sig, args):
        def number(value, vector):
            return ir.Constant(vector, [value] * x.width)

        wide, out = args[0].type, args[1].type
        shift = number(1.5 * 2.0**52, wide)  # adding it rounds, and leaves n in the low bits
        shifted = _fma(builder, args[0], number(1 / math.log(2), wide), shift)
        n = builder.fsub(shifted, shift)
        f = _fma(builder, n, number(-_LOG2_HIGH, wide), args[0])
        f = _fma(builder, n, number(-_LOG2_LOW, wide), f)
        f = f if double else builder.fptrunc(f, out)
        value = number(1 / math.factorial(degree), out)
        for power in reversed(range(degree)):
            value = _fma(builder, value, f, number(1 / math.factorial(power), out))
        integer = ir.VectorType(ir.IntType(like.dtype.bitwidth), x.width)
        bits = builder.bitcast(shifted, ir.VectorType(ir.IntType(64), x.width))
        bits = bits if double else builder.trunc(bits, integer)
        bits = builder.add(bits, number(bias, integer))
        scale = builder.bitcast(builder.shl(bits, number(mantissa, integer)), out)
        small = builder.fcmp_ordered("<", args[0], number(underflow, wide))
        return builder.select(small, number(0.0, out), builder.fmul(value, scale))

    return like(x, like), generate


_LOG2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # log 2 with its last bits zero, and the rest
_LOG2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


@intrinsic
def log(typing, x):
    """Logarithm of float64 numbers, to their rounding; −∞ below the normal numbers.

    With x = 2ⁿ m, m about 1, and s = (m − 1) / (m + 1) it is n log 2 + 2 (s + s³/3 + s⁵/5 + …).
    """

    def generate(context, builder, sig, args):
        wide = args[0].type
        integer = ir.VectorType(ir.IntType(64), x.width)

        def number(value, vector=wide):
            return ir.Constant(vector, [value] * x.width)

        # Counting exponents from that of √½ puts m between √½ and √2.
        half = 0x3FE6A09E667F3BCD
        bits = builder.sub(builder.bitcast(args[0], integer), number(half, integer))
        n = builder.ashr(bits, number(52, integer))
        rest = builder.and_(bits, number((1 << 52) - 1, integer))
        m = builder.bitcast(builder.add(rest, number(half, integer)), wide)
        s = builder.fdiv(builder.fsub(m, number(1.0)), builder.fadd(m, number(1.0)))
        square = builder.fmul(s, s)
        series = number(2 / 23)
        for j in reversed(range(11)):
            series = _fma(builder, series, square, number(2 / (2 * j + 1)))
        n = builder.sitofp(n, wide)
        value = _fma(builder, n, number(_LOG2_LOW), builder.fmul(series, s))
        value = _fma(builder, n, number(_LOG2_HIGH), value)
        finite = builder.fcmp_ordered("<", args[0], number(math.inf))
        value = builder.select(finite, value, args[0])
        small = builder.fcmp_ordered("<", args[0], number(2.0**-1022))
        return builder.select(small, number(-math.inf), value)

    return x(x), generate


@intrinsic
def next_ticket(typing, counter):
    """Returns ``counter[0]`` and increments it atomically: each thread gets another number."""

    def generate(context, builder, sig, args):
        data = arrayobj.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), generate
