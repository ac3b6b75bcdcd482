"""Preparing the molecule datasets: those of the Open Graph Benchmark, and QM9.

This module imports no torch, so that worker processes start quickly.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Float, Int

from softperm.data.archive import Archive
from softperm.data.datasets.catalogue import Entry
from softperm.data.datasets.prepared import Part, RawData, Recipe, Schema
from softperm.data.datasets.store import file_digest
from softperm.data.molecules import (
    OGB,
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

T = TypeVar("T")
Atoms = tuple[Int[np.ndarray, " _"], Float[np.ndarray, "_ 3"]]
"""Atomic numbers of a molecule's atoms and their coordinates in Å."""

_BATCH = 1000  # molecules passed to a process at a time
_MODULES = ("softperm.data.datasets.molecules", "softperm.data.molecules")

# The Open Graph Benchmark: a table of SMILES and answers, and the official split.

_TABLE = "mapping/mol.csv.gz"
_SPLIT = {
    "train": "split/scaffold/train.csv.gz",
    "validation": "split/scaffold/valid.csv.gz",
    "test": "split/scaffold/test.csv.gz",
}


def ogb_recipe(entry: Entry, path: Path, downloaded: bool, processes: int | None = None) -> Recipe:
    """How to prepare a molecule dataset in OGB's layout.

    Args:
        entry: the dataset.
        path: folder or zip archive with ``mapping/mol.csv.gz`` and ``split/scaffold/``.
        downloaded: whether the files were downloaded, and must be the known ones.
        processes: number of processes that parse molecules; by default one for each core.

    Raises:
        ValueError: a file is missing.
    """
    with Archive(path) as archive:
        source = archive.digest([_member(archive, place) for place in (_TABLE, *_SPLIT.values())])
    known = entry.file_checksums if downloaded else {}

    def read(progress: Report) -> RawData:
        columns, rows = _scan_table(entry.name, path, known.get("table"))
        split = {f"split_{part}": _split(path, part, known.get(part)) for part in _SPLIT}
        together = np.sort(np.concatenate(list(split.values())))
        if not np.array_equal(together, np.arange(rows)):
            raise ValueError(
                f"{entry.name}: split/scaffold divides {together.size:,} molecules, but {_TABLE} "
                f"holds {rows:,}; a file is cut short or belongs to another dataset"
            )
        schema = Schema.of_molecules(entry.name, "multilabel", columns.targets, OGB)
        lines = (line for line in _lines(path, _TABLE) if line.strip())
        next(lines)  # the header
        encoded = map_in_processes(partial(encode_rows, columns), _numbered(lines), processes)
        return RawData(schema, _parts(entry.name, encoded, rows, progress), split)

    return Recipe(entry.name, source, options={}, modules=_MODULES, read=read, libraries=("rdkit",))


def unknown_files(entry: Entry, path: Path) -> list[str]:
    """The files whose text differs from the official one.

    Returns:
        Their places; empty also if the official checksums are not known.
    """
    places = {"table": _TABLE, **_SPLIT}
    known = entry.file_checksums
    return [places[f] for f, digest in known.items() if _text_digest(path, places[f]) != digest]


def _text_digest(path: Path, place: str) -> str:
    digest = hashlib.sha256()
    for line in _lines(path, place):
        digest.update(line.encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Columns:
    """The columns of OGB's table: those of targets, ``smiles`` and ``mol_id``."""

    smiles: int
    values: tuple[int, ...]
    targets: tuple[str, ...]
    width: int


def _member(archive: Archive, place: str) -> str:
    member = archive.find(place)
    if member is None:
        raise ValueError(
            f"{archive.path}: {place} is missing; expected OGB's layout, {_TABLE} and the files "
            "train, valid and test in split/scaffold"
        )
    return member


def _lines(path: Path, place: str) -> Iterator[str]:
    """The lines of a gzipped member."""
    with Archive(path) as archive, archive.open(_member(archive, place)) as raw:
        stream = gzip.GzipFile(fileobj=raw)
        try:
            for line in stream:
                yield line.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path}: {place} is damaged ({reason}); fetch it again") from error


def _scan_table(name: str, path: Path, known: str | None) -> tuple[Columns, int]:
    """Read the table once: its columns and number of rows, and whether it is complete."""
    digest, rows, first = hashlib.sha256(), -1, ""
    for line in _lines(path, _TABLE):
        digest.update(line.encode())
        first = line if rows < 0 else first
        rows += bool(line.strip())
    if rows < 1:
        raise ValueError(f"{path}: {_TABLE} holds no molecules; fetch it again")
    _check_known(path, _TABLE, digest.hexdigest(), known)
    header = next(csv.reader([first]))
    values = tuple(i for i, column in enumerate(header) if column not in ("smiles", "mol_id"))
    if "smiles" not in header or not values:
        raise ValueError(
            f"{name}: {_TABLE}: expected a column smiles and targets, found {header[:8]}"
        )
    targets = tuple(header[i] for i in values)
    return Columns(header.index("smiles"), values, targets, len(header)), rows


def _split(path: Path, part: str, known: str | None) -> np.ndarray:
    place = _SPLIT[part]
    text = "".join(_lines(path, place))
    _check_known(path, place, hashlib.sha256(text.encode()).hexdigest(), known)
    try:
        return np.array([int(n) for n in text.split()], dtype=np.int64)
    except ValueError as error:
        raise ValueError(f"{path}: {place}: expected one row number per line ({error})") from error


def _check_known(path: Path, place: str, found: str, known: str | None) -> None:
    if known not in (None, found):
        raise ValueError(
            f"{path}: {place} holds other data than the known file (SHA-256 {found[:16]}…, "
            f"expected {str(known)[:16]}…); put files you trust in a data root to use them"
        )


def _numbered(items: Iterable[T]) -> Iterator[tuple[int, tuple[T, ...]]]:
    """Items in batches, each with the number of its first one."""
    return ((k * _BATCH, batch) for k, batch in enumerate(batches(items, _BATCH)))


def _parts(
    name: str,
    encoded: Iterable[tuple[Molecules, Mapping[str, np.ndarray | None]]],
    count: int,
    progress: Report,
    values: np.ndarray | None = None,
) -> Iterator[Part]:
    """Parts of a dataset from batches of molecules with their other arrays."""
    done = 0
    for molecules, others in encoded:
        first, done = done, done + len(molecules.sizes)
        progress(f"preparing {name}", done, count)
        own = others if values is None else {**others, "values": values[first:done]}
        yield Part(
            sizes=molecules.sizes,
            edge_counts=molecules.edge_counts,
            edge_index=molecules.edge_index,
            label=molecules.atom,
            edge_label=molecules.bond,
            **own,
        )


def encode_rows(
    columns: Columns, work: tuple[int, Sequence[str]]
) -> tuple[Molecules, dict[str, np.ndarray]]:
    """Some rows as graphs with OGB's features, and their targets.

    Args:
        columns: the columns of the table.
        work: the number of the first row, and the lines.

    Returns:
        The graphs, and ``values``, their targets (b, T) float32 with NaN for an empty field.

    Raises:
        GraphError: a row is unusable.
    """
    first, lines = work
    mols, values = [], np.empty((len(lines), len(columns.values)), dtype=np.float32)
    for i, row in enumerate(csv.reader(lines)):
        with errors_about_graph(first + i):
            if len(row) != columns.width:
                raise ValueError(
                    f"expected {columns.width} columns, found {len(row)}; the table is cut short "
                    "or damaged"
                )
            try:
                values[i] = [float(row[c]) if row[c] else np.nan for c in columns.values]
            except ValueError as error:
                raise ValueError(f"expected numbers or nothing as targets ({error})") from error
            mols.append(parse_smiles(row[columns.smiles], any_aromaticity=True))
    return encode(mols, OGB), {"values": values}


# QM9: small organic molecules with hydrogens, positions and twelve properties.

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
    atoms: Iterable[Atoms | None] = [None] * len(values)
    if positions is not None:
        with np.load(io.BytesIO(_unpack(positions))) as npz:
            if rows["index"] != [str(i) for i in npz["index"].tolist()]:
                raise ValueError(f"{positions} lists other molecules than {path}; get both again")
            cuts = np.cumsum(npz["n_atoms"], dtype=np.int64)[:-1]
            elements = np.split(npz["z"].astype(np.int64), cuts)
            atoms = zip(elements, np.split(npz["pos_milliangstrom"].T / 1000.0, cuts), strict=True)
    work = _numbered(zip(rows["smiles"], atoms, strict=True))
    encoded = map_in_processes(encode_smiles, work, processes)
    yield from _parts("QM9", encoded, len(values), progress, values)


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
        work = _numbered(_used_blocks(blocks, used, path))
        encoded = map_in_processes(encode_blocks, work, processes)
        yield from _parts("QM9", encoded, int(used.sum()), progress, values[used])


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


def encode_smiles(
    work: tuple[int, Sequence[tuple[str, Atoms | None]]],
) -> tuple[Molecules, dict[str, np.ndarray | None]]:
    """Parse SMILES, add hydrogens, and assign the positions to the atoms.

    Args:
        work: the number of the first molecule, and of each its SMILES and its atoms, if known.

    Returns:
        The graphs, and ``position`` of their atoms, (v, 3) float32, if known.

    Raises:
        GraphError: a molecule is unusable.
    """
    first, molecules = work
    mols, positions = [], []
    for i, (smiles, atoms) in enumerate(molecules, first):
        with errors_about_graph(i):
            mols.append(_with_hydrogens(smiles))
            if atoms is not None:
                positions.append(atoms[1][match_positions(mols[-1], *atoms)])
    position = np.concatenate(positions).astype(np.float32) if positions else None
    return encode(mols, QM9), {"position": position}


def encode_blocks(work: tuple[int, Sequence[str]]) -> tuple[Molecules, dict[str, np.ndarray]]:
    """Parse molecules of an SDF file, which has hydrogens, bonds and positions.

    ``work`` is the number of the first molecule, and the text of each; see :func:`encode_smiles`.
    """
    first, blocks = work
    mols = []
    for i, block in enumerate(blocks, first):
        with errors_about_graph(i):
            mols.append(_parse_block(block))
    positions = [mol.GetConformer().GetPositions() for mol in mols]
    return encode(mols, QM9), {"position": np.concatenate(positions).astype(np.float32)}


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
    return encode([_with_hydrogens(smiles)], QM9)


def _with_hydrogens(smiles: str) -> Mol:
    return rdkit_chem().AddHs(parse_smiles(smiles, any_aromaticity=True))


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
