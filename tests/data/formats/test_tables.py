"""Tables of molecules: columns found, missing values kept missing, bad rows named."""

import io
import re

import numpy as np
import pytest

from softperm.data.formats import read_graphs
from softperm.data.formats.tables import Table, Unreadable, as_column, parse_cells, read_table


def read(text: str, smiles_column: str | None = None, id_column: str | None = None) -> list:
    header, _, rows = text.partition("\n")
    return list(Table.of(header, "t.csv", smiles_column, id_column).records(2, rows.encode()))


@pytest.mark.parametrize("name", ["smiles", "SMILES", "Smiles", " smiles "])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_column_called_smiles_is_found_in_any_case_and_layout(name, delimiter):
    records = read(delimiter.join(["id", name, "y"]) + "\r\n" + delimiter.join("aC1") + "\r\n")
    assert [record.id for record in records] == ["C"]
    assert records[0].targets == {"id": "a", "y": "1"}


def test_another_column_may_be_named():
    assert [r.id for r in read("mol,smiles\nCC,not this\n", smiles_column="mol")] == ["CC"]


def test_a_column_of_names_may_be_named():
    (record,) = read("smiles,key,y\nC,m7,2\n", id_column="key")
    assert (record.id, record.graph, record.targets) == ("m7", "C", {"y": "2"})


def test_quoted_cells_and_blank_lines_are_as_in_every_csv():
    records = read('smiles,name\nC,"methane, plain"\n  \nCC,"two\nlines"\nCCC,x\n')
    assert [record.targets["name"] for record in records] == ["methane, plain", "two\nlines", "x"]
    assert [record.where for record in records] == ["t.csv line 2", "t.csv line 4", "t.csv line 6"]


@pytest.mark.parametrize(
    ("cells", "kind", "wanted"),
    [
        (["1", "0", "-3"], "i", [1, 0, -3]),
        (["1", "", "0"], "f", [1.0, np.nan, 0.0]),
        (["1.5", "NA", "nan"], "f", [1.5, np.nan, np.nan]),
        (["", "", ""], "f", [np.nan, np.nan, np.nan]),
        (["yes", "no", ""], "U", ["yes", "no", ""]),
        (["1", "two", "3"], "U", ["1", "two", "3"]),
        (["none", "na", "none"], "U", ["none", "na", "none"]),
        (["1_0", "2", "3"], "U", ["1_0", "2", "3"]),
        (["9" * 30, "1", "2"], "f", [float("9" * 30), 1.0, 2.0]),
        ([" 1 ", "2 ", " 3"], "i", [1, 2, 3]),
        ([str(2**63), str(2**63 + 1), ""], "U", [str(2**63), str(2**63 + 1), ""]),
        ([str(2**53), str(2**53 + 1), ""], "U", [str(2**53), str(2**53 + 1), ""]),
        (["1", "1", ""], "f", [1.0, 1.0, np.nan]),
        ([str(2**53), str(2**53 + 1), "0.5"], "f", [2.0**53, 2.0**53, 0.5]),
        (["9" * 400, "1", "-" + "9" * 400], "f", [np.inf, 1.0, -np.inf]),
    ],
)
def test_columns_take_the_type_of_their_cells(cells, kind, wanted):
    column = as_column(parse_cells(cells))
    assert column.dtype.kind == kind
    np.testing.assert_array_equal(column, wanted)


BAD = {
    "no SMILES": (
        "id,name\n1,2\n",
        "t.csv: expected a column 'smiles' of SMILES, found the columns id, name",
    ),
    "two of them": (
        "smiles,SMILES\nC,C\n",
        "found the columns smiles, SMILES; name it with smiles_column",
    ),
    "same name twice": ("smiles,a,a\nC,1,2\n", "t.csv: column 'a' appears twice"),
    "empty file": ("", "t.csv has no header line"),
    "short row": (
        "smiles,y\nC,1\nCC\n",
        "t.csv line 3: it has 1 cell, but the header names 2 columns",
    ),
    "long row": ("smiles,y\nC,1,2\n", "t.csv line 2: it has 3 cells"),
    "open quote": ('smiles,y\nC,1\nCC,"2\n', "t.csv line 3: it is not a table row"),
    "not SMILES": ("smiles,y\nC,1\nhello,0\n", "t.csv line 3: 'hello' is not valid SMILES"),
    "empty cell": ("smiles,y\nC,1\n,0\n", "t.csv line 3: '' is not valid SMILES"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_named_with_its_line(case, tmp_path):
    text, message = BAD[case]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_graphs(tmp_path / "t.csv")


def test_a_quote_that_is_never_closed_costs_its_own_line():
    records = read('smiles,y\nC,1\nCC,"2\nCCC,3\nCCCC,"4"\nCO,"two\nlines"\n')
    assert [isinstance(record, Unreadable) for record in records] == [False, True, *[False] * 3]
    assert [record.where[-6:] for record in records] == [f"line {n}" for n in (2, 3, 4, 5, 6)]


def test_an_error_about_a_missing_column_lists_the_columns():
    with pytest.raises(ValueError, match="column 'mol' of SMILES, found the columns smiles, y"):
        read("smiles,y\nC,1\n", smiles_column="mol")
    with pytest.raises(ValueError, match=r"t.csv has no column 'z'; its columns are: smiles, y"):
        read("smiles,y\nC,1\n", id_column="z")


def test_a_table_of_no_molecules_holds_no_graphs(tmp_path):
    (tmp_path / "t.csv").write_text("smiles,y\n")
    with pytest.raises(ValueError, match="holds no graphs"):
        read_graphs(tmp_path / "t.csv")


def test_a_blank_cell_of_the_only_column_is_a_row(tmp_path):
    (tmp_path / "t.csv").write_text('smiles\nCC\n""\nCCO\n')
    with pytest.raises(ValueError, match=r"t.csv line 3: '' is not valid SMILES"):
        read_graphs(tmp_path / "t.csv")


def test_rows_know_their_lines():
    header, rows = read_table(io.StringIO("a,b\n1,2\n\n3,4\n"), "t.csv")
    assert (header, rows) == (["a", "b"], [(2, ["1", "2"]), (4, ["3", "4"])])


def test_lines_that_end_in_carriage_returns_alone_are_refused():
    with pytest.raises(ValueError, match=r"t.csv has lines that end in .r alone"):
        read("smiles,y\rCCO,1\rCCC,0\r")


def test_an_error_names_twenty_columns_at_most():
    columns = ",".join(f"c{k}" for k in range(1000))
    with pytest.raises(ValueError, match=r"columns c0, .* c19, … and 980 more; name it"):
        read(columns + "\n")
