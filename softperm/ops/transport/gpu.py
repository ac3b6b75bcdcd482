"""The transport on CUDA devices: fused forward and backward in Triton.

Every launch covers all problems of all models. The number of rows of a problem decides, on the
device, which launch solves it: nothing waits for the host, so the calls can be captured in a CUDA
graph. Problems that fit on chip are read once and written once; larger ones are divided among
groups of programs (``gpu_kernels``). The launches run concurrently. There are no
atomic sums: the same inputs give the same bits.

Sums are formed in the type of the scores. Potentials are float64, and the argument of an
exponential is summed with the digits of two float32, so that differences of scores in the tens of
thousands keep their precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.transport import Gradients, Problem, Solution

GROUP = 32
"""Largest number of programs that share a problem."""

MOST_COLUMNS = 1024
"""Largest number of columns: a thread then still holds some rows of all of them."""

SIDE_STREAMS = 3
"""Streams beside the current one; further launches share them."""


@dataclass(frozen=True)
class Tile:
    """Tiles of a launch: entries in float32 (half in float64), warps, registers per thread."""

    entries: int
    warps: int
    registers: int


CHIP = (Tile(1024, 1, 168), Tile(2048, 2, 168), Tile(4096, 4, 168), Tile(16384, 16, 128))
"""Tiles of problems that fit on chip: 32, 64, 128 and 512 rows at up to 32 columns."""

STREAM = Tile(8192, 8, 128)
"""Tiles of larger problems: half a multiprocessor, so that two trainings run concurrently."""


@dataclass(frozen=True)
class Layout:
    """How the problems of a call are divided into tiles.

    Attributes:
        models: number of models, M.
        problems: number of problems of all models, M · B.
        columns: number of columns with the dustbin, C.
        extra: number of extra rows, R.
        rows: largest number of rows of a problem, R included.
        groups: a tile has groups · lanes columns.
        lanes: neighbouring columns of a warp: as few as leave a thread not too many columns.
        chip: rows of the tiles of each launch on chip, ascending, with the tile.
        stream: rows of the tiles of the launch for larger problems.
        programs: programs of that launch; 0 if there are certainly no larger problems.
        slots: largest number of parts of larger problems.
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
    problem: Problem,
    iterations: int,
    tolerance: float,
    largest: int = -1,
    kept: int | None = None,
) -> Solution:
    """Solves all problems.

    Args:
        problem: the problems, on a GPU or, under Triton's interpreter, on the CPU.
        iterations: largest number of iterations.
        tolerance: when to stop early; in float32 the rule allows for rounding noise (see
            ``gpu_kernels.judge``).
        largest: upper bound of the number of vertices of a problem; −1 if unknown.
        kept: length of the history of potentials: iterations, or 1 if no gradient is needed.
    """
    from softperm.ops.transport.gpu_kernels import forward_chip, forward_stream

    inputs = _contiguous(*vars(problem).values())
    scores = inputs[0]
    layout = _layout(problem, largest)
    m, b, c = problem.column_mass.shape
    plan = torch.zeros_like(scores)
    kept = iterations if kept is None else kept
    history = scores.new_empty(m, b, kept, c, dtype=torch.float64)
    used = scores.new_empty(m, b, dtype=torch.int32)
    error = scores.new_empty(m, b)
    outputs = (plan, history, used, error)
    if layout.problems:
        scratch: tuple[Tensor, ...] = ()
        if layout.programs:
            rows = scores.shape[0] + layout.problems * layout.extra
            potential = scores.new_empty(rows, dtype=torch.float64)
            scratch = (*_scratch(layout, scores, plan), potential)
        settings = (iterations, kept, float(tolerance))
        launches = [
            *_stream(forward_stream, layout, scores, (*inputs, *outputs, *scratch), settings),
            *_chip(forward_chip, layout, scores, (*inputs, *outputs), settings),
        ]
        run_concurrently(launches, scores.device)
    return outputs


def backward(
    problem: Problem,
    grad_plan: Float[Tensor, "V P"],
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    tolerance: float,
    gradient: int,
    largest: int = -1,
) -> Gradients:
    """Gradients of scores, and for each problem of its extra rows and of its dustbin's score.

    They are 0 for vertices outside every problem or without mass.

    Args:
        problem: the problems.
        grad_plan: gradient with respect to the plan.
        history: column potentials that :func:`forward` returned.
        used: iterations that :func:`forward` used.
        tolerance: the tolerance of :func:`forward`.
        gradient: as for :func:`softperm.ops.transport.cpu.backward`.
        largest: as for :func:`forward`.
    """
    from softperm.ops.transport.gpu_kernels import backward_chip, backward_stream

    inputs = _contiguous(grad_plan, *vars(problem).values(), history, used)
    scores = inputs[1]
    layout = _layout(problem, largest)
    m, b, c = problem.column_mass.shape
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
        run_concurrently(launches, scores.device)
    return outputs


def _layout(problem: Problem, largest: int) -> Layout:
    """Chooses tiles from the sizes that the host has without waiting for the device."""
    scores = problem.scores
    m, b, c = problem.column_mass.shape
    v, r = scores.shape[0], problem.extra.shape[1]
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
    """Programs that run on the device at once; 1 under Triton's interpreter."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _chip(
    kernel: Any, layout: Layout, scores: Tensor, arrays: tuple, settings: tuple
) -> list[Launch]:
    """A launch for each size of tile that a problem may need, the largest first."""
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


def _stream(
    kernel: Any, layout: Layout, scores: Tensor, arrays: tuple, settings: tuple
) -> list[Launch]:
    """The launch of groups of programs for problems too large for a chip, if there can be any."""
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
    """Compile-time constants of every kernel: J, N, L, R, BIN and FAST."""
    dustbin = layout.columns - scores.shape[1]
    return layout.groups, rows, layout.lanes, layout.extra, dustbin, _fast(scores)


def _options(tile: Tile) -> dict[str, int | bool]:
    """Compiler options for a tile."""
    return {
        "num_warps": tile.warps,
        "num_stages": 1,
        "maxnreg": tile.registers,
        "enable_fp_fusion": True,
    }


def _scratch(layout: Layout, scores: Tensor, result: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for large problems: their K, the board for exchange within groups, and counters.

    The counters are the number of arrivals for each problem, then the number of the next part.
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
    """Whether to use the device's approximate reciprocals: on CUDA, in float32."""
    return scores.is_cuda and scores.dtype == torch.float32


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous and aligned tensors, which the kernels are compiled for."""
    return tuple(
        t if t.is_contiguous() and t.data_ptr() % 16 == 0 else t.clone().contiguous()
        for t in tensors
    )


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel.

    Attributes:
        kernel: the kernel.
        programs: number of programs.
        arguments: arguments that do not cause another compilation.
        constants: compile-time constants, passed after the arguments.
        options: compiler options.
    """

    kernel: Any  # Triton, which has its type, may be absent
    programs: int
    arguments: tuple
    constants: tuple
    options: dict[str, int | bool]

    @property
    def specialisation(self) -> tuple:
        """The key of its compilation: the kernel, the types of its arrays, its constants."""
        types = tuple(a.dtype for a in self.arguments if isinstance(a, torch.Tensor))
        return self.kernel, types, self.constants

    def run(self) -> None:
        """Launches on the current stream."""
        self.kernel[(self.programs,)](*self.arguments, *self.constants, **self.options)

    def compile(self) -> None:
        """Compiles without launching."""
        grid = (self.programs,)
        self.kernel.warmup(*self.arguments, *self.constants, grid=grid, **self.options)


def run_concurrently(launches: Sequence[Launch], device: torch.device) -> None:
    """Runs independent launches concurrently; later work on the current stream waits for all.

    The first, which should be the longest, runs on the current stream, and the others on streams
    of their own: parallel branches of a CUDA graph that is being captured.
    """
    if device.type != "cuda":
        for launch in launches:
            launch.run()
        return
    with torch.cuda.device(device):
        _compile(launches)
        current = torch.cuda.current_stream()
        fork = current.record_event()
        launches[0].run()
        for launch, stream in zip(launches[1:], cycle(_side_streams(device)), strict=False):
            with torch.cuda.stream(stream):
                stream.wait_event(fork)
                launch.run()
                current.wait_event(stream.record_event())


@cache
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """The streams used in addition to the current one."""
    return tuple(torch.cuda.Stream(device) for _ in range(SIDE_STREAMS))


_compiled: set[tuple] = set()


def _compile(launches: Sequence[Launch]) -> None:
    """Compiles new kernels in parallel: Triton's compiler releases the GIL."""
    specialisations = {(torch.cuda.current_device(), *launch.specialisation) for launch in launches}
    if specialisations <= _compiled:
        return
    from triton import AsyncCompileMode

    with ThreadPoolExecutor(len(launches)) as pool, AsyncCompileMode(pool):
        for launch in launches:
            launch.compile()
    _compiled.update(specialisations)
