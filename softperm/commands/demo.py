"""``softperm demo``: learn to tell generated graphs apart; no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.commands.console import give, ready_folder, say, warnings_as_lines


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a classifier on generated graphs, print its accuracy, leave pictures."""
    import networkx as nx

    from softperm import plots
    from softperm.estimators import PiGNNClassifier
    from softperm.graphs import as_graphs

    ready_folder(out)
    kinds = {
        "ring": lambda n, s: nx.watts_strogatz_graph(n, 4, 0.1, seed=s),
        "random": lambda n, s: nx.gnm_random_graph(n, 2 * n, seed=s),
        "scale-free": lambda n, s: nx.barabasi_albert_graph(n, 2, seed=s),
    }
    rows = [(make(12 + i % 14, i), kind) for i in range(120) for kind, make in kinds.items()]
    graphs, y = [graph for graph, _ in rows], [kind for _, kind in rows]
    say(f"{len(graphs)} generated graphs of {len(kinds)} kinds; every fourth is kept for the test")
    train = [i for i in range(len(graphs)) if i % 4]
    test = [i for i in range(len(graphs)) if not i % 4]
    model = PiGNNClassifier(latent_vertices=10, epochs=60, seed=0)
    with warnings_as_lines():
        model.fit([graphs[i] for i in train], [y[i] for i in train])
    model.save(out / "model")
    plots.save(plots.training_curve(model.curve_, model.best_epoch_), out / "curve")
    shown = [graphs[i] for i in test[:3]]
    for i, graph, d in zip(test, as_graphs(shown), model.permutations(shown), strict=False):
        plots.save(plots.alignment(graph, d, title=y[i]), out / f"graph-{i}")
    accuracy = float(model.score([graphs[i] for i in test], [y[i] for i in test]))
    give({"test_accuracy": accuracy, "test_graphs": len(test), "folder": str(out)}, as_json)
