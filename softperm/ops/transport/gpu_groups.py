"""How problems too large for one program are divided among groups of programs.

All programs are on the device at once (a cooperative launch). The rows of the large problems are
cut into parts of about equal size, at most GROUP for a problem, numbered through all problems, and
whoever is free takes the next number: problems differ in their iterations, and who meets a long one
takes fewer. The parts of a problem exchange what concerns its columns through memory and wait for
each other there. Nobody can wait for ever: of the first unfinished problem, which has at most as
many parts as there are programs, every part is taken as soon as those before it are done.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from softperm.ops.transport.gpu_rules import LOWEST
from softperm.ops.transport.gpu_tiles import flat_columns, flat_rows, over_rows, store_columns

SCAN = tl.constexpr(512)


@triton.jit
@no_type_check
def _sizes(ptr, begin, problems, B, lower, R: tl.constexpr):
    """Rows of SCAN problems; 0 for those that fit on chip."""
    problem = begin + tl.arange(0, SCAN)
    inside = problem < problems
    at = problem + problem // B
    n = tl.load(ptr + at + 1, mask=inside, other=0) - tl.load(ptr + at, mask=inside, other=0)
    return tl.where(inside & (n + R > lower), n + R, 0)


@triton.jit
@no_type_check
def rows_per_part(ptr, problems, B, lower, programs, R: tl.constexpr, N: tl.constexpr):
    """Rows a part should have so that every program gets one: at least a tile."""
    rows = tl.zeros([], tl.int64)
    for begin in range(0, problems, SCAN):
        rows += tl.sum(_sizes(ptr, begin, problems, B, lower, R), 0)
    return tl.maximum(tl.cdiv(rows, programs), N)


@triton.jit
@no_type_check
def locate(ptr, problems, B, lower, q, rows, R: tl.constexpr, GROUP: tl.constexpr):
    """Problem of part q, its place among the parts of the problem, and their number; 0 if none."""
    problem = tl.zeros([], tl.int64)
    place = tl.zeros([], tl.int64)
    parts = tl.zeros([], tl.int64)
    before = tl.zeros([], tl.int64)
    for begin in range(0, problems, SCAN):
        size = _sizes(ptr, begin, problems, B, lower, R)
        count = tl.minimum(tl.cdiv(size, rows), GROUP)
        end = before + tl.cumsum(count, 0)
        mine = (q < end) & (q >= end - count)
        problem += tl.sum(tl.where(mine, begin + tl.arange(0, SCAN), 0), 0)
        place += tl.sum(tl.where(mine, q - (end - count), 0), 0)
        parts += tl.sum(tl.where(mine, count, 0), 0)
        before += tl.sum(count, 0)
    return problem, place, parts


@triton.jit
@no_type_check
def exchange(
    x, board, counter, place, parts, turn, C,
    GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Sum of x (J, 1, L) over the parts of a problem: the same bits in all of them.

    ``board`` has two pages with two vectors for each part, used in turns: who writes a page for the
    second time has seen every part arrive at the other page, so all have read the first.

    Returns:
        The sum, in the type of the board, and the next turn.
    """
    x = x.to(board.dtype.element_ty)
    turn += parts * 0
    if parts > 1:
        page = board + (turn % 2) * parts * 2 * C
        store_columns(page + place * 2 * C, x, C, J, L)
        turn = _meet(counter, parts, turn)
        x = over_rows(_read(page, parts, C, 0.0, GROUP, J, L))
    return x, turn


@triton.jit
@no_type_check
def exchange_sums(
    top, total, board, counter, place, parts, turn, C,
    GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """As ``exchange``, for sums ``total`` in units of exp(top), which each part has of its own.

    Returns:
        The largest top, the sum in its units in the type of the board, and the next turn.
    """
    dtype: tl.constexpr = total.dtype
    total = total.to(board.dtype.element_ty)
    turn += parts * 0
    if parts > 1:
        page = board + (turn % 2) * parts * 2 * C
        store_columns(page + place * 2 * C, top, C, J, L)
        store_columns(page + place * 2 * C + C, total, C, J, L)
        turn = _meet(counter, parts, turn)
        tops = _read(page, parts, C, LOWEST, GROUP, J, L)
        totals = _read(page + C, parts, C, 0.0, GROUP, J, L)
        top = tl.max(tops, 1, keep_dims=True)
        total = over_rows(totals * tl.exp((tops - top).to(dtype)))
    return top, total, turn


@triton.jit
@no_type_check
def _meet(counter, parts, turn):
    """Waits for all parts of a problem; what they wrote before can be read then."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < parts * (turn + 1):
        pass
    return turn + 1


@triton.jit
@no_type_check
def _read(
    page, parts, C, other: tl.constexpr, GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr
):
    """The first vectors of all parts on a page: (J, GROUP, L)."""
    at = flat_rows(J, GROUP)
    col = flat_columns(J, GROUP, L)
    inside = (at < parts) & (col < C)
    every = tl.load(page + at * 2 * C + col, mask=inside, other=other, cache_modifier=".cg")
    return tl.reshape(every, (J, GROUP, L))
