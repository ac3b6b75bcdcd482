"""The tables in ``results`` are what records give; README and docs say nothing else."""

from pathlib import Path

import pytest

from softperm.lab.records import find_records
from softperm.lab.report import in_order, markdown
from softperm.lab.tables import cells_of

ROOT = Path(__file__).parents[2]
KEPT = sorted(path.parent for path in (ROOT / "results").glob("*/records"))
README, DOCS = ROOT / "README.md", ROOT / "docs" / "results.md"

SAID = {
    "as in the paper": "",
    "π-GNN as in the paper": "",
    "paper (quoted, whole grid)": "paper (quoted)",
    "logarithms of degree and triangles": "log-counts",
    "standardised degree and triangles": "standardised-counts",
    "no padding to the capacity": "no-capacity",
    "latent vertices ten times as large at the start": "harder-start",
    "a tenth as large": "softer-start",
    "final layer of 16 instead of 64": "final-layer-of-16",
    "one layer of 256 in the head instead of two": "one-layer-head",
    "100 epochs instead of 300": "100-epochs",
    "600 epochs instead of 300": "600-epochs",
    "600 epochs": "600-epochs",
    "epoch of the lowest validation loss": "by-loss",
    "first of equally good epochs, not the last": "first-of-equals",
    "softmax instead of Sinkhorn": "softmax",
    "5 iterations instead of 100": "5-iterations",
    "20 iterations": "20-iterations",
    "convolution head": "conv-head",
    "weight decay 0.001": "weight-decay",
    "no LayerNorm before the head": "no-norm",
    "learning rate of 0.0001": "slower",
}
"""Variants as the prose calls them."""


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_records_make_the_table_again(folder):
    table = (folder / "table.md").read_text(encoding="utf-8")
    title = table.partition("\n")[0].removeprefix("# ")
    assert markdown(in_order(cells_of(find_records(folder))), title) == table


def test_there_are_results():
    assert {"molecules", "protocol"} <= {folder.name for folder in KEPT}


def table_after(path: Path, opening: str) -> dict[tuple[str, str], str]:
    """The filled cells of the table whose first line starts so, by row and column."""
    lines = path.read_text(encoding="utf-8").splitlines()
    (first,) = [k for k, line in enumerate(lines) if line.startswith(opening)]
    _, *columns = (cell.strip() for cell in lines[first].strip("|").split("|"))
    found = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
        found |= {(name, c): cell for c, cell in zip(columns, cells, strict=True) if cell}
    assert found
    return found


def measured(name: str) -> dict[tuple[str, str], str]:
    """The filled cells of the main table of a folder of results."""
    return table_after(ROOT / "results" / name / "table.md", "|  |")


def test_the_readmes_classification_is_measured():
    calls = {
        "D&D": "DD",
        "Structure-free baseline": "Structure-free",
        "WL subtree kernel with an SVM": "WL subtree kernel",
        "GIN, Errica et al. (quoted)": "GIN, paper (quoted)",
        "GraphSAGE, Errica et al. (quoted)": "GraphSAGE, paper (quoted)",
    }
    said = table_after(README, "| accuracy, % | MUTAG | D&D")
    said |= table_after(README, "| accuracy, % | IMDB-BINARY")
    renamed = {tuple(calls.get(part, part) for part in at): cell for at, cell in said.items()}
    assert renamed == measured("protocol")


def test_the_readmes_encoders_are_measured():
    assert table_after(README, "| accuracy, %, with other encoders") == measured("encoders")


def test_the_readmes_molecules_are_measured():
    calls = {"QM9, U0": "u0", "QM9, G": "g298", "QM9, α": "alpha", "QM9, ZPVE": "zpve"}
    said = {
        (row, f"QM9-{calls[column]}" if column in calls else column): cell
        for (row, column), cell in table_after(README, "| molecules, one H200").items()
        if row  # not that of the units
    }
    found = measured("molecules")
    for folder in ("qm9-shortfalls", "ogb-shortfalls"):
        found |= {at: cell for at, cell in measured(folder).items() if at[0] == "π-GNN, no-norm"}
    ours = {(row.partition(" (`")[0], column): cell for (row, column), cell in said.items()}
    renamed = {(row.replace("no LayerNorm", "no-norm"), c): cell for (row, c), cell in ours.items()}
    assert renamed == found


def test_what_was_tried_on_molhiv_is_measured():
    said = table_after(DOCS, "| ogbg-molhiv, test ROC-AUC, %")
    ours = {row: cell for (row, _), cell in said.items()}
    found = measured("ogb-shortfalls")
    for row in [row for row in ours if "encoder" in row]:
        assert ours.pop(row) == found[f"π-GNN ({row.partition(' ')[0]})", "ogbg-molhiv"]
    assert {SAID[row]: cell for row, cell in ours.items()} == variants(
        found, "π-GNN", "ogbg-molhiv"
    )


@pytest.mark.parametrize(
    ("column", "target"),
    [("U0, Ha", "u0"), ("G, Ha", "g298"), ("α, bohr³", "alpha"), ("ZPVE, Ha", "zpve")],
)
def test_what_was_tried_on_qm9_is_measured(column, target):
    said = table_after(DOCS, "| QM9, test error, one seed")
    ours = {SAID.get(row, row): cell for (row, c), cell in said.items() if c == column}
    assert ours == variants(measured("qm9-shortfalls"), "π-GNN", f"QM9-{target}")


@pytest.mark.parametrize("model", ["π-GNN", "π-GNN-d"])
def test_what_was_tried_on_nci1_is_measured(model):
    said = table_after(DOCS, "| NCI1, accuracy, %")
    ours = {SAID[row]: cell for (row, column), cell in said.items() if column == model}
    assert ours == variants(measured("shortfalls"), model, "NCI1")


@pytest.mark.parametrize("dataset", ["COLLAB", "REDDIT-BINARY"])
def test_what_was_tried_on_large_collections_is_measured(dataset):
    said = table_after(DOCS, "| π-GNN-d, accuracy, %")
    ours = {SAID[row]: cell for (row, column), cell in said.items() if column == dataset}
    assert ours == variants(measured("shortfalls"), "π-GNN-d", dataset)


@pytest.mark.parametrize("dataset", ["MUTAG", "ENZYMES", "IMDB-BINARY"])
def test_what_each_choice_is_worth_is_measured(dataset):
    said = table_after(DOCS, "| accuracy, % | MUTAG | ENZYMES")
    ours = {row: cell for (row, column), cell in said.items() if column == dataset}
    found = measured("ablations")
    assert ours.pop("with dustbins (π-GNN-d)") == found["π-GNN-d", dataset]
    theirs = variants(found, "π-GNN", dataset)
    del theirs["paper (quoted)"]
    assert {SAID[row]: cell for row, cell in ours.items()} == theirs


def variants(found: dict[tuple[str, str], str], model: str, dataset: str) -> dict[str, str]:
    """A system's cells on a dataset, by variant; "" is the system itself."""
    made = {}
    for (row, column), cell in found.items():
        name, _, variant = row.partition(", ")
        if name == model and column == dataset:
            made[variant] = cell
    return made
