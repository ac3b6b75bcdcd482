"""SMILES: atoms and bonds, and clear words when a string is not one."""

import csv
import gzip
import sys

import pytest
import torch

from softperm.data.graphs import as_graphs
from softperm.data.molecules import from_smiles

pytest.importorskip("rdkit")


def test_atoms_are_vertices_in_the_order_of_the_string():
    graph = from_smiles("OC(=O)C#N")
    assert graph.label == ["O", "C", "O", "C", "N"]
    bonds = {
        tuple(e): t for e, t in zip(graph.edge_index.T.tolist(), graph.edge_label, strict=True)
    }
    assert {e: t for e, t in bonds.items() if e[0] < e[1]} == {
        (0, 1): "SINGLE",
        (1, 2): "DOUBLE",
        (1, 3): "SINGLE",
        (3, 4): "TRIPLE",
    }
    assert all(bonds[v, u] == kind for (u, v), kind in bonds.items())


def test_benzene_is_a_ring_of_aromatic_bonds_however_it_is_written():
    for smiles in ("c1ccccc1", "C1=CC=CC=C1"):
        graph = from_smiles(smiles)
        assert graph.label == ["C"] * 6
        assert graph.edge_label == ["AROMATIC"] * 12


def test_hydrogens_become_vertices_on_request():
    assert from_smiles("C").num_nodes == 1
    methane = from_smiles("C", explicit_hydrogens=True)
    assert methane.label == ["C", "H", "H", "H", "H"]
    assert methane.edge_index[0].bincount().tolist() == [4, 1, 1, 1, 1]


def test_fragments_are_one_graph():
    assert from_smiles("[Na+].[Cl-]").label == ["Na", "Cl"]


def test_an_impossible_valence_is_still_a_graph():
    graph = from_smiles("C[Al-3](C)(C)(C)(C)(C)C")
    assert graph.edge_index[0].bincount().max() == 7
    ring = from_smiles("C[Al-3](C)(C)(C)(C)(C)C1=CC=CC=C1")
    assert ring.edge_label.count("AROMATIC") == 12


@pytest.mark.parametrize(
    "smiles", ["", "  ", "not a molecule", "CC junk", "C1CC", "xyz", "C(", "C%"]
)
def test_a_string_that_is_not_smiles_is_named(smiles):
    with pytest.raises(ValueError, match=r"^.* is not valid SMILES"):
        from_smiles(smiles)
    with pytest.raises(ValueError, match=r"^graph 2: .* is not valid SMILES"):
        as_graphs(["C", "CC", smiles])


def test_an_impossible_aromatic_ring_is_named():
    with pytest.raises(ValueError, match=r"'c1cccc1' is not a possible molecule .*kekulize"):
        from_smiles("c1cccc1")


def test_rdkit_does_not_write_to_the_terminal(capfd):
    with pytest.raises(ValueError):
        from_smiles("C1CC")
    from_smiles("C[Al-3](C)(C)(C)(C)(C)C")
    assert capfd.readouterr() == ("", "")


def test_without_rdkit_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"pip install softperm\[molecules\]"):
        as_graphs(["CCO"])


@pytest.mark.data
def test_molecules_that_do_not_sanitise_have_the_published_counts(data_root):
    path = data_root / "ogbg-molhiv" / "mapping" / "mol.csv.gz"
    with gzip.open(path, "rt") as stream:
        rows = [row["smiles"] for row in csv.DictReader(stream)]
    odd = as_graphs([rows[i] for i in (137, 987, 12882, 18293, 30784, 30785, 35728)])
    assert [graph.num_nodes for graph in odd] == [19, 19, 67, 31, 22, 23, 27]
    assert all(graph.edge_index.dtype == torch.int64 for graph in odd)
