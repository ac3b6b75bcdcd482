"""Weisfeiler–Leman colours of vertices, and the codes of those that training graphs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.features.adjacency import Adjacency, mix
from softperm.jit import kernel

if TYPE_CHECKING:
    from softperm.data.collection import Collection


def wl_colours(
    graphs: Adjacency,
    rounds: int,
    *,
    label: Int[np.ndarray, "V L"] | None = None,
    edge_label: Int[np.ndarray, "E Le"] | None = None,
    degree: bool = False,
) -> Int[np.ndarray, "V rounds1"]:
    r"""Colours of every vertex after 0, 1, …, r rounds of colour refinement.

    .. math::
        c_0(v) = (\text{label}_v, d_v), \quad
        c_{k+1}(v) = \left(c_k(v), \{\!\{ (c_k(u), \text{label}_{vu}) : u \in N(v) \}\!\}\right)

    Two vertices of any two graphs have the same colour after r rounds if their neighbourhoods
    unfolded to depth r are the same. A colour is a 64-bit hash, the same on every machine: among a
    million different colours two coincide with a probability of 3e-8.

    Args:
        graphs: the collection.
        rounds: number r of rounds.
        label: discrete vertex labels, all columns taken together; none by default.
        edge_label: discrete edge labels in the order of the edges, likewise.
        degree: whether the degree is part of the first colour.

    Returns:
        Colours, one column for each number of rounds.
    """
    columns = [] if label is None else [*label.T]
    columns += [graphs.degree] if degree else []
    edge_colour = _hash_columns([] if edge_label is None else [*edge_label.T], graphs.column.size)
    found = np.empty((rounds + 1, graphs.vertices), dtype=np.uint64)
    found[0] = _hash_columns(columns, graphs.vertices)
    work = graphs.sizes + graphs.edge_counts * 4
    for k in range(rounds):
        mixed = _mix_all(found[k])
        graphs.over_graphs(_refine, work, edge_colour, found[k], mixed, found[k + 1])
    return found.view(np.int64).T


@dataclass(frozen=True)
class ColourVocabulary:
    """Codes of the colours that training graphs have, a label column for each round.

    A colour that too few training graphs have is rare. Rare colours share one code, the last one
    of the column; a colour that no training graph has counts as rare. A column without rare
    colours has no such code, and there an unseen colour is an unknown label, code −1.

    Attributes:
        rounds: number of rounds of each column.
        colours: colours of each column in ascending order; their positions are their codes.
        pooled: whether each column has a code for rare colours.
        degree: whether the degree is part of the first colour.
    """

    rounds: tuple[int, ...]
    colours: tuple[tuple[int, ...], ...]
    pooled: tuple[bool, ...]
    degree: bool = False

    @classmethod
    def learn(
        cls,
        collection: Collection,
        index: Int[Tensor, " b"],
        *,
        rounds: int,
        size: int | None,
        min_graphs: int,
        degree: bool = False,
        every_round: bool = False,
    ) -> ColourVocabulary:
        """The vocabulary of the chosen graphs; no others are looked at.

        Args:
            collection: graphs without columns of colours.
            index: the training graphs.
            rounds: number r of rounds.
            size: maximum number of colours of a column, of which the most common ones are taken;
                None for no limit.
            min_graphs: number of training graphs in which a colour must occur.
            degree: whether the degree is part of the first colour.
            every_round: keep the column of round 0 also where it says no more than a column of
                labels already does; by default it is left out there.
        """
        several = collection.label is not None and collection.label.shape[1] > 1
        columns = tuple(range(0 if degree or several or every_round else 1, rounds + 1))
        found = collection_colours(collection, rounds, degree)
        owner = np.repeat(np.arange(len(collection)), collection.sizes.cpu().numpy())
        chosen = np.isin(owner, index.cpu().numpy())
        known = [_common(found[chosen, c], owner[chosen], size, min_graphs) for c in columns]
        return cls(
            rounds=columns,
            colours=tuple(tuple(colours.tolist()) for colours, _ in known),
            pooled=tuple(rare for _, rare in known),
            degree=degree,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        pairs = zip(self.colours, self.pooled, strict=True)
        return tuple(len(colours) + pooled for colours, pooled in pairs)

    def encode(self, collection: Collection) -> Int[Tensor, "V R"]:
        """The codes of every vertex's colours, on the CPU."""
        found = collection_colours(collection, max(self.rounds, default=0), self.degree)
        codes = np.empty((len(found), len(self.rounds)), dtype=np.int64)
        for c, (k, colours) in enumerate(zip(self.rounds, self.colours, strict=True)):
            known = np.asarray(colours, dtype=np.int64)
            place = np.searchsorted(known, found[:, k])
            seen = np.append(known, 0)[place] == found[:, k]
            seen &= place < len(known)
            codes[:, c] = np.where(seen, place, len(known) if self.pooled[c] else -1)
        return torch.from_numpy(codes)

    def extend(self, collection: Collection) -> Collection:
        """The collection with the codes as further label columns, on its own device."""
        codes = self.encode(collection).to(collection.ptr.device)
        label = codes if collection.label is None else torch.cat([collection.label, codes], dim=1)
        return replace(collection, label=label, label_sizes=collection.label_sizes + self.sizes)

    def to_config(self) -> dict[str, Any]:
        """The vocabulary as plain values that survive JSON unchanged."""
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**lists, "colours": [list(column) for column in self.colours]}

    @classmethod
    def from_config(cls, config: Any) -> ColourVocabulary:
        """The vocabulary that :meth:`to_config` described.

        Raises:
            ValueError: a key is unknown or missing, or a value is not of its kind.
        """
        expected = {field.name for field in fields(cls)}
        if not isinstance(config, Mapping) or set(config) != expected:
            found = sorted(config) if isinstance(config, Mapping) else type(config).__name__
            raise ValueError(f"colours: expected the keys {sorted(expected)}, found {found}")
        rounds, colours, pooled = (config[k] for k in ("rounds", "colours", "pooled"))
        sound = (
            all(isinstance(values, list) for values in (rounds, colours, pooled))
            and len(rounds) == len(colours) == len(pooled)
            and all(type(k) is int and k >= 0 for k in rounds)
            and all(type(rare) is bool for rare in [*pooled, config["degree"]])
            and all(_is_column(column) for column in colours)
        )
        if not sound:
            raise ValueError(
                "colours: expected lists of rounds, colours in ascending order and pooled, of one "
                "length, and degree true or false"
            )
        return cls(tuple(rounds), tuple(map(tuple, colours)), tuple(pooled), config["degree"])


def colour_counts(collection: Collection, vocabulary: ColourVocabulary) -> scipy.sparse.csr_array:
    """How many vertices of each graph have each colour of a vocabulary, after every round.

    Args:
        collection: graphs with the labels of those of which the vocabulary was learnt.
        vocabulary: colours of training graphs.

    Returns:
        Counts (B, colours), float32: the codes of each column of the vocabulary side by side, rare
        colours last in their column. Colours without a code are not counted.
    """
    codes = vocabulary.encode(collection).numpy()  # (V, R)
    first = np.cumsum([0, *vocabulary.sizes])
    graph = np.repeat(np.arange(len(collection)), collection.sizes.cpu().numpy())  # (V,)
    known = codes >= 0
    place = (codes + first[:-1])[known]
    owner = np.broadcast_to(graph[:, None], codes.shape)[known]
    ones = np.ones(len(place), dtype=np.float32)
    shape = (len(collection), int(first[-1]))
    return scipy.sparse.coo_array((ones, (owner, place)), shape).tocsr()


def collection_colours(
    collection: Collection, rounds: int, degree: bool = False
) -> Int[np.ndarray, "V rounds1"]:
    """Colours of a collection's vertices, from its labels and edge labels where it has some."""
    shift = torch.repeat_interleave(collection.ptr[:-1], collection.edge_ptr.diff())
    graphs = Adjacency.of(collection.edge_index.long() + shift, collection.ptr)
    labels = (collection.label, collection.edge_label)
    label, edge_label = (None if t is None else t.cpu().long().numpy() for t in labels)
    return wl_colours(graphs, rounds, label=label, edge_label=edge_label, degree=degree)


def _common(
    colours: Int[np.ndarray, " v"], owner: Int[np.ndarray, " v"], size: int | None, min_graphs: int
) -> tuple[Int[np.ndarray, " K"], bool]:
    """The colours found in most graphs, in ascending order, and whether there are others."""
    known, place = np.unique(colours, return_inverse=True)
    pairs = np.unique(place * (owner.max(initial=0) + 1) + owner)
    graphs = np.bincount(pairs // (owner.max(initial=0) + 1), minlength=len(known))
    ranked = np.lexsort([known, -graphs])[:size]
    kept = np.sort(known[ranked[graphs[ranked] >= min_graphs]])
    return kept, len(kept) < len(known)


def _is_column(column: Any) -> bool:
    whole = isinstance(column, list) and all(type(colour) is int for colour in column)
    return whole and all(a < b for a, b in pairwise(column))


def _hash_columns(columns: Sequence[np.ndarray], count: int) -> np.ndarray:
    """A hash of each row of labels, (count,) uint64; of no labels, the same for all."""
    found = np.zeros(count, dtype=np.uint64)
    for column in columns:
        found = _mix_all(found + np.uint64(1) + column.astype(np.int64).view(np.uint64))
    return _mix_all(found)


@kernel
def _mix_all(values):
    mixed = np.empty_like(values)
    for i in range(len(values)):
        mixed[i] = mix(values[i])
    return mixed


@kernel
def _refine(ptr, row_ptr, column, edge_colour, colour, mixed, refined, cuts, first, last):
    """One round: a vertex's colour with the multiset of its neighbours' and edges' colours."""
    for graph in range(cuts[first], cuts[last]):
        low = ptr[graph]
        for v in range(low, ptr[graph + 1]):
            total = np.uint64(row_ptr[v + 1] - row_ptr[v])
            for e in range(row_ptr[v], row_ptr[v + 1]):
                total += mix(mixed[low + column[e]] ^ edge_colour[e])
            refined[v] = mix(mixed[v] + mix(total))
