"""QM9's molecules as a worker process reads them: hydrogens explicit, positions matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from rdkit import Chem, rdBase
from rdkit.Chem import Atom, Bond, Mol

from softperm.data.datasets.geometry import match_positions
from softperm.data.datasets.molecules import (
    Encoding,
    Molecules,
    encode,
    parse_smiles,
    sanitise_leniently,
)

QM9_ATOM: dict[str, tuple[str, ...]] = {
    "element": ("H", "C", "N", "O", "F"),
    "aromatic": ("no", "yes"),
    "hybridization": ("other", "SP", "SP2", "SP3"),
    "hydrogens": ("0", "1", "2", "3", "4"),
}
"""The atom features: name, and what each code stands for."""

QM9_BOND: dict[str, tuple[str, ...]] = {"bond type": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")}
"""The bond features: name, and what each code stands for."""

_ELEMENT = {1: 0, 6: 1, 7: 2, 8: 3, 9: 4}
_HYBRIDIZATION = {
    getattr(Chem.HybridizationType, name): code
    for code, name in enumerate(QM9_ATOM["hybridization"])
    if code > 0
}
_BOND = {getattr(Chem.BondType, name): code for code, name in enumerate(QM9_BOND["bond type"])}


@dataclass(frozen=True)
class SmilesBatch:
    """Some consecutive molecules, with the positions of their atoms where there are any.

    Args:
        first: number of the first molecule.
        smiles: the molecules.
        sizes: atoms of each.
        elements: atomic numbers of the positions.
        position: where the atoms are, in Å.
    """

    first: int
    smiles: tuple[str, ...]
    sizes: Int[np.ndarray, " b"] | None = None
    elements: Int[np.ndarray, " v"] | None = None
    position: Float[np.ndarray, "v 3"] | None = None


def encode_smiles(batch: SmilesBatch) -> tuple[Molecules, np.ndarray | None]:
    """Molecules written as SMILES, hydrogens added, each position given to its atom.

    Args:
        batch: the molecules.

    Returns:
        The graphs, and the positions of their atoms, (v, 3) float32, if the batch has any.

    Raises:
        ValueError: if a molecule is not sound; the sentence names the graph.
    """
    numbered = enumerate(batch.smiles, batch.first)
    mols = [Chem.AddHs(parse_smiles(smiles, f"graph {i}")) for i, smiles in numbered]
    graphs = encode(mols, QM9)
    if batch.sizes is None or batch.elements is None or batch.position is None:
        return graphs, None
    placed, at = [], 0
    for i, (mol, size) in enumerate(zip(mols, batch.sizes.tolist(), strict=True), batch.first):
        atoms = slice(at, at + size)
        try:
            order = match_positions(mol, batch.elements[atoms], batch.position[atoms])
        except ValueError as error:
            raise ValueError(f"graph {i}: {error}") from error
        placed.append(batch.position[atoms][order])
        at += size
    return graphs, np.concatenate(placed).astype(np.float32)


def encode_blocks(work: tuple[int, Sequence[str]]) -> tuple[Molecules, np.ndarray]:
    """Molecules of an SDF file, which lists hydrogens, bonds and positions itself.

    Args:
        work: the number of the first molecule, and the text of each.

    Returns:
        The graphs, and the positions of their atoms, (v, 3) float32.

    Raises:
        ValueError: if a molecule is not sound; the sentence names the graph.
    """
    first, blocks = work
    mols = [_parse_block(block, f"graph {i}") for i, block in enumerate(blocks, first)]
    placed = [mol.GetConformer().GetPositions() for mol in mols]
    return encode(mols, QM9), np.concatenate(placed).astype(np.float32)


def _parse_block(block: str, where: str) -> Mol:
    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(block, sanitize=False, removeHs=False)
        if mol is None:
            raise ValueError(f"{where}: expected a molecule of an SDF file, found {block[:40]!r}")
        return sanitise_leniently(mol)


def _atom(atom: Atom) -> tuple[int, ...]:
    if atom.GetAtomicNum() not in _ELEMENT:
        raise ValueError(f"expected atoms of H, C, N, O and F, found {atom.GetSymbol()}")
    return (
        _ELEMENT[atom.GetAtomicNum()],
        int(atom.GetIsAromatic()),
        _HYBRIDIZATION.get(atom.GetHybridization(), 0),
        min(atom.GetTotalNumHs(includeNeighbors=True), 4),
    )


def _bond(bond: Bond) -> tuple[int, ...]:
    return (_BOND[bond.GetBondType()],)


QM9 = Encoding(QM9_ATOM, QM9_BOND, _atom, _bond)
"""The features of QM9's atoms and bonds."""
