"""Reports: tables with the paper's numbers as Markdown, LaTeX and CSV, and an HTML page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from softperm.data.datasets.catalogue import known_names
from softperm.estimators.pignn import UNIFORM_ENTROPY
from softperm.explore.plots import drawing, log_where_wide, plain_text, save
from softperm.files import CSVWriter, write_atomically
from softperm.lab.recipes import published, quoted, read_recipe
from softperm.lab.records import Record, find_records
from softperm.lab.systems import find_system, system_names
from softperm.lab.tables import PER_CENT, Cell, cells_of, paired_tests
from softperm.nn.permutation import Sharpness

MAJORITY = "Majority class"
QUOTED = ("paper (quoted)", "difference")  # columns that graphs of one's own leave empty
MOST_COLUMNS = 6  # of a table in letters of full size
MOST_CLASSES = 20  # of which a confusion matrix is shown
FEW = 6
"""Maximum number of systems for which a figure shows quartiles and an inner legend."""


def write_report(
    records: Iterable[Record],
    folder: Path,
    title: str,
    missing: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Path]:
    """Writes every form of the report.

    ``missing`` holds sentences about systems that the tables leave out, ``classes`` the names of
    the classes of datasets, which are numbers by default.

    Returns:
        The path of each form: ``markdown``, ``latex``, ``csv``, ``html``.

    Raises:
        ValueError: there are no records, or folds are missing.
    """
    cells = in_order(cells_of(records))
    if not cells:
        raise ValueError("there are no records to report on")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "markdown": ("table.md", markdown(cells, title, missing, classes)),
        "latex": ("table.tex", latex(cells)),
        "csv": ("table.csv", as_csv(cells)),
    }
    for name, content in texts.values():
        write_atomically(folder / name, content.encode())
    drawn: dict[str, Figure | None] = {}
    for dataset, group in _by_dataset(cells).items():
        with drawing(f"the training curves of {dataset}"):
            figure = training_curves(group)
            if figure is not None:
                save_small_png(figure, folder / f"curves-{dataset}.png")
                save(figure, folder / f"curves-{dataset}.svg")
            drawn[dataset] = figure
    _page(cells, drawn, title, missing, classes or {}).save(folder / "report.html")
    paths = {form: folder / name for form, (name, _) in texts.items()}
    return {**paths, "html": folder / "report.html"}


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Cells in the order of the catalogue of datasets, then of the registry of systems."""
    return sorted(cells, key=_place)


def _place(cell: Cell) -> tuple[int, str, tuple[int, str]]:
    datasets = known_names()
    known = [k for k, name in enumerate(datasets) if f"{cell.dataset}-".startswith(f"{name}-")]
    return known[-1] if known else len(datasets), cell.dataset, _rank(cell.model)


def _rank(model: str) -> tuple[int, str]:
    base, _, variant = find_system(model).name.partition("+")
    return system_names().index(base), variant


def shown(cell: Cell) -> str:
    """Mean ± standard deviation, in per cent for accuracy and the like; the mean of one score."""
    if cell.factor == 100:
        mean, std = f"{100 * cell.mean:.1f}", f"{100 * cell.std:.1f}"
    else:
        mean, std = f"{cell.mean:.4g}", f"{cell.std:.2g}"
    return f"{mean} ± {std}" if len(cell.scores) > 1 else mean


def grid(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The main table: a row for each system, followed by a row of the paper's numbers, if any."""
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    at = {(cell.dataset, cell.model): cell for cell in cells}
    rows = []
    for model in sorted(dict.fromkeys(cell.model for cell in cells), key=_rank):
        row = {dataset: at.get((dataset, model)) for dataset in datasets}
        measured = {d: "" if cell is None else shown(cell) for d, cell in row.items()}
        rows.append({"": _title(model), **measured})
        paper = {d: quoted(d, model) if cell is not None else None for d, cell in row.items()}
        if any(paper.values()):
            texts = {d: "" if number is None else str(number) for d, number in paper.items()}
            rows.append({"": f"{_title(model)}, paper (quoted)", **texts})
    shares = [(cell.dataset, cell.majority) for cell in cells if cell.majority]
    majority = {d: next((s for dataset, s in shares if dataset == d), ()) for d in datasets}
    if any(majority.values()):
        rows.append({"": MAJORITY, **{d: _spread(s) for d, s in majority.items()}})
    return rows


def beside_the_paper(folders: Iterable[Path]) -> list[dict[str, str]]:
    """Every number of the paper beside ours: a row for each system and dataset of its tables.

    Args:
        folders: folders of records; the first one that has a system on a dataset counts.

    Returns:
        Rows with the paper's number, ours, whether ours is at least as good or within one of our
        standard errors, and the folder of its records; the last three are empty if not measured.

    Raises:
        ValueError: folds are missing.
    """
    measured: dict[tuple[str, str], tuple[Cell, Path]] = {}
    for folder in folders:
        for cell in cells_of(find_records(folder)):
            measured.setdefault((cell.dataset, cell.model), (cell, folder))
    rows = []
    for table, systems in published().items():
        for model, datasets in systems.items():
            for dataset in datasets:
                row = {"table": table, "system": _title(model), "dataset": dataset}
                row |= {"paper": str(quoted(dataset, model)), "ours": "", "reached": ""}
                row["records"] = ""
                if (dataset, model) in measured:
                    cell, folder = measured[dataset, model]
                    row |= {"ours": shown(cell), "reached": _reached(cell)}
                    remarks = [f"`{folder.parent.name}/{folder.name}`", *_deviations(cell, table)]
                    row["records"] = ", ".join(remarks)
                rows.append(row)
    return rows


def paper_markdown(folders: Iterable[Path]) -> str:
    """The table of :func:`beside_the_paper` as Markdown, after a sentence that counts its rows."""
    rows = beside_the_paper(folders)
    known = [row["reached"] for row in rows if row["ours"]]
    count = (
        f"The paper has {len(rows)} numbers; {len(known)} are measured here, and "
        f"{known.count('yes')} of these reach the paper."
    )
    return f"{count}\n\n{_pipes(rows)}\n"


def _reached(cell: Cell) -> str:
    """Whether a cell is at least as good as the paper, or within one standard error of it."""
    paper = quoted(cell.dataset, cell.model)
    if paper is None or paper.mean is None:
        return ""
    gap = cell.factor * cell.mean - paper.mean
    worse = -gap if cell.higher_is_better else gap
    return "yes" if worse <= cell.factor * cell.error else "no"


_BASELINES = {
    "tu-table": "baselines-table", "ogb-table": "ogb-baselines", "qm9-table": "qm9-baselines",
}  # fmt: skip
"""The recipes of the other systems of a table."""


def _deviations(cell: Cell, table: str) -> list[str]:
    """Differences between the training of a cell and the recipe of its table."""
    settings = [record.run.configuration for record in cell.records]
    deviations = []
    if cell.model.startswith("pi-gnn") and any(
        each.get("latent_init") != "uniform" for each in settings
    ):
        deviations.append("earlier recipe")
    recipe = table if cell.model.startswith("pi-gnn") else _BASELINES.get(table, table)
    planned = read_recipe(recipe).training["epochs"]
    fewest = min(each.get("epochs", planned) for each in settings)
    return [*deviations, f"{fewest} of {planned} epochs"] if fewest < planned else deviations


def _spread(shares: Sequence[float]) -> str:
    """Mean ± standard deviation of shares in per cent; the mean of one; nothing of none."""
    if not shares:
        return ""
    mean = f"{100 * np.mean(shares):.1f}"
    return f"{mean} ± {100 * np.std(shares):.1f}" if len(shares) > 1 else mean


def classifications(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """A row for each system on each classification: accuracy, balanced accuracy and ROC-AUC."""
    rows: list[dict[str, str]] = []
    for dataset, group in _by_dataset(cells).items():
        known = [cell for cell in group if cell.confusion is not None]
        for cell in known:
            figures = (shown(cell), _spread(cell.balanced_accuracies), _spread(cell.roc_aucs))
            rows.append(_figures(dataset, cell.title, figures))
        if known:
            present = known[0].per_fold(lambda r: 1 / sum(map(any, r.confusion or [])))
            figures = (_spread(known[0].majority), _spread(present[:1]), "50.0")
            rows.append(_figures(dataset, MAJORITY, figures))
    return rows


def _figures(dataset: str, title: str, figures: Sequence[str]) -> dict[str, str]:
    names = ("accuracy, %", "balanced accuracy, %", "ROC-AUC, %")
    return {"dataset": dataset, "model": title, **dict(zip(names, figures, strict=True))}


def class_counts(
    cells: Sequence[Cell], classes: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, str]]:
    """A row for each classification: its test graphs of each class, in all folds."""
    rows = []
    for dataset, group in _by_dataset(cells).items():
        cell = next((cell for cell in group if cell.confusion is not None), None)
        if cell is None or cell.confusion is None:
            continue
        counts = cell.confusion.sum(axis=1) // cell.runs
        names = class_names(len(counts), (classes or {}).get(dataset))
        pairs = zip(names, counts.tolist(), strict=True)
        listed = ", ".join(f"{name}: {count}" for name, count in pairs)
        rows.append({"dataset": dataset, "graphs of each class": listed})
    return rows


def class_names(count: int, names: Sequence[str] | None) -> list[str]:
    """The names of classes; their codes where there are no names."""
    known = names is not None and len(names) == count
    return list(map(str, names)) if known and names is not None else [str(k) for k in range(count)]


def confusion(cell: Cell, classes: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The confusion matrix of a system: a row for each true class, a column for each predicted."""
    if cell.confusion is None:
        return []
    names = class_names(len(cell.confusion), classes)
    return [
        {"true class": name, **{f"as {n}": str(k) for n, k in zip(names, row, strict=True)}}
        for name, row in zip(names, cell.confusion.tolist(), strict=True)
    ]


def chosen(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """A row for each configuration that validation graphs selected, with its folds."""
    return [
        {
            "dataset": cell.dataset,
            "model": cell.title,
            "configuration": words,
            "folds": " ".join(map(str, folds)) if cell.folds > 1 else "the only one",
        }
        for cell in cells
        for words, folds in cell.selected.items()
    ]


def sharpness(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """A row for each system with soft permutations: how far they are from uniform ones."""
    return [
        {
            "dataset": cell.dataset,
            "model": cell.title,
            "row entropy": f"{cell.sharpness('row_entropy') or 0:.3f}",
            "share of the first component": f"{cell.sharpness('first_component') or 0:.3f}",
            "latent vertices in use": f"{cell.sharpness('used_latent_vertices') or 0:.1f}",
        }
        for cell in cells
        if cell.sharpness("row_entropy") is not None
    ]


def uniform_permutations(cells: Sequence[Cell]) -> list[str]:
    """A warning for each system whose soft permutations are nearly uniform."""
    return [
        f"{cell.title} on {cell.dataset}: the soft permutations are nearly uniform, so aligned "
        "matrices say little more than how many edges a graph has. Try compare = cosine, more "
        "vertex features, or more epochs."
        for cell in cells
        if (cell.sharpness("row_entropy") or 0) > UNIFORM_ENTROPY
    ]


def details(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """A row for each cell: errors, difference from the paper, cost and device."""
    rows = []
    for cell in cells:
        factor = cell.factor
        several = len(cell.scores) > 1
        paper = quoted(cell.dataset, cell.model)
        gap = ""
        if paper is not None and paper.mean is not None:
            gap = _signed(factor * cell.mean - paper.mean)
        rows.append(
            {
                "dataset": cell.dataset,
                "model": cell.title,
                "metric": cell.metric_name,
                "mean": f"{factor * cell.mean:.4g}",
                "std": f"{factor * cell.std:.3g}" if several else "",
                "standard error": f"{factor * cell.error:.3g}" if several else "",
                "paper (quoted)": "" if paper is None else str(paper),
                "difference": gap,
                "folds × runs": f"{cell.folds} × {cell.runs}",
                "epochs": _epochs(cell),
                "time": _duration(cell.seconds),
                "memory": _memory(cell),
                "device": ", ".join(cell.devices),
            }
        )
    empty = [name for name in QUOTED if not any(row[name] for row in rows)]
    return [{k: v for k, v in row.items() if k not in empty} for row in rows]


def _memory(cell: Cell) -> str:
    """Peak memory; jobs that run at the same time share it."""
    shared = f" ({cell.memory_shared_by} jobs)" if cell.memory_shared_by > 1 else ""
    return f"{cell.memory / 1e9:.2f} GB{shared}" if cell.memory else "unknown"


def _signed(difference: float) -> str:
    """A difference with its sign; rounding errors are 0."""
    return f"{round(difference, 9) + 0.0:+.3g}"


def _epochs(cell: Cell) -> str:
    """Maximum number of epochs of the final trainings; folds may have chosen differently."""
    trained = (r.run.configuration for r in cell.records if r.best_epoch)  # kernels have no epochs
    return " or ".join(map(str, sorted({c["epochs"] for c in trained if "epochs" in c})))


def numbers(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A mapping for each cell, for programs; accuracies are between 0 and 1."""
    own = ("dataset", "model", "metric", "mean", "std", "error", "scores", "folds", "runs",
           "seconds", "memory", "selected")  # fmt: skip
    rows = []
    for cell in cells:
        row = {"standard_error" if k == "error" else k: getattr(cell, k) for k in own}
        rows.append({**row, "scores": list(cell.scores), **_optional_numbers(cell)})
    return rows


def _optional_numbers(cell: Cell) -> dict[str, Any]:
    """Figures that some records lack: those of classifications and of permutations."""
    means = {
        "balanced_accuracy": cell.balanced_accuracies,
        "roc_auc": cell.roc_aucs,
        "majority": cell.majority,
    }
    figures: dict[str, Any] = {k: float(np.mean(v)) for k, v in means.items() if v}
    if cell.confusion is not None:
        figures["confusion"] = cell.confusion.tolist()
    measured = {f.name: cell.sharpness(f.name) for f in fields(Sharpness)}
    return figures | {name: value for name, value in measured.items() if value is not None}


def tests(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """A row for each pair of systems on the same folds."""
    return [
        {
            "dataset": t.dataset,
            "first": _title(t.first),
            "second": _title(t.second),
            "difference": _signed((100 if t.metric in PER_CENT else 1) * t.difference),
            "p, corrected t": _p_value(t.corrected_t),
            "p, Wilcoxon": _p_value(t.wilcoxon),
        }
        for t in paired_tests(cells)
    ]


def _p_value(p: float) -> str:
    """A p-value with three decimals."""
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def markdown(
    cells: Sequence[Cell],
    title: str,
    missing: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The report as Markdown."""
    parts = [f"# {_TAG.sub('&lt;', title)}", _caption(cells), _pipes(grid(cells))]
    if missing:
        parts.append(f"Not in the tables: {_TAG.sub('&lt;', '; '.join(missing))}.")
    for section in _sections(cells, classes or {}):
        parts += [section.text] if section.text else []
        parts += [_pipes(rows) for rows in section.tables]
        parts += section.warnings
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Section:
    """A part of the report after the main table.

    Attributes:
        tables: rows of each table.
        text: what stands before the tables; ``of_page`` on the page, if it says more there.
        heading: on the page.
        warnings: sentences after the tables; those of all sections begin the page.
    """

    tables: Sequence[Sequence[Mapping[str, str]]]
    text: str = ""
    heading: str = ""
    of_page: str = ""
    warnings: Sequence[str] = ()


def _sections(cells: Sequence[Cell], classes: Mapping[str, Sequence[str]]) -> Iterator[_Section]:
    """The parts of the report that have something to say."""
    if judged := classifications(cells):
        yield _Section([judged, class_counts(cells, classes)], heading="Classifications")
    for cell in cells:
        if cell.confusion is not None and len(cell.confusion) <= MOST_CLASSES:
            times = f", each graph {cell.runs} times" if cell.runs > 1 else ""
            caption = f"{cell.dataset}, {cell.title}: test graphs of all folds{times}, and what "
            table = confusion(cell, classes.get(cell.dataset))
            yield _Section([table], f"{caption}they were taken for.")
    if measured := sharpness(cells):
        warnings = uniform_permutations(cells)
        yield _Section([measured], SHARPNESS, "Soft permutations", warnings=warnings)
    yield _Section([details(cells)], heading="Details")
    if compared := tests(cells):
        text = "Paired tests over folds, p-values not corrected for the number of tests:"
        yield _Section([compared], text, "Paired tests", PAIRED)
    if selected := chosen(cells):
        text = "Configurations that validation graphs chose, by outer fold:"
        of_page = "What validation graphs chose in each outer fold, counted from 0."
        yield _Section([selected], text, "Chosen configurations", of_page)


SHARPNESS = (
    "Soft permutations of training graphs, mean of the final runs: row entropy 1 is uniform; a "
    "first component with all of the variance of the aligned matrices means that they say one "
    "number."
)
PAIRED = (
    "Over the same folds: t-test corrected for overlapping training sets (Nadeau and Bengio), and "
    "Wilcoxon's signed-rank test; p-values as they are, not corrected for the number of tests. "
    "Differences of shares in per cent."
)


def latex(cells: Sequence[Cell]) -> str:
    """The main table in LaTeX, for booktabs."""
    rows = grid(cells)
    head = list(rows[0])
    lines = [r"\begin{tabular}{l" + "c" * (len(head) - 1) + "}", r"\toprule"]
    lines.append(" & ".join(_tex(h) for h in head) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(_tex(c) for c in row.values()) + r" \\" for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def as_csv(cells: Sequence[Cell]) -> str:
    """A row for each dataset, system and fold, in full precision."""
    text = io.StringIO()
    writer = CSVWriter(text)
    writer.writerow(["dataset", "model", "metric", "fold", "score", "runs", "source"])
    for cell in cells:
        what = (cell.dataset, cell.model, cell.metric)
        for k, score in enumerate(cell.scores):
            writer.writerow([*what, k, repr(score), cell.runs, "measured"])
        paper = quoted(cell.dataset, cell.model)
        if paper is not None and paper.mean is not None:
            mean = paper.mean / cell.factor
            writer.writerow([*what, "", f"{mean:.10g}", "", "quoted"])
    return text.getvalue()


def _page(
    cells: Sequence[Cell],
    drawn: dict[str, Figure | None],
    title: str,
    missing: Sequence[str],
    classes: Mapping[str, Sequence[str]],
) -> Page:
    page = Page(title)
    page.paragraph(_caption(cells))
    page.table(grid(cells))
    if missing:
        page.paragraph(f"Not in the tables: {'; '.join(missing)}.")
    sections = list(_sections(cells, classes))
    for warning in chain.from_iterable(section.warnings for section in sections):
        page.paragraph(f"Warning: {warning}")
    for section in sections:
        if section.heading:
            page.heading(section.heading)
        if text := section.of_page or section.text:
            page.paragraph(text)
        for rows in section.tables:
            page.table(rows)
    if any(drawn.values()):
        page.heading("Training curves")
    for dataset, figure in drawn.items():
        if figure is not None:
            spread = "; shaded, of few systems, the middle half"
            page.figure(figure, f"{dataset}: mean of the final runs{spread}.")
    return page


def _caption(cells: Sequence[Cell]) -> str:
    versions = sorted(
        {
            f"softperm {r.circumstances.versions['softperm']}, torch "
            f"{r.circumstances.versions['torch']}"
            for c in cells
            for r in c.records
        }
    )
    devices = sorted({device for cell in cells for device in cell.devices})
    several = any(cell.folds > 1 for cell in cells)
    return (
        f"Mean ± standard deviation over {'outer folds' if several else 'runs'}; configuration and "
        "epoch chosen on validation graphs, test graphs touched once. Rows marked as quoted are "
        f"the paper's, all others measured: {'; '.join(devices)}; {'; '.join(versions)}."
    )


def _title(model: str) -> str:
    return find_system(model).title


def _by_dataset(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.dataset, []).append(cell)
    return groups


def _pipes(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(map(_in_markdown, line)) + " |" for line in lines)


def _in_markdown(text: str) -> str:
    """Text of a cell without separators, line ends and tags."""
    return _TAG.sub("&lt;", " ".join(text.split("\n"))).replace("|", "\\|")


_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def _tex(text: str) -> str:
    special = {c: f"\\{c}" for c in "&%_#${}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "π": r"$\pi$"}
    return text.translate(str.maketrans(special))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def training_curves(cells: Sequence[Cell]) -> Figure | None:
    """Mean validation loss and score of the final runs over epochs; quartiles for few systems.

    A run that stopped early counts up to its last epoch.
    """
    shown = [cell for cell in cells if any(_validated(record) for record in cell.records)]
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
            axis.plot(
                epochs, np.nanmean(table, 0), dashes, color=color, label=plain_text(cell.title)
            )
            if few and defined.any():
                low, high = np.nanquantile(table, [0.25, 0.75], axis=0)
                axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
            axis.set(xlabel="epoch", ylabel=f"validation {label}", title=plain_text(cell.dataset))
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        log_where_wide(axis)
    if few:
        axes[1].legend(frameon=False)
    else:
        named = axes[1].get_legend_handles_labels()
        figure.legend(*named, frameon=False, loc="outside right center")
    return figure


def _validated(record: Record) -> bool:
    """Whether a record has a curve of validation graphs."""
    return any(value is not None for value in record.curve.get("validation_loss", ()))


def save_small_png(figure: Figure, path: Path) -> None:
    """Saves a figure with 64 colours, a third of the size of a PNG in full colour."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=120)
    image = Image.open(full).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    write_atomically(path, small.getvalue())


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
.wide { overflow-x: auto; } .wide table { font-size: .85rem; }
h1, h2 { line-height: 1.2; } figure { margin: 1.5rem 0; } figcaption { color: #555; }
svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child, td.words { text-align: left; }
thead th { border-bottom: 2px solid #888; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
"""


def _table_cell(text: str) -> str:
    """A cell of a table; numbers are aligned right, words left."""
    words = text[:1].isalpha()
    return f"<td{' class=words' if words else ''}>{html.escape(text)}</td>"


class Page:
    """A page to which parts are added in order."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Adds the heading of a section."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Adds a paragraph of plain text."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Adds a table with a row for each mapping, whose keys are the columns."""
        columns = list(rows[0]) if rows else []
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(map(_table_cell, (str(row[c]) for c in columns))) + "</tr>"
            for row in rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        wide = len(columns) > MOST_COLUMNS
        self.parts.append(f"<div class='wide'>{table}</div>" if wide else table)

    def figure(self, figure: Figure, caption: str) -> None:
        """Adds a figure as inline SVG."""
        content = io.StringIO()
        figure.savefig(content, format="svg")
        drawing = content.getvalue()
        drawing = drawing[drawing.index("<svg") :]
        caption = html.escape(caption)
        self.parts.append(f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>")

    def save(self, path: Path) -> None:
        """Writes the page."""
        body = "\n".join(self.parts)
        text = (
            "<!doctype html>\n<html lang='en'>\n<head><meta charset='utf-8'>"
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n{body}\n</body>\n</html>\n"
        )
        write_atomically(path, text.encode())
