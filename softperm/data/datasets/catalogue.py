"""What is known of datasets by name: where they come from, and what they must hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from softperm.data.datasets.store import Remote

Kind = Literal["tu", "ogb", "qm9"]

PAPER = (
    "MUTAG",
    "DD",
    "NCI1",
    "PROTEINS",
    "ENZYMES",
    "IMDB-BINARY",
    "IMDB-MULTI",
    "REDDIT-BINARY",
    "REDDIT-MULTI-5K",
    "COLLAB",
)
"""The ten collections of the paper's classification table, in its order."""

_TU = "https://www.chrsmrrs.com/graphkerneldatasets"
_OGB = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"
_SPLITS = (
    "https://raw.githubusercontent.com/diningphil/gnn-comparison/"
    "097d0a2c172149075e40ece474c30c222526dbcb/data_splits"
)
_OGB_NAMES = {"ogbg-molhiv": "hiv", "ogbg-molpcba": "pcba"}

_PUBLISHED_SPLITS = {
    "DD": "CHEMICAL/DD",
    "NCI1": "CHEMICAL/NCI1",
    "PROTEINS": "CHEMICAL/PROTEINS_full",
    "PROTEINS_full": "CHEMICAL/PROTEINS_full",
    "ENZYMES": "CHEMICAL/ENZYMES",
    "IMDB-BINARY": "COLLABORATIVE_DEGREE/IMDB-BINARY",
    "IMDB-MULTI": "COLLABORATIVE_DEGREE/IMDB-MULTI",
    "REDDIT-BINARY": "COLLABORATIVE_DEGREE/REDDIT-BINARY",
    "REDDIT-MULTI-5K": "COLLABORATIVE_DEGREE/REDDIT-MULTI-5K",
    "COLLAB": "COLLABORATIVE_DEGREE/COLLAB",
}


@dataclass(frozen=True)
class Entry:
    """A dataset the library can load.

    Args:
        name: its name.
        kind: which reader understands it.
        files: the raw files it is made from, the main one first.
        splits: its published cross-validation splits, where there are any.
    """

    name: str
    kind: Kind
    files: tuple[Remote, ...]
    splits: Remote | None = None


def find_entry(name: str) -> Entry:
    """What is known of a dataset.

    Args:
        name: a TUDataset name, ``ogbg-molhiv``, ``ogbg-molpcba`` or ``QM9``; those that are known
            here in letters of any case.

    Returns:
        Its entry; any other well-formed name is taken for a TUDataset.

    Raises:
        ValueError: if it cannot be the name of a dataset.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise ValueError(
            f"expected the name of a dataset, such as MUTAG, ogbg-molhiv or QM9, found {name!r}"
        )
    name = as_spelt_here(name) or name
    if name in _OGB_NAMES:
        short = _OGB_NAMES[name]
        others = (name, name.replace("-", "_"), short, f"{short}.zip")
        return Entry(name, "ogb", (Remote(f"{name}.zip", f"{_OGB}/{short}.zip", others=others),))
    if name.startswith("ogbg-"):
        raise ValueError(f"expected one of {', '.join(_OGB_NAMES)}, found {name!r}")
    if name == "QM9":
        return Entry(name, "qm9", _QM9)
    archive = Remote(f"tu/{name}.zip", f"{_TU}/{name}.zip", others=(f"tu/{name}",))
    return Entry(name, "tu", (archive,), _published_splits(name))


def known_names() -> tuple[str, ...]:
    """The datasets with a name of their own here; TUDataset has many more."""
    return (*PAPER, "PROTEINS_full", "Mutagenicity", *_OGB_NAMES, "QM9")


def as_spelt_here(name: str) -> str | None:
    """The name of a dataset however its letters are written; None if it has none of its own."""
    return {known.lower(): known for known in known_names()}.get(name.lower())


def _published_splits(name: str) -> Remote | None:
    if name not in _PUBLISHED_SPLITS:
        return None
    return Remote(f"splits/{name}.json", f"{_SPLITS}/{_PUBLISHED_SPLITS[name]}_splits.json")


_QM9 = (
    Remote(
        "qm9/qm9.zip",
        "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/molnet_publish/qm9.zip",
        others=("qm9/qm9_130831.csv.xz", "qm9/gdb9.sdf"),
    ),
    Remote("qm9/uncharacterized.txt", "https://ndownloader.figshare.com/files/3195404"),
)
