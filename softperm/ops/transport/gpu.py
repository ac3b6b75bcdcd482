"""The transport on CUDA devices: fused forward and backward in Triton.

Every launch covers all problems of all models, and every problem is solved by one of them, which
its number of rows decides on the device: nothing waits for the host, so the calls can be captured
in a CUDA graph. Problems that fit on chip are read once and written once (``gpu_chip``); larger
ones are divided among groups of programs (``gpu_stream``). The launches run side by side. There
are no atomic sums: the same inputs give the same bits.

Sums are formed in the type of the scores. Potentials are float64, and what goes into an exponential
is summed with the digits of two float32, so that scores in the tens of thousands keep their
differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.transport.gpu_launch import Launch, run_side_by_side

GROUP = 32
"""Programs that share a large problem, at most."""

MOST_COLUMNS = 1024
"""Columns that the kernels take, at most: a thread then still holds some rows of all of them."""


@dataclass(frozen=True)
class Tile:
    """Tiles of a launch: entries in float32, half as many in float64; warps; registers a thread."""

    entries: int
    warps: int
    registers: int


CHIP = (Tile(1024, 1, 168), Tile(4096, 4, 168), Tile(16384, 16, 128))
"""Tiles of problems that fit on chip: 32, 128 and 512 rows at up to 32 columns."""

STREAM = Tile(8192, 8, 128)
"""Tiles of larger problems: half a multiprocessor, for two trainings that run side by side."""


@dataclass(frozen=True)
class Layout:
    """How the problems of a call are laid out in tiles.

    Attributes:
        models: number of models, M.
        problems: number of problems of all models, M · B.
        columns: number of columns with the dustbin, C.
        extra: number of extra rows, R.
        rows: of a problem, at most, R included.
        groups: tiles hold groups · lanes columns.
        lanes: columns side by side in a warp, as few as leave a thread not too many of its own.
        chip: rows of the tiles of each launch on chip, ascending, with the tile.
        stream: rows of the tiles of the launch for larger problems.
        programs: programs of that launch; 0 if there can be no larger problems.
        slots: parts of larger problems that there can be, at most.
    """

    models: int
    problems: int
    columns: int
    extra: int
    rows: int
    groups: int
    lanes: int
    chip: tuple[tuple[int, Tile], ...]
    stream: int
    programs: int
    slots: int

    @property
    def on_chip(self) -> int:
        """Rows of the largest problems that fit on chip."""
        return self.chip[-1][0] if self.chip else -1


def forward(
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, "M B1"],
    row_mass: Float[Tensor, " V"],
    column_mass: Float[Tensor, "M B C"],
    extra: Float[Tensor, "M R C"],
    extra_mass: Float[Tensor, "M B R"],
    bin_score: Float[Tensor, " M"],
    iterations: int,
    tolerance: float,
    largest: int = -1,
) -> tuple[
    Float[Tensor, "V P"], Float[Tensor, "M B T C"], Int[Tensor, "M B"], Float[Tensor, "M B"]
]:
    """Plans of all problems; see :class:`softperm.ops.transport.problem.Problem` for the arrays.

    Args:
        scores: score of each vertex for each latent vertex.
        ptr: where each problem's vertices begin and end, for each model.
        row_mass: mass of each vertex's row.
        column_mass: mass of each column.
        extra: scores of the extra rows.
        extra_mass: mass of the extra rows.
        bin_score: score of the dustbin column.
        iterations: at most how many.
        tolerance: when to stop early; in float32 the rule allows for rounding noise (see
            ``gpu_rules.judge``).
        largest: no problem has more vertices than this; −1 where that is not known.

    Returns:
        The plan, the float64 column potentials after each iteration that was run, the iterations
        used, and the largest relative column error that is left.
    """
    from softperm.ops.transport.gpu_chip import forward_chip
    from softperm.ops.transport.gpu_stream import forward_stream

    inputs = _contiguous(scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    scores = inputs[0]
    layout = _layout(scores, column_mass, extra, largest)
    m, b, c = column_mass.shape
    plan = torch.zeros_like(scores)
    history = scores.new_empty(m, b, iterations, c, dtype=torch.float64)
    used = scores.new_empty(m, b, dtype=torch.int32)
    error = scores.new_empty(m, b)
    outputs = (plan, history, used, error)
    if layout.problems:
        scratch: tuple[Tensor, ...] = ()
        if layout.programs:
            rows = scores.shape[0] + layout.problems * layout.extra
            potential = scores.new_empty(rows, dtype=torch.float64)
            scratch = (*_scratch(layout, scores, plan), potential)
        settings = (iterations, float(tolerance))
        launches = [
            *_stream(forward_stream, layout, scores, (*inputs, *outputs, *scratch), settings),
            *_chip(forward_chip, layout, scores, (*inputs, *outputs), settings),
        ]
        run_side_by_side(launches, scores.device)
    return outputs


def backward(
    grad_plan: Float[Tensor, "V P"],
    plan: Float[Tensor, "V P"],
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, "M B1"],
    row_mass: Float[Tensor, " V"],
    column_mass: Float[Tensor, "M B C"],
    extra: Float[Tensor, "M R C"],
    extra_mass: Float[Tensor, "M B R"],
    bin_score: Float[Tensor, " M"],
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    error: Float[Tensor, "M B"],
    tolerance: float,
    gradient: int,
    largest: int = -1,
) -> tuple[Float[Tensor, "V P"], Float[Tensor, "M B R C"], Float[Tensor, "M B"]]:
    """Gradients with respect to scores, and per problem to the extra rows and the bin score.

    Args:
        grad_plan: gradient with respect to the plan.
        plan: the plan; it is formed anew from ``history``, which is more exact.
        scores: as for :func:`forward`, like the next six.
        ptr: where each problem's vertices begin and end, for each model.
        row_mass: mass of each vertex's row.
        column_mass: mass of each column.
        extra: scores of the extra rows.
        extra_mass: mass of the extra rows.
        bin_score: score of the dustbin column.
        history: from :func:`forward`, like the next two.
        used: iterations used.
        error: error left.
        tolerance: with which the problems were solved.
        gradient: 1 for that of the truncated iteration, 2 for that of the fixed point, where the
            series for it converges; 0 for the fixed point's where a problem stopped early at a
            tolerance below 1e-3.
        largest: as for :func:`forward`.

    Returns:
        The gradients, 0 for vertices outside every problem or without mass.
    """
    from softperm.ops.transport.gpu_chip import backward_chip
    from softperm.ops.transport.gpu_stream_backward import backward_stream

    inputs = _contiguous(
        grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, history, used
    )
    scores = inputs[1]
    layout = _layout(scores, column_mass, extra, largest)
    m, b, c = column_mass.shape
    iterations = history.shape[2]
    d_scores = torch.zeros_like(scores)
    d_extra = scores.new_empty(m, b, layout.extra, c)
    d_bin = scores.new_zeros(m, b)
    outputs = (d_scores, d_extra, d_bin)
    implicit = (int(tolerance < 1e-3), 0, 2)[gradient]
    if layout.problems:
        scratch = _scratch(layout, scores, d_scores) if layout.programs else ()
        scratch += (scores.new_empty(layout.programs * iterations * c),)
        settings = (iterations, implicit)
        launches = [
            *_stream(backward_stream, layout, scores, (*inputs, *outputs, *scratch), settings),
            *_chip(backward_chip, layout, scores, (*inputs, *outputs), settings),
        ]
        run_side_by_side(launches, scores.device)
    return outputs


def _layout(scores: Tensor, column_mass: Tensor, extra: Tensor, largest: int) -> Layout:
    """Chooses tiles by what is known without asking the device."""
    m, b, c = column_mass.shape
    v, r = scores.shape[0], extra.shape[1]
    if c > MOST_COLUMNS:
        raise ValueError(
            f"the GPU kernels take at most {MOST_COLUMNS} columns, dustbin included; got {c}; "
            "use backend='reference'"
        )
    width = max(8, 1 << (c - 1).bit_length())
    lanes = min(32, max(8, width // 8))
    share = max(32, width) * scores.element_size() // 4
    chip = tuple((t.entries // share, t) for t in CHIP if t.entries // share > r)
    on_chip = chip[-1][0] if chip else -1
    rows = r + (v if largest < 0 else min(v, largest))
    larger = m * b
    if on_chip >= r:
        larger = min(larger, v // (on_chip - r + 1)) if rows > on_chip else 0
    programs = _multiprocessors(scores.device) if larger else 0
    return Layout(
        models=m,
        problems=m * b,
        columns=c,
        extra=r,
        rows=rows,
        groups=width // lanes,
        lanes=lanes,
        chip=chip,
        stream=STREAM.entries // share,
        programs=programs,
        slots=programs + larger,
    )


@cache
def _multiprocessors(device: torch.device) -> int:
    """Programs that are on the device at once; 1 off the GPU, where Triton's interpreter runs."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _chip(kernel, layout: Layout, scores: Tensor, arrays: tuple, settings: tuple) -> list[Launch]:
    """A launch for each size of tile that some problem may need, the largest first."""
    p = scores.shape[1]
    lowers = [-1, *(rows for rows, _ in layout.chip)]
    return [
        Launch(
            kernel,
            layout.problems,
            (*arrays, layout.problems // layout.models, p, *settings, lower),
            _constants(layout, scores, rows),
            _options(tile),
        )
        for lower, (rows, tile) in zip(lowers, layout.chip, strict=False)
        if lower < layout.rows
    ][::-1]


def _stream(kernel, layout: Layout, scores: Tensor, arrays: tuple, settings: tuple) -> list[Launch]:
    """The launch of groups of programs for problems too large for a chip, if there may be any."""
    v, p = scores.shape
    b = layout.problems // layout.models
    launch = Launch(
        kernel,
        layout.programs,
        (*arrays, layout.problems, b, v, p, *settings, layout.on_chip),
        (*_constants(layout, scores, layout.stream), GROUP),
        _options(STREAM) | {"launch_cooperative_grid": True},
    )
    return [launch] if layout.programs else []


def _constants(layout: Layout, scores: Tensor, rows: int) -> tuple[int | bool, ...]:
    """What every kernel is compiled for: J, N, L, R, BIN and FAST."""
    dustbin = layout.columns - scores.shape[1]
    return layout.groups, rows, layout.lanes, layout.extra, dustbin, _fast(scores)


def _options(tile: Tile) -> dict[str, int | bool]:
    """How to compile for a tile."""
    return {
        "num_warps": tile.warps,
        "num_stages": 1,
        "maxnreg": tile.registers,
        "enable_fp_fusion": True,
    }


def _scratch(layout: Layout, scores: Tensor, result: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for large problems: their K, the board where groups exchange, and counters.

    A counter of arrivals for each problem, and last the number of the next part to be taken.
    """
    v, p = scores.shape
    if layout.extra or layout.columns > p:
        kernel = scores.new_empty(v + layout.problems * layout.extra, layout.columns)
    else:
        kernel = result  # K has the shape of the result, which is written last
    board = scores.new_empty(4 * layout.slots * layout.columns, dtype=torch.float64)
    counter = scores.new_zeros(layout.problems + 1, dtype=torch.int32)
    return kernel, board, counter


def _fast(scores: Tensor) -> bool:
    """Whether the device's approximate reciprocals serve: on CUDA, in float32."""
    return scores.is_cuda and scores.dtype == torch.float32


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous, and aligned as whole tensors are: kernels are compiled for that."""
    return tuple(
        t if t.is_contiguous() and t.data_ptr() % 16 == 0 else t.clone().contiguous()
        for t in tensors
    )
