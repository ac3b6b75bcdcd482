"""The tables in ``results`` are what the records beside them give."""

from pathlib import Path

import pytest

from softperm.lab.records import find_records
from softperm.lab.report import in_order, markdown
from softperm.lab.tables import cells_of

RESULTS = Path(__file__).parents[2] / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("*/records"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_records_make_the_table_again(folder):
    table = (folder / "table.md").read_text(encoding="utf-8")
    title = table.partition("\n")[0].removeprefix("# ")
    assert markdown(in_order(cells_of(find_records(folder))), title) == table


def test_there_are_results():
    assert {"molecules", "protocol"} <= {folder.name for folder in KEPT}
