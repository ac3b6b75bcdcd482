"""Preparing QM9: small organic molecules with hydrogens, positions and twelve properties.

This module imports no torch, so that worker processes start quickly.
"""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from softperm.data.archive import Archive
from softperm.data.datasets.prepared import Part, RawData, Recipe, Schema
from softperm.data.datasets.store import file_digest
from softperm.data.molecules import (
    Encoding,
    Molecules,
    encode,
    enum_codes,
    parse_smiles,
    rdkit_chem,
    sanitise_any_valence,
)
from softperm.errors import errors_about_graph
from softperm.parallel import batches, map_in_processes
from softperm.progress import Report

if TYPE_CHECKING:
    import networkx as nx
    from rdkit.Chem import Atom, Bond, Mol

QM9_UNITS = {
    "mu": "Debye",
    "alpha": "bohr³",
    "homo": "Hartree",
    "lumo": "Hartree",
    "gap": "Hartree",
    "r2": "bohr²",
    "zpve": "Hartree",
    "u0": "Hartree",
    "u298": "Hartree",
    "h298": "Hartree",
    "g298": "Hartree",
    "cv": "cal/(mol K)",
}
"""The paper's twelve targets in the order of its table, in the units of its errors."""

_BATCH = 1000
_MODULES = ("softperm.data.datasets.qm9", "softperm.data.molecules")
_POSITIONS = "qm9_positions.npz.xz"


QM9_ATOM: dict[str, tuple[str, ...]] = {
    "element": ("H", "C", "N", "O", "F"),
    "aromatic": ("no", "yes"),
    "hybridization": ("other", "SP", "SP2", "SP3"),
    "hydrogens": ("0", "1", "2", "3", "4"),
}
"""QM9's atom features: name, and the meaning of each code."""

QM9_BOND: dict[str, tuple[str, ...]] = {"bond type": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")}
"""QM9's bond features: name, and the meaning of each code."""

_ELEMENT = {1: 0, 6: 1, 7: 2, 8: 3, 9: 4}
_RADIUS = {1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57}  # covalent radii in Å, Cordero 2008
_LONGEST = 1.9  # Å; the longest bond of QM9's elements between its own atoms is 1.79


def qm9_recipe(path: Path, dropped: Path | None, processes: int | None = None) -> Recipe:
    """How to prepare QM9.

    Args:
        path: ``qm9_130831.csv.xz``, a table with SMILES (and positions in ``qm9_positions.npz.xz``
            beside it); or the public ``gdb9.sdf``, with ``gdb9.sdf.csv`` beside it; or a zip
            archive of these two.
        dropped: the public list of molecules to omit, for the second and third.
        processes: number of processes that parse molecules; by default one for each core.
    """
    from_table = path.name.endswith(".csv.xz")
    beside = path.with_name(_POSITIONS if from_table else "gdb9.sdf.csv")
    files = [path, *([beside] if beside.exists() else []), *([dropped] if dropped else [])]

    def read(progress: Report) -> RawData:
        schema = Schema.of_molecules("QM9", "regression", tuple(QM9_UNITS), QM9)
        if from_table:
            parts = _from_table(path, beside if beside.exists() else None, processes, progress)
        else:
            assert dropped is not None
            parts = _from_sdf(path, dropped, processes, progress)
        return RawData(schema, parts)

    return Recipe(
        name="QM9",
        source=" ".join(file_digest(f) for f in files),
        options={},
        modules=_MODULES,
        read=read,
        libraries=("rdkit",),
    )


def _from_table(
    path: Path, positions: Path | None, processes: int | None, progress: Report
) -> Iterator[Part]:
    rows, values = _targets(io.StringIO(_unpack(path).decode()), path)
    if "smiles" not in rows:
        raise ValueError(f"{path}: expected a column smiles")
    work = _smiles_batches(rows["smiles"], None)
    if positions is not None:
        with np.load(io.BytesIO(_unpack(positions))) as npz:
            atoms = {name: npz[name] for name in ("index", "n_atoms", "z", "pos_milliangstrom")}
        if rows["index"] != [str(i) for i in atoms["index"].tolist()]:
            raise ValueError(f"{positions} lists other molecules than {path}; get both again")
        work = _smiles_batches(rows["smiles"], atoms)
    yield from _parts(map_in_processes(encode_smiles, work, processes), values, progress)


def _smiles_batches(
    smiles: list[str], atoms: dict[str, np.ndarray] | None
) -> Iterator[SmilesBatch]:
    """The molecules in batches, with the positions of their atoms."""
    sizes = None if atoms is None else atoms["n_atoms"].astype(np.int64)
    ptr = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
    for first in range(0, len(smiles), _BATCH):
        molecules = tuple(smiles[first : first + _BATCH])
        if atoms is None or sizes is None or ptr is None:
            yield SmilesBatch(first, molecules)
            continue
        last = first + len(molecules)
        rows = slice(ptr[first], ptr[last])
        position = atoms["pos_milliangstrom"][:, rows].T / 1000.0  # (v, 3) in Å
        elements = atoms["z"][rows].astype(np.int64)
        yield SmilesBatch(first, molecules, sizes[first:last], elements, position)


def _from_sdf(path: Path, dropped: Path, processes: int | None, progress: Report) -> Iterator[Part]:
    skip = _read_dropped(dropped)
    with Archive(path if path.suffix == ".zip" else path.parent) as archive:
        names = {name: archive.find(name) for name in ("gdb9.sdf", "gdb9.sdf.csv")}
        for name, member in names.items():
            if member is None:
                raise ValueError(f"{path}: {name} is missing; get QM9 again")
        table = b"".join(archive.blocks(str(names["gdb9.sdf.csv"])))
        rows, values = _targets(io.StringIO(table.decode()), path)
        used = np.array([int(n.removeprefix("gdb_")) not in skip for n in rows["mol_id"]])
        blocks = _sdf_blocks(archive.blocks(str(names["gdb9.sdf"])))
        chosen = enumerate(batches(_used_blocks(blocks, used, path), _BATCH))
        work = ((i * _BATCH, batch) for i, batch in chosen)
        yield from _parts(map_in_processes(encode_blocks, work, processes), values[used], progress)


def _used_blocks(blocks: Iterator[str], used: np.ndarray, path: Path) -> Iterator[str]:
    count = 0
    for count, block in enumerate(blocks, 1):
        if count <= used.size and used[count - 1]:
            yield block
    if count != used.size:
        raise ValueError(
            f"{path}: expected {used.size:,} molecules in gdb9.sdf, one for each row of "
            f"gdb9.sdf.csv, found {count:,}; get QM9 again"
        )


def _parts(encoded: Iterable[tuple], values: np.ndarray, progress: Report) -> Iterator[Part]:
    done = 0
    for graphs, position in encoded:
        first, done = done, done + len(graphs.sizes)
        progress("preparing QM9", done, len(values))
        yield Part.of_molecules(graphs, position=position, values=values[first:done])


def _targets(text: io.StringIO, path: Path) -> tuple[dict[str, list[str]], np.ndarray]:
    """The columns of a table, and the twelve targets, (B, 12)."""
    reader = csv.DictReader(text)
    missing = [t for t in QM9_UNITS if t not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}: expected a column for each target, {missing[0]} is missing")
    rows = list(reader)
    try:
        values = np.array([[float(row[t]) for t in QM9_UNITS] for row in rows])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected {len(QM9_UNITS)} numbers per row ({error})") from error
    names = [n for n in reader.fieldnames or () if n not in QM9_UNITS]
    return {n: [row[n] for row in rows] for n in names}, values


def _unpack(path: Path) -> bytes:
    try:
        with lzma.open(path) as stream:
            return stream.read()
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); get it again") from error


def _read_dropped(path: Path) -> set[int]:
    """The public list: nine lines of heading, one molecule per line, and a closing line."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[9:-2]
    try:
        return {int(line.split()[0]) for line in lines}
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: expected a molecule's number on each line ({error})") from error


def _sdf_blocks(blocks: Iterable[bytes]) -> Iterator[str]:
    """The text of each molecule of an SDF file."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"$$$$\n")
        yield from (one.decode("utf-8", "replace") for one in whole)
    if rest.strip():
        yield rest.decode("utf-8", "replace")


@dataclass(frozen=True)
class SmilesBatch:
    """Consecutive molecules, with the positions of their atoms if known.

    Args:
        first: number of the first molecule.
        smiles: the molecules.
        sizes: number of atoms of each.
        elements: atomic numbers of the positions.
        position: coordinates of the atoms in Å.
    """

    first: int
    smiles: tuple[str, ...]
    sizes: Int[np.ndarray, " b"] | None = None
    elements: Int[np.ndarray, " v"] | None = None
    position: Float[np.ndarray, "v 3"] | None = None


def encode_smiles(batch: SmilesBatch) -> tuple[Molecules, np.ndarray | None]:
    """Parse SMILES, add hydrogens, and assign the positions to the atoms.

    Returns:
        The graphs, and the positions of their atoms, (v, 3) float32, if the batch has any.

    Raises:
        GraphError: a molecule is unusable.
    """
    mols = []
    for i, smiles in enumerate(batch.smiles, batch.first):
        with errors_about_graph(i):
            mols.append(rdkit_chem().AddHs(parse_smiles(smiles, any_aromaticity=True)))
    graphs = encode(mols, QM9)
    if batch.sizes is None or batch.elements is None or batch.position is None:
        return graphs, None
    positions, at = [], 0
    for i, (mol, size) in enumerate(zip(mols, batch.sizes.tolist(), strict=True), batch.first):
        atoms = slice(at, at + size)
        with errors_about_graph(i):
            order = match_positions(mol, batch.elements[atoms], batch.position[atoms])
        positions.append(batch.position[atoms][order])
        at += size
    return graphs, np.concatenate(positions).astype(np.float32)


def encode_blocks(work: tuple[int, Sequence[str]]) -> tuple[Molecules, np.ndarray]:
    """Parse molecules of an SDF file, which has hydrogens, bonds and positions.

    Args:
        work: the number of the first molecule, and the text of each.

    Returns:
        The graphs, and the positions of their atoms, (v, 3) float32.

    Raises:
        GraphError: a molecule is unusable.
    """
    first, blocks = work
    mols = []
    for i, block in enumerate(blocks, first):
        with errors_about_graph(i):
            mols.append(_parse_block(block))
    positions = [mol.GetConformer().GetPositions() for mol in mols]
    return encode(mols, QM9), np.concatenate(positions).astype(np.float32)


def _parse_block(block: str) -> Mol:
    chem = rdkit_chem()
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        mol = chem.MolFromMolBlock(block, sanitize=False, removeHs=False)
        if mol is None:
            raise ValueError(f"expected a molecule of an SDF file, found {block[:40]!r}")
        with suppress(ValueError):
            sanitise_any_valence(mol)
        return mol


@cache
def _rdkit_codes() -> tuple[dict[object, int], dict[object, int]]:
    """Codes by RDKit's values of hybridization and of bond type."""
    chem = rdkit_chem()
    hybridization = ("", "SP", "SP2", "SP3")  # code 0 is any other
    return (
        enum_codes(chem.HybridizationType, hybridization),
        enum_codes(chem.BondType, QM9_BOND["bond type"]),
    )


def _atom(atom: Atom) -> tuple[int, ...]:
    if atom.GetAtomicNum() not in _ELEMENT:
        raise ValueError(f"expected atoms of H, C, N, O and F, found {atom.GetSymbol()}")
    return (
        _ELEMENT[atom.GetAtomicNum()],
        int(atom.GetIsAromatic()),
        _rdkit_codes()[0].get(atom.GetHybridization(), 0),
        min(atom.GetTotalNumHs(includeNeighbors=True), 4),
    )


def _bond(bond: Bond) -> tuple[int, ...]:
    return (_rdkit_codes()[1][bond.GetBondType()],)


QM9 = Encoding(QM9_ATOM, QM9_BOND, _atom, _bond)
"""The features of QM9's atoms and bonds."""


def read_qm9(smiles: str) -> Molecules:
    """One molecule with all its hydrogens and QM9's features."""
    return encode([rdkit_chem().AddHs(parse_smiles(smiles, any_aromaticity=True))], QM9)


def match_positions(
    mol: Mol, elements: Int[np.ndarray, " N"], position: Float[np.ndarray, "N 3"]
) -> Int[np.ndarray, " N"]:
    """Find the measured position of every atom.

    Most sources list atoms and positions in the same order, and then every bond is short. If not,
    the molecule is matched, by elements and bonds, with a subgraph of the graph of near atoms
    (nearer than 1.3 times the sum of their radii; small cages have near atoms without a bond).
    If there is no match and the elements are in order, the order of the source is used.

    Args:
        mol: a molecule with all its hydrogens.
        elements: atomic numbers of the positions.
        position: coordinates of the atoms in Å.

    Returns:
        The row of ``position`` for every atom of ``mol``.

    Raises:
        ValueError: the elements differ, or neither the order nor the bonds match.
    """
    import networkx as nx

    own = np.array([a.GetAtomicNum() for a in mol.GetAtoms()])  # (N,)
    if not np.array_equal(np.sort(own), np.sort(elements)):
        raise ValueError(
            f"expected positions for the atoms {np.sort(own).tolist()}, found positions for "
            f"{np.sort(elements).tolist()}"
        )
    bonds = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], int)
    u, v = bonds.reshape(-1, 2).T
    in_order = np.array_equal(own, elements)
    if in_order and (np.linalg.norm(position[u] - position[v], axis=1) <= _LONGEST).all():
        return np.arange(own.size)
    matcher = nx.isomorphism.GraphMatcher(
        _graph(elements, _near(elements, position)),
        _graph(own, bonds.reshape(-1, 2)),
        node_match=lambda a, b: a["element"] == b["element"],
    )
    match = next(matcher.subgraph_monomorphisms_iter(), None)
    if match is not None:
        return np.array(sorted(match, key=match.__getitem__))
    if not in_order:
        raise ValueError(
            "expected positions that match the molecule's bonds, found a bond that is too long"
        )
    return np.arange(own.size)


def _near(elements: np.ndarray, position: np.ndarray) -> np.ndarray:
    radius = np.array([_RADIUS[e] for e in elements.tolist()])
    distance = np.linalg.norm(position[:, None] - position[None], axis=2)  # (N, N)
    return np.argwhere(np.triu(distance < 1.3 * (radius[:, None] + radius), k=1))


def _graph(elements: np.ndarray, edges: np.ndarray) -> nx.Graph:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from((i, {"element": e}) for i, e in enumerate(elements.tolist()))
    graph.add_edges_from(edges.tolist())
    return graph
