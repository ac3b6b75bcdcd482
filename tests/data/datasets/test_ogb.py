"""OGB's molecule collections in their official layout, whole and damaged."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from file_server import FileServer

from softperm.data.datasets import load_dataset
from softperm.data.datasets.catalogue import find_entry
from softperm.data.datasets.molecules import ogb_recipe, unknown_files
from softperm.data.molecules import OGB, encode, parse_smiles
from softperm.progress import silent

SMILES = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C#N", "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"]
ROWS = ["1,,0", "0,1.0,", ",,", "1,1,1", "0,0,0.0"]


@pytest.fixture
def write_ogb(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``ogbg-molpcba`` below a data root, some lines repeated, and gives the data root."""

    def make(times: int = 1, header: str = "t1,t2,t3,smiles,mol_id", **files: str | bytes) -> Path:
        root = tmp_path / "root"
        lines = [f"{r},{s},CID{i}" for i, (r, s) in enumerate(zip(ROWS, SMILES, strict=True))]
        lines = lines * times
        cut = [len(lines) * 3 // 5, len(lines) * 4 // 5]
        numbers = [str(i) for i in range(len(lines))]
        texts: dict[str, str | bytes] = {
            "mapping/mol.csv.gz": "\n".join([header, *lines]) + "\n",
            "split/scaffold/train.csv.gz": "\n".join(numbers[: cut[0]]) + "\n",
            "split/scaffold/valid.csv.gz": "\n".join(numbers[cut[0] : cut[1]]) + "\n",
            "split/scaffold/test.csv.gz": "\n".join(numbers[cut[1] :]) + "\n",
            **{name.replace("__", "/") + ".csv.gz": text for name, text in files.items()},
        }
        for place, text in texts.items():
            path = root / "ogbg-molpcba" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else gzip.compress(text.encode()))
        return root

    return make


def test_molecules_labels_and_the_official_split_arrive(write_ogb: Callable) -> None:
    dataset = load_dataset("ogbg-molpcba", write_ogb())
    nan = float("nan")
    expected = torch.tensor([[1, nan, 0], [0, 1, nan], [nan] * 3, [1, 1, 1], [0, 0, 0]])
    torch.testing.assert_close(dataset.y, expected, equal_nan=True)
    assert dataset.task == "multilabel"
    assert dataset.target_names == ("t1", "t2", "t3")
    split = dataset.official_split
    assert [p.tolist() for p in (split.train, split.validation, split.test)] == [
        [0, 1, 2],
        [3],
        [4],
    ]
    made = encode([parse_smiles(s) for s in SMILES], OGB)
    np.testing.assert_array_equal(dataset.collection.label, made.atom)
    np.testing.assert_array_equal(dataset.collection.edge_label, made.bond)
    np.testing.assert_array_equal(dataset.collection.edge_index, made.edge_index)
    assert dataset.collection.attribute_size == 119 + 5 + 12 + 12 + 10 + 6 + 6 + 2 + 2
    assert dataset.collection.batch(torch.tensor([1])).edge_attr.shape == (12, 13)


def test_many_processes_give_what_one_gives(write_ogb: Callable, monkeypatch) -> None:
    monkeypatch.setattr("softperm.data.datasets.molecules._BATCH", 3)
    folder = write_ogb(times=4) / "ogbg-molpcba"
    told: list[tuple[str, int, int]] = []
    one, two = (
        list(ogb_recipe(find_entry("ogbg-molpcba"), folder, False, n).read(report).parts)
        for n, report in ((1, silent), (2, lambda *said: told.append(said)))
    )
    assert len(one) == len(two) == 7
    for left, right in zip(one, two, strict=True):
        for name in ("sizes", "edge_index", "label", "edge_label", "values"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert told[-1] == ("preparing ogbg-molpcba", 20, 20)


def test_the_official_archive_is_downloaded_and_read_in_place(
    write_ogb: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = write_ogb()
    expected = load_dataset("ogbg-molpcba", root).fingerprint
    with zipfile.ZipFile(tmp_path / "pcba.zip", "w") as archive:
        for path in sorted((root / "ogbg-molpcba").rglob("*.gz")):
            archive.write(path, f"pcba/{path.relative_to(root / 'ogbg-molpcba')}")
        archive.writestr("pcba/raw/edge.csv.gz", b"")
    server.files["/ogbg-molpcba.zip"] = (tmp_path / "pcba.zip").read_bytes()
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    assert load_dataset("ogbg-molpcba").fingerprint == expected


def test_downloaded_files_of_molhiv_must_be_the_known_ones(
    write_ogb: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_ogb() / "ogbg-molpcba"
    with zipfile.ZipFile(tmp_path / "hiv.zip", "w") as archive:
        for path in sorted(folder.rglob("*.gz")):
            archive.write(path, f"hiv/{path.relative_to(folder)}")
    server.files["/ogbg-molhiv.zip"] = (tmp_path / "hiv.zip").read_bytes()
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    with pytest.raises(
        ValueError, match=r"mapping/mol.csv.gz holds other data than the known file"
    ):
        load_dataset("ogbg-molhiv")


WHOLE = gzip.compress(b"t1,t2,t3,smiles,mol_id\n1,0,1,CCO,x\n" * 50)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"mapping__mol": WHOLE[:-12]}, r"mapping/mol.csv.gz is damaged .* fetch it again"),
        ({"mapping__mol": b"no gzip"}, r"mapping/mol.csv.gz is damaged"),
        ({"mapping__mol": ""}, r"mapping/mol.csv.gz holds no molecules"),
        (
            {"mapping__mol": "a,b\n1,2\n"},
            r"expected a column smiles and targets, found \['a', 'b'\]",
        ),
        (
            {"mapping__mol": "t1,smiles\n1,CCO\n1,CCO\n1,CCO\n1,CCO\n1\n"},
            r"graph 4: expected 2 columns, found 1; the table is cut short",
        ),
        (
            {"mapping__mol": "t1,smiles\n1,CCO\nx,CCO\n1,CCO\n1,CCO\n1,CCO\n"},
            r"graph 1: expected numbers or nothing as targets",
        ),
        (
            {"mapping__mol": "t1,smiles\n1,CCO\n1,CCO\n1,C(\n1,CCO\n1,CCO\n"},
            r"graph 2: 'C\(' is not valid SMILES",
        ),
        ({"split__scaffold__test": ""}, r"split/scaffold divides 4 molecules, but .* holds 5"),
        ({"split__scaffold__test": "four\n"}, r"test.csv.gz: expected one row number per line"),
    ],
)
def test_unusable_files_are_refused_and_read_after_correction(
    write_ogb: Callable, files: dict, sentence: str
) -> None:
    root = write_ogb(**files)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_dataset("ogbg-molpcba", root)
    assert "\n" not in str(caught.value)
    assert len(load_dataset("ogbg-molpcba", write_ogb())) == 5


def test_a_missing_split_is_an_error(write_ogb: Callable) -> None:
    root = write_ogb()
    (root / "ogbg-molpcba" / "split" / "scaffold" / "valid.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"split/scaffold/valid.csv.gz is missing; expected OGB's"):
        load_dataset("ogbg-molpcba", root)


def test_files_other_than_the_official_ones_are_named(write_ogb: Callable) -> None:
    folder = write_ogb() / "ogbg-molpcba"
    assert unknown_files(find_entry("ogbg-molpcba"), folder) == []  # nothing to compare with
    assert unknown_files(find_entry("ogbg-molhiv"), folder)[0] == "mapping/mol.csv.gz"


@pytest.mark.data
def test_the_local_files_of_molhiv_are_the_official_ones(data_root: Path) -> None:
    assert unknown_files(find_entry("ogbg-molhiv"), data_root / "ogbg-molhiv") == []
