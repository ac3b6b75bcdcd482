"""``softperm explain``: the vertices, edges and attributes that a model's predictions rest on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import echo, lines, naming_graphs, print_result, ready_file, ready_folder
from softperm.cli.inputs import (
    Json,
    ModelInput,
    Run,
    Source,
    load_model,
    output_option,
    read_for,
    with_shared,
)
from softperm.files import CSVWriter, appearing, write_atomically
from softperm.progress import progress_bars
from softperm.settings import names_in

if TYPE_CHECKING:
    from softperm.data.collection import Collection
    from softperm.estimators.pignn import PiGNNEstimator
    from softperm.nn.attribution import Explanation

PICTURED = 50  # pictures without --graphs
CURVES = ("removed", "largest_first", "smallest_first", "random")
"""Columns of a deletion curve."""


@with_shared
def explain(
    run: Run,
    data: Source,
    options: ModelInput,
    out: Annotated[
        Path, output_option(help="Table: .csv, or .jsonl with one graph per line.")
    ] = Path("explanations.csv"),
    graphs: Annotated[
        str | None, typer.Option(help="IDs of graphs, separated by commas; all by default.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Class or target to explain; by default all, in the table.")
    ] = None,
    through_network: Annotated[
        bool,
        typer.Option(
            "--through-network/--fixed-permutation",
            help="Explain how features change the soft permutation too, or hold it fixed: faster, "
            "with separate contributions of edges.",
        ),
    ] = True,
    probabilities: Annotated[
        bool, typer.Option(help="Explain probabilities in place of logits.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="Largest relative error of the sums of contributions.")
    ] = 1e-4,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder of pictures to write, one for each graph.")
    ] = None,
    deletion: Annotated[
        Path | None, typer.Option(help="CSV file of deletion curves to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain each prediction by the contributions of vertices, edges and attributes.

    The contributions of a graph add up to its output minus that of the same graph with features of
    zero or, with --fixed-permutation, of the empty graph. If a network and a forest predict
    together, the network's part is explained. Pictures shade vertices by their contribution to
    --output, by default the predicted class, and edges by theirs with their shares of those of
    their vertices. Deletion curves show how the output falls when the largest contributions are
    removed first.
    """
    writers = {".csv": _write_csv, ".jsonl": _write_json}
    if out.suffix not in writers:
        raise ValueError(f"--out must end in .csv or .jsonl; got {out}")
    for path in (out, deletion):
        if path is not None:
            ready_file(path, data)
    if pictures is not None:
        ready_folder(pictures)
    import torch

    with lines(), progress_bars() as report:
        estimator = load_model(run, options.device)
        source = read_for(estimator, data, options)
        index = _chosen(source.ids, graphs)
        with naming_graphs(source.ids):
            collection = estimator.collect(source.graphs)
        explanations = estimator.iterate_explanations(
            collection, index=index, through_network=through_network,
            probabilities=probabilities, tolerance=tolerance,
        )  # fmt: skip
        number = _output_number(estimator, output)
        gains, words, error = [], "", 0.0
        with _appearing(out) as table, _appearing(deletion) as curves:
            write = writers[out.suffix](table, number)
            points = None if curves is None else CSVWriter(curves)
            if points is not None:
                from softperm.explain import deletion_curve

                points.writerow(["graph", "output", *CURVES])
            for done, (i, explanation) in enumerate(zip(index, explanations, strict=True)):
                report("explaining", done, len(index))
                name = source.ids[i]
                write(name, explanation)
                words, error = explanation.explains, max(error, explanation.relative_error)
                if points is not None:
                    graph = collection.select(torch.tensor([i]))
                    curve = deletion_curve(estimator, graph, explanation, output=number)
                    shown = explanation.output_names[curve.output]
                    rows = zip(*(getattr(curve, column).tolist() for column in CURVES), strict=True)
                    points.writerows([name, shown, *row] for row in rows)
                    gains.append(curve.gain)
                if pictures is not None and (graphs is not None or done < PICTURED):
                    stem = f"{done:04d}-{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:40]}"
                    _draw(pictures / stem, estimator, collection, i, name, explanation, number)
        report("explaining", len(index), len(index))
    if pictures is not None and graphs is None and len(index) > PICTURED:
        echo(f"drew the first {PICTURED} graphs; name others with --graphs")
    result: dict[str, Any] = {"graphs": len(index), "explains": words, "largest_error": error}
    if gains:
        result["mean_deletion_gain"] = sum(gains) / len(gains)
    print_result({**result, "explanations": str(out)}, as_json)


def _chosen(ids: Sequence[str], graphs: str | None) -> list[int]:
    """The places of the graphs with the given IDs."""
    if graphs is None:
        return list(range(len(ids)))
    places = {name: i for i, name in enumerate(ids)}
    names = names_in(graphs)
    if unknown := [name for name in names if name not in places]:
        raise ValueError(f"--graphs: there is no graph {unknown[0]!r}; the first is {ids[0]!r}")
    return [places[name] for name in names]


def _output_number(estimator: PiGNNEstimator, output: str | None) -> int | None:
    if output is None:
        return None
    names = estimator._explanation_names()["output_names"]
    if output not in names:
        raise ValueError(f"--output: there is no {output!r}; choose one of {', '.join(names)}")
    return names.index(output)


@contextmanager
def _appearing(path: Path | None) -> Iterator[Any]:
    """A text file that appears when it is whole; None without a path."""
    if path is None:
        yield None
        return
    with appearing(path) as stream, TextIOWrapper(stream, encoding="utf-8", newline="") as text:
        yield text


def _write_csv(stream: Any, output: int | None) -> Callable[[str, Explanation], None]:
    writer = CSVWriter(stream)
    writer.writerow(["graph", "kind", "u", "v", "attribute", "output", "contribution"])

    def write(name: str, explanation: Explanation) -> None:
        chosen = None if output is None else explanation.output_names[output]
        for row in explanation.table():
            if chosen is None or row.output == chosen:
                v = "" if row.v is None else row.v
                writer.writerow(
                    [name, row.kind, row.u, v, row.attribute, row.output, row.contribution]
                )

    return write


def _write_json(stream: Any, output: int | None) -> Callable[[str, Explanation], None]:
    def write(name: str, explanation: Explanation) -> None:
        outputs = range(len(explanation.outputs)) if output is None else [output]
        content = {
            "graph": name,
            "explains": explanation.explains,
            "edges": explanation.edge_index.T.tolist(),
            "outputs": [
                {
                    "name": explanation.output_names[c],
                    "output": float(explanation.outputs[c]),
                    "baseline": float(explanation.baseline[c]),
                    "vertex_contributions": explanation.vertices[:, c].tolist(),
                    "edge_contributions": explanation.edges[:, c].tolist(),
                    "edge_totals": explanation.edge_totals[:, c].tolist(),
                }
                for c in outputs
            ],
        }
        stream.write(json.dumps(content, allow_nan=False) + "\n")

    return write


def _draw(
    path: Path,
    estimator: PiGNNEstimator,
    collection: Collection,
    i: int,
    name: str,
    explanation: Explanation,
    output: int | None,
) -> None:
    """Writes the picture of a molecule as SVG, if the graph's name is its SMILES; else a PNG."""
    from softperm.explain import draw_explanation, draw_molecule
    from softperm.explore.plots import save
    from softperm.pyg import Data

    labels = _labels(estimator, collection, i)
    if estimator.molecules_ is not None or _is_molecule(name, labels):
        picture = draw_molecule(name, explanation, output)
        write_atomically(path.with_name(f"{path.name}.svg"), picture)
        return
    graph = Data() if labels is None else Data(label=labels)
    figure = draw_explanation(graph, explanation, output, name)
    save(figure, path.with_name(f"{path.name}.png"))


def _labels(estimator: PiGNNEstimator, collection: Collection, i: int) -> list[Any] | None:
    """The first label of each vertex of a graph, as the training graphs have them."""
    if collection.label is None or not estimator.vocabulary_.labels:
        return None
    names = estimator.vocabulary_.labels[0]
    begin, end = collection.ptr[i : i + 2].tolist()
    codes = collection.label[begin:end, 0].tolist()
    return [names[code] if code >= 0 else "?" for code in codes]


def _is_molecule(name: str, labels: list[Any] | None) -> bool:
    """Whether a graph's name is the SMILES of which its vertices are the heavy atoms."""
    from softperm.data.molecules import parse_smiles

    try:
        return labels == [atom.GetSymbol() for atom in parse_smiles(name).GetAtoms()]
    except (ImportError, ValueError):
        return False
