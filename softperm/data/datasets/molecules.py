"""Molecules to graphs: OGB's nine atom and three bond features, many molecules at a time.

Nothing here imports torch, so a worker process starts in the time RDKit takes to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

try:
    from rdkit import Chem, rdBase
    from rdkit.Chem import Atom, Bond, Mol
except ImportError as error:
    raise ImportError(
        "molecules need RDKit, which is not installed: pip install softperm[molecules]"
    ) from error

_MISC = "misc"
_CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", _MISC)
_HYBRIDIZATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2", _MISC)
_BOND = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", _MISC)
_STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


def _numbers(first: int, last: int) -> tuple[str, ...]:
    return (*(str(n) for n in range(first, last + 1)), _MISC)


ATOM_FEATURES: dict[str, tuple[str, ...]] = {
    "atomic number": _numbers(1, 118),
    "chirality": _CHIRALITY,
    "degree": _numbers(0, 10),
    "formal charge": _numbers(-5, 5),
    "hydrogens": _numbers(0, 8),
    "radical electrons": _numbers(0, 4),
    "hybridization": _HYBRIDIZATION,
    "aromatic": ("no", "yes"),
    "in a ring": ("no", "yes"),
}
"""OGB's atom features: name, and what each code stands for."""

BOND_FEATURES: dict[str, tuple[str, ...]] = {
    "bond type": _BOND,
    "stereo": _STEREO,
    "conjugated": ("no", "yes"),
}
"""OGB's bond features: name, and what each code stands for."""


@dataclass(frozen=True)
class Encoding:
    """Which features of atoms and bonds become labels.

    Args:
        atom_features: name of each atom feature, and what its codes stand for.
        bond_features: name of each bond feature, and what its codes stand for.
        atom: the codes of an atom, one for each feature.
        bond: the codes of a bond, one for each feature.
    """

    atom_features: dict[str, tuple[str, ...]]
    bond_features: dict[str, tuple[str, ...]]
    atom: Callable[[Atom], tuple[int, ...]]
    bond: Callable[[Bond], tuple[int, ...]]


@dataclass(frozen=True)
class Molecules:
    """Molecules laid end to end.

    Args:
        sizes: atoms of each molecule.
        edge_counts: directed edges of each molecule, two for a bond.
        edge_index: both directions of every bond, atoms numbered within their molecule, sorted.
        atom: codes of the atom features.
        bond: codes of the bond features, one row for each directed edge.
    """

    sizes: Int[np.ndarray, " b"]
    edge_counts: Int[np.ndarray, " b"]
    edge_index: Int[np.ndarray, "2 e"]
    atom: Int[np.ndarray, "v L"]
    bond: Int[np.ndarray, "e Le"]


def parse_smiles(smiles: str, where: str) -> Mol:
    """Read a molecule the way OGB does, also where current RDKit refuses it.

    Seven molecules of ogbg-molhiv have valences that RDKit accepted when the benchmark was made and
    refuses now. They are read without that check; every other step (rings, aromaticity,
    conjugation, hybridization) is still done.

    Args:
        smiles: the molecule.
        where: which graph it is, for the error message.

    Returns:
        RDKit's molecule.

    Raises:
        ValueError: if it is not a SMILES string.
    """
    with rdBase.BlockLogs():  # what RDKit would print is in our own error
        mol = Chem.MolFromSmiles(smiles)
        if mol is not None:
            return mol
        mol = Chem.MolFromSmiles(smiles, sanitize=False)
        if mol is None:
            raise ValueError(f"{where}: expected a SMILES string, found {smiles!r}")
        return sanitise_leniently(mol)


def sanitise_leniently(mol: Mol) -> Mol:
    """Everything RDKit's sanitisation works out, but without refusing unusual valences.

    Args:
        mol: a molecule as parsed; changed in place.

    Returns:
        The same molecule.
    """
    mol.UpdatePropertyCache(strict=False)
    steps = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_PROPERTIES
    Chem.SanitizeMol(mol, sanitizeOps=steps, catchErrors=True)
    return mol


def encode(mols: Iterable[Mol], encoding: Encoding) -> Molecules:
    """Lay molecules end to end.

    Args:
        mols: RDKit's molecules.
        encoding: the features of their atoms and bonds.

    Returns:
        Their graphs.
    """
    sizes, edge_counts, atoms, rows, columns, bonds = [], [], [], [], [], []
    for mol in mols:
        sizes.append(mol.GetNumAtoms())
        atoms.extend(encoding.atom(atom) for atom in mol.GetAtoms())
        edges = []
        for bond in mol.GetBonds():
            u, v, codes = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), encoding.bond(bond)
            edges += [(u, v, codes), (v, u, codes)]
        edges.sort()
        edge_counts.append(len(edges))
        rows.extend(u for u, _, _ in edges)
        columns.extend(v for _, v, _ in edges)
        bonds.extend(codes for _, _, codes in edges)
    return Molecules(
        sizes=np.array(sizes, dtype=np.int64),
        edge_counts=np.array(edge_counts, dtype=np.int64),
        edge_index=np.array([rows, columns], dtype=np.int32),
        atom=np.array(atoms, dtype=np.int8).reshape(-1, len(encoding.atom_features)),
        bond=np.array(bonds, dtype=np.int8).reshape(-1, len(encoding.bond_features)),
    )


def ogb_atom(atom: Atom) -> tuple[int, ...]:
    """Codes of OGB's nine features of an atom, in the order of :data:`ATOM_FEATURES`."""
    number, degree, charge = atom.GetAtomicNum(), atom.GetTotalDegree(), atom.GetFormalCharge()
    hydrogens, radicals = atom.GetTotalNumHs(), atom.GetNumRadicalElectrons()
    return (
        number - 1 if 1 <= number <= 118 else 118,
        _CHIRALITY_CODE.get(atom.GetChiralTag(), 4),
        degree if degree <= 10 else 11,
        charge + 5 if -5 <= charge <= 5 else 11,
        hydrogens if hydrogens <= 8 else 9,
        radicals if radicals <= 4 else 5,
        _HYBRIDIZATION_CODE.get(atom.GetHybridization(), 5),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )


def ogb_bond(bond: Bond) -> tuple[int, ...]:
    """Codes of OGB's three features of a bond, in the order of :data:`BOND_FEATURES`."""
    return (
        _BOND_CODE.get(bond.GetBondType(), 4),
        _STEREO_CODE[bond.GetStereo()],
        int(bond.GetIsConjugated()),
    )


def _codes(kind: type, names: tuple[str, ...]) -> dict[object, int]:
    return {getattr(kind, name): code for code, name in enumerate(names) if name != _MISC}


# RDKit's own values as keys: turning each into its name takes longer than parsing the molecule.
_CHIRALITY_CODE = _codes(Chem.ChiralType, _CHIRALITY)
_HYBRIDIZATION_CODE = _codes(Chem.HybridizationType, _HYBRIDIZATION)
_BOND_CODE = _codes(Chem.BondType, _BOND)
_STEREO_CODE = _codes(Chem.BondStereo, _STEREO)

OGB = Encoding(ATOM_FEATURES, BOND_FEATURES, ogb_atom, ogb_bond)
"""The features of the Open Graph Benchmark."""
