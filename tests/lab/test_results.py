"""The tables in ``results`` are what the records beside them give."""

from pathlib import Path

import pytest

from softperm.cli.evaluation_folder import classes_in
from softperm.lab.records import COLLECTED, find_records
from softperm.lab.report import as_csv, in_order, latex, markdown
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


def test_every_table_has_its_records():
    assert {"molecules", "protocol"} <= {folder.name for folder in FOLDERS}
    assert {path.parent for path in RESULTS.glob("**/table.md")} == set(FOLDERS)


def test_results_stay_small():
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 5e6
