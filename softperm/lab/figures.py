"""Figures of reports: training curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from softperm.explore.plots import log_where_wide
from softperm.files import write_atomically
from softperm.lab.tables import Cell

FEW = 6
"""Maximum number of systems for which a figure shows quartiles and an inner legend."""


def training_curves(cells: Sequence[Cell]) -> Figure | None:
    """Mean validation loss and score of the final runs over epochs; quartiles for few systems.

    A run that stopped early counts up to its last epoch.

    Args:
        cells: systems on one dataset.

    Returns:
        The figure; None if no record has a curve.
    """
    shown = [cell for cell in cells if any(r.curve for r in cell.records)]
    if not shown:
        return None
    few = len(shown) <= FEW
    figure = Figure(figsize=(11 if few else 14, max(3.8, 0.25 * len(shown))), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = [(f"C{k % 10}", ("-", "--", ":", "-.")[k // 10 % 4]) for k in range(len(shown))]
    panels = {"validation_loss": ("loss", 1), "validation_score": ("", 1)}
    for cell, (color, dashes) in zip(shown, styles, strict=True):
        panels["validation_score"] = (cell.metric_name, cell.factor)
        for axis, (name, (label, factor)) in zip(axes, panels.items(), strict=True):
            rows = [r.curve[name] for r in cell.records if r.curve]
            table = factor * np.array(list(zip_longest(*rows)), dtype=float).T  # (runs, epochs)
            defined = np.isfinite(table).any(0)
            table, epochs = table[:, defined], np.flatnonzero(defined) + 1
            axis.plot(epochs, np.nanmean(table, 0), dashes, color=color, label=cell.title)
            if few and defined.any():
                low, high = np.nanquantile(table, [0.25, 0.75], axis=0)
                axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
            axis.set(xlabel="epoch", ylabel=f"validation {label}", title=cell.dataset)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        log_where_wide(axis)
    if few:
        axes[1].legend(frameon=False)
    else:
        named = axes[1].get_legend_handles_labels()
        figure.legend(*named, frameon=False, loc="outside right center")
    return figure


def save_small_png(figure: Figure, path: Path) -> None:
    """Saves a figure with 64 colours, a third of the size of a PNG in full colour."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=120)
    image = Image.open(full).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    write_atomically(path, small.getvalue())
