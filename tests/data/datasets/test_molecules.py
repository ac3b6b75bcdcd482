"""Molecules to graphs: OGB's features, atom by atom."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from softperm.data.molecules import (
    ATOM_FEATURES,
    BOND_FEATURES,
    OGB,
    Molecules,
    encode,
    parse_smiles,
)

UNSANITARY = (137, 987, 12882, 18293, 30784, 30785, 35728)  # rows of ogbg-molhiv
OXALATE = "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"  # row 137: aluminium with six bonds


def graph(smiles: str) -> Molecules:
    return encode([parse_smiles(smiles)], OGB)


@pytest.mark.parametrize(
    ("smiles", "atom", "codes"),
    [
        ("CCO", 0, [5, 0, 4, 5, 3, 0, 2, 0, 0]),
        ("CCO", 2, [7, 0, 2, 5, 1, 0, 2, 0, 0]),
        ("C#N", 0, [5, 0, 2, 5, 1, 0, 0, 0, 0]),
        ("c1ccccc1", 3, [5, 0, 3, 5, 1, 0, 1, 1, 1]),
        ("Cl[C@H](/C=C/C)Br", 1, [5, 2, 4, 5, 1, 0, 2, 0, 0]),  # the example of OGB's source
        ("Cl[C@@H](/C=C/C)Br", 1, [5, 1, 4, 5, 1, 0, 2, 0, 0]),
        ("[Na+].[Cl-]", 0, [10, 0, 0, 6, 0, 0, 5, 0, 0]),
        ("[CH3]", 0, [5, 0, 3, 5, 3, 1, 2, 0, 0]),
        ("*C", 0, [118, 0, 1, 5, 0, 0, 5, 0, 0]),
        ("F[P-](F)(F)(F)(F)F", 1, [14, 0, 6, 4, 0, 0, 4, 0, 0]),
        (OXALATE, 3, [12, 0, 6, 5, 0, 0, 3, 0, 1]),
        (OXALATE, 0, [7, 0, 1, 5, 0, 0, 1, 0, 0]),
        (OXALATE, 1, [5, 0, 3, 5, 0, 0, 1, 0, 1]),
    ],
)
def test_atoms_have_the_features_of_ogb(smiles: str, atom: int, codes: list[int]) -> None:
    assert graph(smiles).atom[atom].tolist() == codes


@pytest.mark.parametrize(
    ("smiles", "ends", "codes"),
    [
        ("CCO", (0, 1), [0, 0, 0]),
        ("C#N", (1, 0), [2, 0, 0]),
        ("c1ccccc1", (5, 0), [3, 0, 1]),
        ("Cl[C@H](/C=C/C)Br", (2, 3), [1, 2, 0]),  # the example of OGB's source
        ("Cl[C@H](/C=C\\C)Br", (3, 2), [1, 1, 0]),
        ("C=CC=C", (1, 2), [0, 0, 1]),
        ("[NH3]->[Fe]", (0, 1), [4, 0, 0]),
        (OXALATE, (3, 12), [0, 0, 0]),
        (OXALATE, (1, 5), [0, 0, 1]),
    ],
)
def test_bonds_have_the_features_of_ogb(smiles: str, ends: tuple, codes: list[int]) -> None:
    made = graph(smiles)
    (at,) = np.flatnonzero((ends == made.edge_index.T).all(axis=1))
    assert made.bond[at].tolist() == codes


def test_molecules_lie_end_to_end_with_sorted_edges() -> None:
    made = encode([parse_smiles(s) for s in ("CCO", "O", "C1CC1")], OGB)
    assert made.sizes.tolist() == [3, 1, 3]
    assert made.edge_counts.tolist() == [4, 0, 6]
    assert made.edge_index.tolist() == [
        [0, 1, 1, 2, 0, 0, 1, 1, 2, 2],
        [1, 0, 2, 1, 1, 2, 0, 2, 0, 1],
    ]


def test_codes_stay_within_their_vocabularies() -> None:
    sizes = [len(v) for v in ATOM_FEATURES.values()]
    assert sizes == [119, 5, 12, 12, 10, 6, 6, 2, 2]
    assert [len(v) for v in BOND_FEATURES.values()] == [5, 6, 2]


def test_a_string_that_is_not_a_molecule_is_named() -> None:
    with pytest.raises(ValueError, match="'nonsense' is not valid SMILES"):
        parse_smiles("nonsense")


def rows_of_molhiv(data_root: Path) -> list[str]:
    with gzip.open(data_root / "ogbg-molhiv" / "mapping" / "mol.csv.gz", "rt") as text:
        return [row["smiles"] for row in csv.DictReader(text)]


@pytest.mark.data
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_features_equal_those_of_ogb(count: int, data_root: Path) -> None:
    mol = pytest.importorskip("ogb.utils.mol")
    smiles = rows_of_molhiv(data_root)
    chosen = [i for i in range(3, len(smiles), 40_000 // count) if i not in UNSANITARY]
    assert len(chosen) >= count
    made = encode([parse_smiles(smiles[i]) for i in chosen], OGB)
    v = e = 0
    for k, i in enumerate(chosen):
        theirs = mol.smiles2graph(smiles[i])
        order = np.lexsort(theirs["edge_index"][::-1])
        atoms, edges = slice(v, v + made.sizes[k]), slice(e, e + made.edge_counts[k])
        np.testing.assert_array_equal(made.atom[atoms], theirs["node_feat"])
        np.testing.assert_array_equal(made.edge_index[:, edges], theirs["edge_index"][:, order])
        np.testing.assert_array_equal(made.bond[edges], theirs["edge_feat"][order])
        v, e = atoms.stop, edges.stop


@pytest.mark.data
def test_the_seven_that_do_not_sanitise_have_ogb_features_too(data_root: Path) -> None:
    features = pytest.importorskip("ogb.utils.features")
    smiles = rows_of_molhiv(data_root)
    for i in UNSANITARY:
        mol = parse_smiles(smiles[i])
        made = encode([mol], OGB)
        theirs = [features.atom_to_feature_vector(atom) for atom in mol.GetAtoms()]
        np.testing.assert_array_equal(made.atom, theirs)
        assert made.edge_counts[0] == 2 * mol.GetNumBonds()
        assert made.atom[:, 2].max() >= 3  # degrees were worked out, not left at nothing
