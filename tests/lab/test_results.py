"""The tables in ``results`` are what the records beside them give."""

from pathlib import Path

import pytest

from softperm.cli.evaluation_folder import classes_in
from softperm.lab.recipes import published
from softperm.lab.records import COLLECTED, find_records
from softperm.lab.report import as_csv, beside_the_paper, in_order, latex, markdown, paper_markdown
from softperm.lab.tables import cells_of

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob(f"*/{COLLECTED}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_make_the_same_tables_again(folder):
    cells = in_order(cells_of(find_records(folder)))
    table = (folder / "table.md").read_text(encoding="utf-8")
    title = table.partition("\n")[0].removeprefix("# ")
    assert markdown(cells, title, classes=classes_in(folder)) == table
    assert as_csv(cells) == (folder / "table.csv").read_text(encoding="utf-8")
    assert latex(cells) == (folder / "table.tex").read_text(encoding="utf-8")


def folders_of_the_page() -> tuple[list[Path], str]:
    """The folders that the first table of the results names, and the table."""
    page = (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    command, _, rest = page.partition("<!-- softperm report ")[2].partition(" --paper -->\n\n")
    return [RESULTS.parent / name for name in command.split()], rest.partition("<!-- end -->")[0]


def test_the_first_table_of_the_results_is_current():
    folders, table = folders_of_the_page()
    assert paper_markdown(folders) == table, "make it again: softperm report … --paper"


def test_every_number_of_the_paper_has_a_row_and_unmeasured_ones_are_empty():
    rows = beside_the_paper(folders_of_the_page()[0])
    numbers = [n for systems in published().values() for row in systems.values() for n in row]
    assert [row["dataset"] for row in rows] == numbers
    for row in rows:
        assert bool(row["ours"]) == bool(row["records"])
        assert row["reached"] in ("yes", "no") or not row["ours"] or row["paper"] == "OOR"
    of = {(row["system"], row["dataset"]): row for row in rows}
    assert of["π-GNN", "ENZYMES"]["reached"] == "no"  # 58.6 against 60.3, standard error 1.0
    assert of["π-GNN", "IMDB-MULTI"]["reached"] == "yes"  # 47.8 against 48.5, standard error 1.2
    assert of["π-GNN", "QM9-u0"]["reached"] == "no", "smaller errors are better"


def test_every_table_has_its_records():
    assert {"molecules", "protocol"} <= {folder.name for folder in FOLDERS}
    assert {path.parent for path in RESULTS.glob("**/table.md")} == set(FOLDERS)


def test_results_stay_small():
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 5e6
