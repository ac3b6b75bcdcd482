"""Molecules to graphs of atoms and bonds, with RDKit (extra ``molecules``).

One SMILES parser serves graphs with string labels (:func:`from_smiles`) and the numeric atom and
bond features of benchmarks (:func:`encode`). Nothing here imports torch or RDKit before it is
needed, so worker processes that parse molecules start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol

    from softperm.data.canonical import RawGraph
    from softperm.pyg import Data


LONGEST = 100_000  # characters of SMILES


def from_smiles(smiles: str, *, explicit_hydrogens: bool = False) -> Data:
    """A molecule as a canonical graph: atoms are vertices, bonds are edges.

    Vertices are labelled with the atom's symbol, edges with the type of bond (``SINGLE``,
    ``DOUBLE``, ``TRIPLE``, ``AROMATIC``, …), in the order in which the SMILES lists the atoms.

    Args:
        smiles: the molecule. An impossible valence is accepted: the graph has the atoms and bonds
            that the string lists, whether or not chemistry allows them.
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
    from softperm.data.canonical import canonicalise

    return canonicalise(raw_graph_from_smiles(smiles, explicit_hydrogens=explicit_hydrogens))[0]


def raw_graph_from_smiles(smiles: str, *, explicit_hydrogens: bool = False) -> RawGraph:
    """The atoms and bonds of a molecule with string labels, before :func:`canonicalise`."""
    mol = parse_smiles(smiles)
    return raw_graph_from_mol(rdkit_chem().AddHs(mol) if explicit_hydrogens else mol)


def raw_graph_from_mol(mol: Mol) -> RawGraph:
    """The atoms and bonds of RDKit's molecule as it is, before :func:`canonicalise`."""
    from softperm.data.canonical import RawGraph

    bonds = list(mol.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    return RawGraph(
        num_nodes=mol.GetNumAtoms(),
        edges=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        once=True,
        label=[atom.GetSymbol() for atom in mol.GetAtoms()],
        edge_label=[bond.GetBondType().name for bond in bonds],
    )


def parse_smiles(smiles: str, *, any_aromaticity: bool = False) -> Mol:
    """Parse a SMILES string, accepting valences that RDKit refuses.

    Seven molecules of ogbg-molhiv have valences that RDKit accepted when the benchmark was made and
    refuses now. The valence check is skipped; all other steps of RDKit's sanitisation (rings,
    aromaticity, conjugation, hybridization) are performed.

    Args:
        smiles: one molecule.
        any_aromaticity: whether to accept aromatic rings that have no form with alternating single
            and double bonds.

    Returns:
        RDKit's molecule without explicit hydrogens.

    Raises:
        ValueError: the string is not SMILES, or describes an impossible aromatic ring.
        ImportError: RDKit is not installed.
    """
    chem = rdkit_chem()
    from rdkit.rdBase import BlockLogs

    text = smiles.strip()
    if len(text) > LONGEST:
        raise ValueError(
            f"its SMILES has {len(text):,} characters; at most {LONGEST:,} are read, because the "
            "time of RDKit grows with their square"
        )
    one_word = len(text.split()) == 1
    with BlockLogs():  # RDKit logs its errors on stderr; the exceptions below say the same
        mol = chem.MolFromSmiles(text) if one_word else None
        if mol is not None:
            return mol
        mol = chem.MolFromSmiles(text, sanitize=False) if one_word else None
        if mol is None:
            raise ValueError(f"{smiles!r} is not valid SMILES; expected one molecule, like 'CCO'")
        try:
            sanitise_any_valence(mol)
        except ValueError as error:  # the valence check is off, so the aromaticity is wrong
            if not any_aromaticity:
                raise ValueError(
                    f"{smiles!r} is not a possible molecule ({error}); write its aromatic rings "
                    f"with explicit single and double bonds, or correct it"
                ) from error
        return chem.RemoveHs(mol, sanitize=False)


def sanitise_any_valence(mol: Mol) -> None:
    """RDKit's sanitisation of a parsed molecule, in place, without the check of valences.

    Raises:
        ValueError: an aromatic ring has no form with alternating single and double bonds.
    """
    chem = rdkit_chem()
    mol.UpdatePropertyCache(strict=False)
    chem.SanitizeMol(mol, chem.SANITIZE_ALL ^ chem.SANITIZE_PROPERTIES)


def rdkit_chem() -> Any:
    """The module ``rdkit.Chem``.

    Raises:
        ImportError: RDKit is not installed; the message says how to install it.
    """
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ImportError(
            "molecules need RDKit, which is not installed: pip install softperm[molecules]"
        ) from error
    return Chem


@dataclass(frozen=True)
class Encoding:
    """A choice of atom and bond features, as integer codes.

    Args:
        atom_features: name of each atom feature, and the meaning of its codes.
        bond_features: name of each bond feature, and the meaning of its codes.
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
        sizes: number of atoms of each molecule.
        edge_counts: number of directed edges of each molecule, two for a bond.
        edge_index: both directions of every bond, atoms numbered within their molecule, sorted.
        atom: codes of the atom features.
        bond: codes of the bond features, one row for each directed edge.
    """

    sizes: Int[np.ndarray, " b"]
    edge_counts: Int[np.ndarray, " b"]
    edge_index: Int[np.ndarray, "2 e"]
    atom: Int[np.ndarray, "v L"]
    bond: Int[np.ndarray, "e Le"]


def encode(mols: Iterable[Mol], encoding: Encoding) -> Molecules:
    """Lay molecules end to end, with the features of an encoding."""
    sizes, edge_counts, atoms, rows, columns, bonds = [], [], [], [], [], []
    for mol in mols:
        sizes.append(mol.GetNumAtoms())
        # GetAtoms and GetBonds, RDKit's sequences in Python, take twice as long
        atoms.extend(map(encoding.atom, map(mol.GetAtomWithIdx, range(sizes[-1]))))
        edges = []
        for bond in map(mol.GetBondWithIdx, range(mol.GetNumBonds())):
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


def join(parts: Sequence[Molecules]) -> Molecules:
    """Molecules of several parts, one part after the other."""
    axes = {"edge_index": 1}
    return Molecules(
        **{
            field.name: np.concatenate(
                [getattr(part, field.name) for part in parts], axis=axes.get(field.name, 0)
            )
            for field in fields(Molecules)
        }
    )


def read_each(
    smiles: Sequence[str], read: Callable[[str], Molecules]
) -> tuple[Molecules | None, dict[int, str]]:
    """The molecules that can be read, and the problem of each other one by its position.

    Returns:
        The concatenated molecules, or None if there are none; and the problems.
    """
    rdkit_chem()
    from rdkit.rdBase import BlockLogs

    parts, problems = [], {}
    with BlockLogs():
        for i, text in enumerate(smiles):
            try:
                parts.append(read(text))
            except ValueError as error:
                problems[i] = str(error)
    return (join(parts) if parts else None), problems


def read_ogb(smiles: str) -> Molecules:
    """One molecule with OGB's features."""
    return encode([parse_smiles(smiles, any_aromaticity=True)], OGB)


# Elements between which RDKit makes no dative bonds, and twice the orders of their bonds.
_ORGANIC = (5, 6, 7, 8, 9, 14, 15, 16, 17, 34, 35, 53)
_NOT_ATOMS = (0, 1)  # elements that RDKit does not know, and hydrogens, which it removes
_TYPE_OF_ORDER = {2: "SINGLE", 3: "AROMATIC", 4: "DOUBLE", 6: "TRIPLE", 8: "QUADRUPLE"}
_BRACKETS = re.compile(r"\[[^]\n]*\]").finditer
_OTHER_BOND = re.compile(r"[<>~\s]").search
_SYMBOL = re.compile(r"\[?\d*([A-Z][a-z]?|[a-z]{1,2})")
_LARGE = 500  # atoms of a molecule whose matrix of bond orders would be large
_ENTRIES = 1 << 18  # of the matrices of bond orders that are in memory together


def read_symbols(smiles: Sequence[str]) -> tuple[Molecules | None, dict[int, str]]:
    """Molecules with the numbers of elements and of types of bonds; see :func:`read_each`.

    The names of the numbers are :func:`element_symbols` and :func:`bond_names`; the graphs are
    those of :func:`from_smiles`. For small molecules, RDKit only perceives rings, aromaticity and
    dative bonds of metals; atoms are read from the text, and bonds from RDKit's matrices of bond
    orders. This takes less time than a full sanitisation, which large molecules and those with
    dative bonds or hydrogens receive.
    """
    chem = rdkit_chem()
    from rdkit.rdBase import BlockLogs

    flags = chem.SanitizeFlags
    steps = flags.SANITIZE_CLEANUP | flags.SANITIZE_PROPERTIES | flags.SANITIZE_SYMMRINGS
    steps |= flags.SANITIZE_KEKULIZE | flags.SANITIZE_FINDRADICALS | flags.SANITIZE_SETAROMATICITY
    with_metals = steps | flags.SANITIZE_CLEANUP_ORGANOMETALLICS
    options = chem.SmilesParserParams()
    options.sanitize = options.removeHs = False

    def bond_orders(text: str, atoms: int, metals: Sequence[int]) -> np.ndarray | None:
        """The bond orders (N, N) of a small molecule; None if it has dative bonds."""
        mol = chem.MolFromSmiles(text, options)
        if mol is None or mol.GetNumAtoms() != atoms:
            return None
        try:
            chem.SanitizeMol(mol, with_metals if metals else steps)
        except ValueError:
            return None
        bonds = (bond for v in metals for bond in mol.GetAtomWithIdx(v).GetBonds())
        if any(bond.GetBondType() == chem.BondType.DATIVE for bond in bonds):
            return None
        return chem.GetAdjacencyMatrix(mol, useBO=True)

    texts = [text.strip() for text in smiles]
    elements, sizes = _elements(texts)
    owner, begin = np.repeat(np.arange(len(texts)), sizes), np.cumsum(sizes) - sizes
    removed = np.bincount(owner[np.isin(elements, _NOT_ATOMS)], minlength=len(texts))
    plain = (sizes > 0) & (sizes <= _LARGE) & (removed == 0)
    metals: dict[int, list[int]] = {}
    for v in np.flatnonzero(~np.isin(elements, _ORGANIC)).tolist():
        metals.setdefault(int(owner[v]), []).append(v - int(begin[owner[v]]))
    parts: list[Molecules] = []
    problems: dict[int, str] = {}
    waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def join_waiting() -> None:
        if waiting:
            parts.append(_plain_molecules(*zip(*waiting, strict=True)))
            waiting.clear()

    entries = last = 0
    with BlockLogs():
        for i, (text, size, usual) in enumerate(
            zip(texts, sizes.tolist(), plain.tolist(), strict=True)
        ):
            last += size
            orders = bond_orders(text, size, metals.get(i, ())) if usual else None
            if orders is not None:
                waiting.append((elements[last - size : last], orders))
                entries += orders.size
                if entries > _ENTRIES:
                    join_waiting()
                    entries = 0
                continue
            try:
                molecule = encode([parse_smiles(smiles[i])], _SYMBOLS)
            except ValueError as error:
                problems[i] = str(error)
                continue
            join_waiting()
            parts.append(molecule)
        join_waiting()
    return (join(parts) if parts else None), problems


_SYMBOLS = Encoding(
    {"element": ()},  # the names need RDKit: see element_symbols and bond_names
    {"bond type": ()},
    lambda atom: (atom.GetAtomicNum(),),
    lambda bond: (int(bond.GetBondType()),),
)


@lru_cache(maxsize=1 << 12)
def _atomic_number(atom: str) -> int:
    """The element of an atom of SMILES, such as ``c`` or ``[13CH3]``; 0 for any other text."""
    symbol = _SYMBOL.match(atom)
    return 0 if symbol is None else _numbers_of_symbols().get(symbol[1].capitalize(), 0)


@cache
def _numbers_of_symbols() -> dict[str, int]:
    """The number of each element by its symbol."""
    return {symbol: number for number, symbol in enumerate(element_symbols())}


def _elements(texts: Sequence[str]) -> tuple[Int[np.ndarray, " v"], Int[np.ndarray, " b"]]:
    """The elements of the atoms of all SMILES, and how many atoms each has.

    An unknown element is 0. A text with other characters than those of common SMILES has no atoms.
    """
    lines = [text if text.isascii() and not _OTHER_BOND(text) else "" for text in texts]
    joined = "\n".join(lines)
    characters = np.frombuffer(joined.encode(), dtype=np.uint8)
    elements = _elements_of_letters()[characters]  # −1 where no atom begins
    for first, second in ("Br", "Cl"):
        pair = (characters[:-1] == ord(first)) & (characters[1:] == ord(second))
        elements[:-1][pair] = _atomic_number(first + second)
    for bracket in _BRACKETS(joined):
        elements[slice(*bracket.span())] = -1
        elements[bracket.start()] = _atomic_number(bracket[0])
    place = (elements >= 0).nonzero()[0]
    line = np.cumsum(characters == ord("\n"))[place]
    return elements[place], np.bincount(line, minlength=len(lines))


@cache
def _elements_of_letters() -> Int[np.ndarray, " 256"]:
    """The element of an atom that is a letter; −1 for other characters."""
    elements = np.full(256, -1, dtype=np.int64)
    for letter in "BCNOPSFIbcnops":
        elements[ord(letter)] = _atomic_number(letter)
    return elements


def _plain_molecules(numbers: Sequence[np.ndarray], orders: Sequence[np.ndarray]) -> Molecules:
    """Molecules from the elements and the bond orders (N, N) of each."""
    sizes = np.array([len(each) for each in numbers])
    entries = np.concatenate([matrix.ravel() for matrix in orders])
    place = np.flatnonzero(entries != 0)  # (E,), both directions of every bond, sorted
    first = np.concatenate([[0], np.cumsum(sizes**2)])
    owner = np.repeat(np.arange(len(sizes)), sizes**2)[place]
    bond = _order_types()[(2 * entries[place]).astype(np.int64)]
    assert (bond >= 0).all(), "SMILES has no other bonds between these elements"
    return Molecules(
        sizes=sizes,
        edge_counts=np.bincount(owner, minlength=len(sizes)),
        edge_index=np.stack(np.divmod(place - first[owner], sizes[owner])),
        atom=np.concatenate(numbers)[:, None],
        bond=bond[:, None],
    )


@cache
def _order_types() -> np.ndarray:
    """The code of a bond's type by twice its order; −1 where the order does not determine it."""
    codes = np.full(32, -1)
    for order, name in _TYPE_OF_ORDER.items():
        codes[order] = bond_names().index(name)
    return codes


@cache
def element_symbols() -> tuple[str, ...]:
    """The symbol of each element by its number; ``*`` for any atom."""
    table = rdkit_chem().GetPeriodicTable()
    return ("*", *map(table.GetElementSymbol, range(1, 119)))


@cache
def bond_names() -> tuple[str, ...]:
    """The name of each of RDKit's types of bonds by its number."""
    values = rdkit_chem().BondType.values
    return tuple(values[code].name for code in range(len(values)))


_MISC = "misc"


def _numbers(first: int, last: int) -> tuple[str, ...]:
    return (*(str(n) for n in range(first, last + 1)), _MISC)


_CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", _MISC)
_HYBRIDIZATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2", _MISC)
_BOND = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", _MISC)
_STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")

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
"""OGB's atom features: name, and the meaning of each code."""

BOND_FEATURES: dict[str, tuple[str, ...]] = {
    "bond type": _BOND,
    "stereo": _STEREO,
    "conjugated": ("no", "yes"),
}
"""OGB's bond features: name, and the meaning of each code."""


@cache
def _ogb_codes() -> dict[str, dict[object, int]]:
    """Codes by RDKit's enum values: looking up their names takes longer than parsing."""
    chem = rdkit_chem()
    return {
        "chirality": enum_codes(chem.ChiralType, _CHIRALITY),
        "hybridization": enum_codes(chem.HybridizationType, _HYBRIDIZATION),
        "bond": enum_codes(chem.BondType, _BOND),
        "stereo": enum_codes(chem.BondStereo, _STEREO),
    }


def enum_codes(kind: type, names: tuple[str, ...]) -> dict[object, int]:
    """The position of each value of an RDKit enum in a list of names; other names are skipped."""
    return {getattr(kind, name): code for code, name in enumerate(names) if hasattr(kind, name)}


def ogb_atom(atom: Atom) -> tuple[int, ...]:
    """Codes of OGB's nine features of an atom, in the order of :data:`ATOM_FEATURES`."""
    number, degree, charge = atom.GetAtomicNum(), atom.GetTotalDegree(), atom.GetFormalCharge()
    hydrogens, radicals = atom.GetTotalNumHs(), atom.GetNumRadicalElectrons()
    codes = _ogb_codes()
    return (
        number - 1 if 1 <= number <= 118 else 118,
        codes["chirality"].get(atom.GetChiralTag(), 4),
        degree if degree <= 10 else 11,
        charge + 5 if -5 <= charge <= 5 else 11,
        hydrogens if hydrogens <= 8 else 9,
        radicals if radicals <= 4 else 5,
        codes["hybridization"].get(atom.GetHybridization(), 5),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )


def ogb_bond(bond: Bond) -> tuple[int, ...]:
    """Codes of OGB's three features of a bond, in the order of :data:`BOND_FEATURES`."""
    codes = _ogb_codes()
    return (
        codes["bond"].get(bond.GetBondType(), 4),
        codes["stereo"][bond.GetStereo()],
        int(bond.GetIsConjugated()),
    )


OGB = Encoding(ATOM_FEATURES, BOND_FEATURES, ogb_atom, ogb_bond)
"""The features of the Open Graph Benchmark."""
