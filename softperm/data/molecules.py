"""Molecules written as SMILES become graphs of atoms and bonds (extra ``molecules``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch_geometric.data import Data

from softperm.data.canonical import RawGraph, canonicalise

if TYPE_CHECKING:
    from rdkit.Chem import Mol


def from_smiles(smiles: str, *, explicit_hydrogens: bool = False) -> Data:
    """A molecule as a canonical graph: atoms are vertices, bonds are edges.

    Vertices are labelled with the atom's symbol, edges with the type of bond (``SINGLE``,
    ``DOUBLE``, ``TRIPLE``, ``AROMATIC``, …), in the order in which the SMILES lists the atoms.

    Args:
        smiles: the molecule. An impossible valence is accepted: atoms and bonds are what was
            written, whether or not chemistry allows them.
        explicit_hydrogens: whether hydrogens become vertices too, after all heavy atoms.

    Returns:
        A graph with ``label`` and ``edge_label`` as lists of strings.

    Raises:
        ValueError: the string is not SMILES, or describes an impossible aromatic ring.
        ImportError: RDKit is not installed.

    >>> ethanol = from_smiles("CCO")
    >>> ethanol.label, ethanol.edge_index.tolist()
    (['C', 'C', 'O'], [[0, 1, 1, 2], [1, 0, 2, 1]])
    """
    raw = read_smiles(smiles, "the molecule", explicit_hydrogens=explicit_hydrogens)
    return canonicalise(raw, "the molecule")[0]


def read_smiles(smiles: str, where: str, *, explicit_hydrogens: bool = False) -> RawGraph:
    """The atoms and bonds of a molecule; ``where`` is what an error calls it."""
    chem = _rdkit()
    mol = _parse(smiles, where)
    if explicit_hydrogens:
        mol = chem.AddHs(mol)
    bonds = list(mol.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    return RawGraph(
        num_nodes=mol.GetNumAtoms(),
        edges=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        once=True,
        label=[atom.GetSymbol() for atom in mol.GetAtoms()],
        edge_label=[bond.GetBondType().name for bond in bonds],
    )


def _parse(smiles: str, where: str) -> Mol:
    chem = _rdkit()
    from rdkit.rdBase import BlockLogs

    text = smiles.strip()
    with BlockLogs():  # RDKit writes its complaints to stderr; ours say the same, once
        mol = chem.MolFromSmiles(text) if text and not any(map(str.isspace, text)) else None
        if mol is not None:
            return mol
        mol = chem.MolFromSmiles(text, sanitize=False) if text else None
        if mol is None or any(map(str.isspace, text)):
            raise ValueError(
                f"{where}: {smiles!r} is not valid SMILES; expected one molecule, such as 'CCO'"
            )
        mol.UpdatePropertyCache(strict=False)
        try:
            chem.SanitizeMol(mol, chem.SANITIZE_ALL ^ chem.SANITIZE_PROPERTIES)
        except ValueError as error:  # what remains is an aromatic ring without single/double form
            raise ValueError(
                f"{where}: {smiles!r} is not a possible molecule ({error}); write its aromatic "
                f"rings with explicit single and double bonds, or correct it"
            ) from error
        return chem.RemoveHs(mol, sanitize=False)


def _rdkit():
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ImportError(
            "reading SMILES needs RDKit, which is not installed: pip install softperm[molecules]"
        ) from error
    return Chem
