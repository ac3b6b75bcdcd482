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

from softperm.transport.gpu_rules import LOWEST
from softperm.transport.gpu_tiles import flat_columns, flat_rows, over_rows, store_columns

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
    LARGEST: tl.constexpr, GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Sum, or largest, of x (J, 1, L) over the parts of a problem: the same bits in all of them.

    ``board`` has two pages with a vector for each part, used in turns: who writes a page for the
    second time has seen every part arrive at the other page, so all have read the first.

    Returns:
        The sum, in the type of the board, and the next turn.
    """
    x = x.to(board.dtype.element_ty)
    turn += parts * 0
    if parts > 1:
        page = board + (turn % 2) * parts * C
        store_columns(page + place * C, x, C, J, L)
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release")
        while tl.atomic_add(counter, 0, sem="acquire") < parts * (turn + 1):
            pass
        at = flat_rows(J, GROUP)
        col = flat_columns(J, GROUP, L)
        every = tl.load(
            page + at * C + col,
            mask=(at < parts) & (col < C),
            other=LOWEST if LARGEST else 0.0,
            cache_modifier=".cg",
        )
        every = tl.reshape(every, (J, GROUP, L))
        if LARGEST:
            x = tl.max(every, 1, keep_dims=True)
        else:
            x = over_rows(every)
        turn += 1
    return x, turn
