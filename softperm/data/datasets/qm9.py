"""QM9: small organic molecules with hydrogens, positions and twelve properties, as a recipe."""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softperm.data.datasets.meta import Meta
from softperm.data.datasets.prepare import Built, Part, Recipe
from softperm.data.datasets.store import file_digest
from softperm.data.datasets.workers import batches, in_parallel
from softperm.data.formats.archive import Archive
from softperm.progress import Report

if TYPE_CHECKING:
    from softperm.data.datasets.qm9_molecules import SmilesBatch

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
_MODULES = ("qm9", "qm9_molecules", "geometry", "molecules")
_POSITIONS = "qm9_positions.npz.xz"


def qm9_recipe(path: Path, dropped: Path | None, processes: int | None = None) -> Recipe:
    """How QM9 becomes a prepared dataset.

    Args:
        path: ``qm9_130831.csv.xz``, a table with SMILES (and positions in ``qm9_positions.npz.xz``
            beside it); or the public ``gdb9.sdf``, with ``gdb9.sdf.csv`` beside it; or a zip
            archive of these two.
        dropped: the public list of molecules to leave out, for the second and third.
        processes: how many processes read molecules; by default one for each core.

    Returns:
        The recipe.
    """
    from_table = path.name.endswith(".csv.xz")
    beside = path.with_name(_POSITIONS if from_table else "gdb9.sdf.csv")
    files = [path, *([beside] if beside.exists() else []), *([dropped] if dropped else [])]

    def build(progress: Report) -> Built:
        from softperm.data.datasets.qm9_molecules import QM9

        meta = Meta(
            name="QM9",
            task="regression",
            target_names=tuple(QM9_UNITS),
            label_values=tuple(QM9.atom_features.values()),
            label_names=tuple(QM9.atom_features),
            edge_label_values=tuple(QM9.bond_features.values()),
            edge_label_names=tuple(QM9.bond_features),
        )
        if from_table:
            parts = _from_table(path, beside if beside.exists() else None, processes, progress)
        else:
            assert dropped is not None
            parts = _from_sdf(path, dropped, processes, progress)
        return Built(meta, parts)

    return Recipe(
        name="QM9",
        source=" ".join(file_digest(f) for f in files),
        options={},
        modules=tuple(f"softperm.data.datasets.{m}" for m in _MODULES),
        build=build,
        libraries=("rdkit",),
    )


def _from_table(
    path: Path, positions: Path | None, processes: int | None, progress: Report
) -> Iterator[Part]:
    from softperm.data.datasets.qm9_molecules import encode_smiles

    rows, values = _targets(io.StringIO(_unpack(path).decode()), path)
    if "smiles" not in rows:
        raise ValueError(f"{path}: expected a column smiles")
    work = _smiles_batches(rows["smiles"], None)
    if positions is not None:
        with np.load(io.BytesIO(_unpack(positions))) as held:
            space = {name: held[name] for name in ("index", "n_atoms", "z", "pos_milliangstrom")}
        if rows["index"] != [str(i) for i in space["index"].tolist()]:
            raise ValueError(f"{positions} lists other molecules than {path}; fetch both again")
        work = _smiles_batches(rows["smiles"], space)
    yield from _parts(in_parallel(encode_smiles, work, processes), values, progress)


def _smiles_batches(smiles: list[str], space: dict | None) -> Iterator[SmilesBatch]:
    """The molecules, a batch at a time, each with its stretch of the positions."""
    from softperm.data.datasets.qm9_molecules import SmilesBatch

    sizes = None if space is None else space["n_atoms"].astype(np.int64)
    ptr = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
    for first in range(0, len(smiles), _BATCH):
        some = tuple(smiles[first : first + _BATCH])
        if space is None or sizes is None or ptr is None:
            yield SmilesBatch(first, some)
            continue
        last = first + len(some)
        atoms = slice(ptr[first], ptr[last])
        position = space["pos_milliangstrom"][:, atoms].T / 1000.0  # (v, 3) in Å
        elements = space["z"][atoms].astype(np.int64)
        yield SmilesBatch(first, some, sizes[first:last], elements, position)


def _from_sdf(path: Path, dropped: Path, processes: int | None, progress: Report) -> Iterator[Part]:
    from softperm.data.datasets.qm9_molecules import encode_blocks

    skip = _read_dropped(dropped)
    with Archive(path if path.suffix == ".zip" else path.parent) as archive:
        names = {name: archive.find(name) for name in ("gdb9.sdf", "gdb9.sdf.csv")}
        for name, member in names.items():
            if member is None:
                raise ValueError(f"{path}: {name} is missing; fetch QM9 again")
        table = b"".join(archive.blocks(str(names["gdb9.sdf.csv"])))
        rows, values = _targets(io.StringIO(table.decode()), path)
        kept = np.array([int(n.removeprefix("gdb_")) not in skip for n in rows["mol_id"]])
        blocks = _sdf_blocks(archive.blocks(str(names["gdb9.sdf"])))
        chosen = enumerate(batches(_kept_blocks(blocks, kept, path), _BATCH))
        work = ((i * _BATCH, batch) for i, batch in chosen)
        yield from _parts(in_parallel(encode_blocks, work, processes), values[kept], progress)


def _kept_blocks(blocks: Iterator[str], kept: np.ndarray, path: Path) -> Iterator[str]:
    count = 0
    for count, block in enumerate(blocks, 1):
        if count <= kept.size and kept[count - 1]:
            yield block
    if count != kept.size:
        raise ValueError(
            f"{path}: expected {kept.size:,} molecules in gdb9.sdf, one for each row of "
            f"gdb9.sdf.csv, found {count:,}; fetch QM9 again"
        )


def _parts(encoded: Iterable[tuple], values: np.ndarray, progress: Report) -> Iterator[Part]:
    done = 0
    for graphs, position in encoded:
        first, done = done, done + len(graphs.sizes)
        progress("preparing QM9", done, len(values))
        yield Part(
            sizes=graphs.sizes,
            edge_counts=graphs.edge_counts,
            edge_index=graphs.edge_index,
            label=graphs.atom,
            edge_label=graphs.bond,
            position=position,
            values=values[first:done],
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
        raise ValueError(f"{path}: expected {len(QM9_UNITS)} numbers a row ({error})") from error
    names = [n for n in reader.fieldnames or () if n not in QM9_UNITS]
    return {n: [row[n] for row in rows] for n in names}, values


def _unpack(path: Path) -> bytes:
    try:
        with lzma.open(path) as stream:
            return stream.read()
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error


def _read_dropped(path: Path) -> set[int]:
    """The public list: nine lines of heading, a molecule a line, and a closing rule."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[9:-2]
    try:
        return {int(line.split()[0]) for line in lines}
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: expected a molecule's number on each line ({error})") from error


def _sdf_blocks(blocks: Iterable[bytes]) -> Iterator[str]:
    """The molecules of an SDF file, one text each."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"$$$$\n")
        yield from (one.decode("utf-8", "replace") for one in whole)
    if rest.strip():
        yield rest.decode("utf-8", "replace")
