"""Look-alikes: the index on QM9, NCI1 and IMDB-BINARY; pairs of molecules against other packages.

    python benchmarks/search.py [--queries 200] [--pairs 1000] [--out search.json] [PART ...]

Parts: ``qm9``, ``hydrogens`` (QM9 with hydrogen atoms), ``nci1``, ``imdb``, ``pairs``, ``reach``
(large molecules near each other, random graphs without labels), and ``vectors``: recall of the
exact ten nearest within the best 100 by learnt vector. Times are processor time of one thread
after compilation, so that other processes on the machine disturb them little; those of
myopic-mces contain its solver's process. myopic-mces (``pip install myopic-mces``) and RDKit's
RASCAL are compared if they are installed. Data comes from ``SOFTPERM_DATA``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import lzma
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np

from softperm import PiGNNAligner, frobenius_distance
from softperm.data.formats import read_graphs
from softperm.data.graphs import as_graphs
from softperm.data.molecules import from_smiles
from softperm.distance import EditCosts, edit_distance
from softperm.search import GraphIndex, VectorIndex

DATA = Path(os.environ.get("SOFTPERM_DATA", "data"))
BOND_ORDER = {"SINGLE": 1.0, "AROMATIC": 1.5, "DOUBLE": 2.0, "TRIPLE": 3.0}
THRESHOLD = 9  # edges: pairs up to this distance are near


def main() -> None:
    parts = {
        "qm9": qm9, "hydrogens": hydrogens, "nci1": nci1, "imdb": imdb, "pairs": pairs,
        "reach": reach, "vectors": vectors,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="PART")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=None, help="graphs to read of QM9")
    parser.add_argument("--epochs", type=int, default=None, help="of aligners")
    parser.add_argument("--sample", type=int, default=1000, help="graphs that aligners learn from")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    report = {"machine": f"{platform.machine()}, Python {platform.python_version()}", "rows": []}
    for part in options.parts or parts:
        for row in parts[part](options):
            print(json.dumps(row), flush=True)
            report["rows"].append(row)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def processor_seconds() -> float:
    """Processor time of this process and of the processes that it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def qm9(options, hydrogens: bool = False):
    with lzma.open(DATA / "qm9/qm9_130831.csv.xz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)][: options.limit]
    started = processor_seconds()
    if hydrogens:
        graphs = [from_smiles(text, explicit_hydrogens=True) for text in smiles]
    else:
        graphs = as_graphs(smiles)
    reading = processor_seconds() - started
    for substitution in (1.0, 0.0):
        name = f"QM9{' with hydrogens' * hydrogens}, edge substitution {substitution:g}"
        searches = {
            "10 nearest": lambda index, graph: index.nearest(graph, 10),
            "within 2": lambda index, graph: index.within(graph, 2),
            "within 4": lambda index, graph: index.within(graph, 4),
        }
        yield from measure(name, graphs, EditCosts.edges(substitution), searches, options, reading)


def hydrogens(options):
    yield from qm9(options, hydrogens=True)


def nci1(options):
    graphs = read_graphs(DATA / "tu/NCI1.zip").graphs
    yield from measure("NCI1", graphs, EditCosts.edges(), _within(4, 6, 8), options)


def imdb(options):
    graphs = read_graphs(DATA / "tu/IMDB-BINARY.zip").graphs
    yield from measure("IMDB-BINARY", graphs, EditCosts.edges(), _within(4, 8), options)


def vectors(options):
    """Recall of neighbours by vector, with and without labels; held-out queries on IMDB-BINARY."""
    with lzma.open(DATA / "qm9/qm9_130831.csv.xz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)][: options.limit]
    molecules = as_graphs(smiles)
    yield recall("QM9, labels", molecules, [], options)
    plain = [(graph.edge_index.T[graph.edge_index[0] < graph.edge_index[1]].numpy(),
              graph.num_nodes) for graph in molecules]  # fmt: skip
    yield recall("QM9, no labels", as_graphs(plain), [], options)
    films = read_graphs(DATA / "tu/IMDB-BINARY.zip").graphs
    order = np.random.default_rng(0).permutation(len(films)).tolist()
    held = [films[i] for i in order[:100]]
    yield recall("IMDB-BINARY, held-out queries", [films[i] for i in order[100:]], held, options)


def recall(name: str, graphs: list, queries: list, options) -> dict:
    """How many of the exact ten nearest are among the best 100 by vector."""
    settings = {} if options.epochs is None else {"epochs": options.epochs}
    started = processor_seconds()
    aligner = PiGNNAligner(sample=options.sample, progress=False, **settings).fit(graphs)
    fitting = processor_seconds() - started
    index = GraphIndex.build(graphs, canonical=True, costs=EditCosts.edges(2.0))
    started = processor_seconds()
    found = VectorIndex.build(index, aligner)
    building = processor_seconds() - started
    rows = np.random.default_rng(1).choice(len(graphs), options.queries, replace=False)
    shares, spent = [], []
    for query in queries[: options.queries] or [graphs[row] for row in rows]:
        exact = index.nearest(query, 10, time_limit=10)
        if exact.undecided:
            continue
        started = time.process_time()
        near = {hit.id for hit in found.nearest(query, 100)}
        spent.append(1e3 * (time.process_time() - started))
        last = exact.hits[-1].distance  # graphs as near as the tenth are as good
        wanted = {hit.id for hit in exact if hit.distance < last}
        ties = {hit.id for hit in index.within(query, last, time_limit=10)} - wanted
        places = len(exact) - len(wanted)
        shares.append((len(wanted & near) + min(places, len(ties & near))) / len(exact))
    return {
        "collection": name,
        "graphs": len(graphs),
        "queries_proven": len(shares),
        "recall_of_10_in_100": round(float(np.mean(shares)), 4),
        "fitting_seconds": round(fitting, 1),
        "building_seconds": round(building, 1),
        "median_milliseconds": round(float(np.median(spent)), 2),
        "proven_training_pairs": round(aligner.proven_pairs_, 4),
    }


def _within(*radii: float) -> dict[str, Callable]:
    """Searches with a second each."""
    return {
        f"within {radius}, 1 s": lambda index, graph, radius=radius: index.within(
            graph, radius, time_limit=1.0
        )
        for radius in radii
    }


def measure(name: str, graphs: list, costs: EditCosts, searches: dict, options, reading=0.0):
    """Figures of building, opening and searching an index."""
    GraphIndex.build(graphs[:20], canonical=True, costs=costs).nearest(graphs[0])
    started = processor_seconds()
    index = GraphIndex.build(graphs, canonical=True, costs=costs)
    building = processor_seconds() - started
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        opening = []
        for _ in range(5):
            started = time.perf_counter()
            index = GraphIndex.open(folder)
            opening.append(time.perf_counter() - started)
        segments = index._segments
        arrays = [a for s in segments for a in (s.vectors, s.packed.ptr, s.packed.edge_ptr)]
        written = sum(path.stat().st_size for path in Path(folder).iterdir())
        yield {
            "collection": name,
            "graphs": len(graphs),
            "reading_seconds": round(reading, 1),
            "building_seconds": round(building, 1),
            "opening_milliseconds": round(1e3 * min(opening), 1),
            "bytes_beside_the_graph": round(sum(a.nbytes for a in arrays) / len(graphs), 1),
            "bytes_in_all": round(written / len(graphs)),
        }
        rows = np.random.default_rng(0).choice(len(graphs), options.queries, replace=False)
        for search, function in searches.items():
            function(index, graphs[0])
            spent, results = [], []
            for row in rows:
                started = time.process_time()
                results.append(function(index, graphs[row]))
                spent.append(1e3 * (time.process_time() - started))
            yield {
                "collection": name,
                "search": search,
                "proven": round(float(np.mean([not r.undecided for r in results])), 4),
                "median_milliseconds": round(float(np.median(spent)), 2),
                "p99_milliseconds": round(float(np.quantile(spent, 0.99)), 1),
                "visited": round(float(np.mean([r.visited for r in results])), 1),
                "hits": round(float(np.mean([len(r) for r in results])), 1),
            }


def with_bond_orders(smiles: str):
    """A molecule whose bonds have orders as weights, as myopic-mces reads it."""
    graph = from_smiles(smiles)
    if "edge_label" in graph:
        import torch

        graph.edge_weight = torch.tensor([BOND_ORDER[name] for name in graph.edge_label])
        del graph.edge_label
    return graph


def pairs(options):
    """Near pairs of ogbg-molhiv: bond orders against myopic-mces, plain edges against RASCAL."""
    with gzip.open(DATA / "ogbg-molhiv/mapping/mol.csv.gz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    rng = np.random.default_rng(0)
    sample = rng.choice(len(smiles), 6000, replace=False)
    smiles = [smiles[k] for k in sample if "." not in smiles[k]]
    graphs = [from_smiles(text) for text in smiles]
    usable = [k for k, g in enumerate(graphs) if set(g.get("edge_label", [])) <= set(BOND_ORDER)]
    smiles, graphs = [smiles[k] for k in usable], [graphs[k] for k in usable]
    index = GraphIndex.build(graphs, canonical=True, costs=EditCosts.edges(0.0))
    near: list[tuple[int, int]] = []
    for row in rng.permutation(len(graphs)).tolist():
        hits = [h.id for h in index.within(graphs[row], THRESHOLD, time_limit=0.5) if h.id > row]
        near += [(row, other) for other in hits[:3]]
        if len(near) >= options.pairs:
            break
    yield from _against_mces(smiles, near)
    yield from _against_rascal(smiles, near)


def _against_mces(smiles: list[str], near: list[tuple[int, int]]):
    try:
        from myopic_mces.myopic_mces import MCES
    except ImportError:
        return
    ours, theirs, equal = [], [], 0
    for i, k in near:
        one, other = with_bond_orders(smiles[i]), with_bond_orders(smiles[k])
        started = processor_seconds()
        result = edit_distance(one, other, costs=EditCosts.edges(), at_most=THRESHOLD)
        ours.append(processor_seconds() - started)
        started = processor_seconds()
        value = MCES(
            smiles[i], smiles[k], threshold=THRESHOLD, solver="PULP_CBC_CMD",
            solver_options={"msg": 0, "threads": 1},
        )[1]  # fmt: skip
        theirs.append(processor_seconds() - started)
        if result.exact and result.distance <= THRESHOLD:
            equal += abs(value - result.distance) < 1e-6
        else:
            equal += value > THRESHOLD - 1e-6
    yield compared("myopic-mces, bond orders", near, ours, theirs, equal)


def _against_rascal(smiles: list[str], near: list[tuple[int, int]]):
    from rdkit import Chem
    from rdkit.Chem import rdRascalMCES

    settings = rdRascalMCES.RascalOptions()
    settings.similarityThreshold = 0.0
    settings.timeout = 20
    settings.completeAromaticRings = settings.ringMatchesRingOnly = False
    ours, theirs, equal = [], [], 0
    for i, k in near:
        graphs, molecules = [], []
        for text in (smiles[i], smiles[k]):
            graph = from_smiles(text)
            graphs.append(graph)
            molecules.append(Chem.MolFromSmiles(text))
        started = processor_seconds()
        result = edit_distance(*graphs, costs=EditCosts.edges(2.0))
        ours.append(processor_seconds() - started)
        started = processor_seconds()
        found = rdRascalMCES.FindMCES(molecules[0], molecules[1], settings)
        theirs.append(processor_seconds() - started)
        bonds = sum(molecule.GetNumBonds() for molecule in molecules)
        common = len(found[0].bondMatches()) if found else 0
        equal += result.distance == bonds - 2 * common
    yield compared("RASCAL, bond types", near, ours, theirs, equal)


def reach(options):
    """Near pairs of molecules of 45 to 55 heavy atoms, and pairs of random graphs."""
    with gzip.open(DATA / "ogbg-molhiv/mapping/mol.csv.gz", "rt") as file:
        long = [row["smiles"] for row in csv.DictReader(file) if len(row["smiles"]) > 45]
    graphs = [from_smiles(text) for text in long[:3000] if "." not in text]
    graphs = [graph for graph in graphs if 45 <= (graph.num_nodes or 0) <= 55]
    index = GraphIndex.build(graphs, canonical=True, costs=EditCosts.edges(0.0))
    near: list[tuple[int, int]] = []
    for row, graph in enumerate(graphs):
        listed = index.within(graph, 10, time_limit=0.7)
        hits = (*listed.hits, *listed.undecided)
        near += [(row, hit.id) for hit in hits if hit.id > row and 0 < hit.distance <= 10]
        if len(near) >= options.pairs:
            break
    for substitution in (0.0, 1.0):
        costs, spent, decided = EditCosts.edges(substitution), [], 0
        for i, k in near[: options.pairs]:
            started = time.process_time()
            result = edit_distance(graphs[i], graphs[k], costs=costs, at_most=10, time_limit=20)
            spent.append(1e3 * (time.process_time() - started))
            decided += result.exact or result.lower_bound > 10
        yield {
            "pairs of 45 to 55 atoms": len(spent),
            "edge_substitution": substitution,
            "decided": decided,
            "median_milliseconds": round(float(np.median(spent)), 2),
            "p90_milliseconds": round(float(np.quantile(spent, 0.9)), 1),
            "most_milliseconds": round(max(spent), 1),
        }
    for vertices, seed in itertools.product((18, 20), range(3)):
        pair = [nx.gnp_random_graph(vertices, 0.4, seed=2 * seed + k) for k in range(2)]
        started = time.process_time()
        result = frobenius_distance(*pair, time_limit=600)
        yield {
            "random_graphs": f"G({vertices}, 0.4), seed {seed}",
            "squared_distance": round(result.distance**2),
            "proven": result.exact,
            "seconds": round(time.process_time() - started, 1),
        }


def compared(name: str, near: list, ours: list[float], theirs: list[float], equal: int) -> dict:
    """Times of two programs on the same pairs."""
    one, other = 1e3 * np.array(ours), 1e3 * np.array(theirs)
    return {
        "against": name,
        "pairs": len(near),
        "equal_answers": int(equal),
        "median_milliseconds": round(float(np.median(one)), 2),
        "mean_milliseconds": round(float(one.mean()), 2),
        "their_median_milliseconds": round(float(np.median(other)), 2),
        "their_mean_milliseconds": round(float(other.mean()), 2),
        "ratio_of_means": round(float(other.mean() / one.mean()), 1),
    }


if __name__ == "__main__":
    main()
