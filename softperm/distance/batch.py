"""Many pairs in one compiled call, which lets other threads run meanwhile."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int
from numba import njit

from softperm.distance.pack import Packed, pair_of
from softperm.distance.search import search_briefly


@njit(cache=True, nogil=True)
@no_type_check
def solve_pairs(
    packed: Packed,
    first: Int[np.ndarray, " K"],
    second: Int[np.ndarray, " K"],
    largest: int,
    glance: int,
    effort: int,
    cost: Float[np.ndarray, " K"],
    solved: Bool[np.ndarray, " K"],
) -> None:
    """Search each pair briefly; the short searches are nearly all of them.

    Args:
        packed: the graphs.
        first: number of the first graph of each pair.
        second: number of the second graph of each pair.
        largest: vertices past which a pair is left alone.
        glance: relaxations spent on a pair without probing.
        effort: relaxations times squared vertices spent on a pair with probing.
        cost: least cost of each pair, written where the search came to its end.
        solved: whether it did, written.
    """
    for k in range(first.size):
        pair = pair_of(packed, first[k], second[k])
        solved[k] = False
        if pair.a.shape[0] <= largest:
            tree, _, solved[k] = search_briefly(pair, glance, effort)
            cost[k] = tree.value[0]
