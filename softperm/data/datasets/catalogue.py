"""The datasets known by name: where their files come from, and the checksums of their content.

The archives that public sites serve change (they are packed anew, lines are reordered) while the
data in them does not. So the checksums are of the data: of the arrays made from it, of the splits,
and of the text inside compressed files.
"""

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
"""The ten datasets of the paper's classification table, in its order."""

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
    """A dataset that the library can load.

    Args:
        name: its name.
        kind: the reader of its files.
        files: its raw files, the main one first.
        splits: its published cross-validation splits, if there are any.
    """

    name: str
    kind: Kind
    files: tuple[Remote, ...]
    splits: Remote | None = None

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint that downloaded data must have, if it is known."""
        return FINGERPRINTS.get(self.name)

    @property
    def file_checksums(self) -> dict[str, str]:
        """SHA-256 of the text in its files, by part of the dataset; empty if not known."""
        return FILE_CHECKSUMS.get(self.name, {})

    @property
    def splits_checksum(self) -> str | None:
        """SHA-256 of its published splits, if it is known."""
        return SPLIT_CHECKSUMS.get(self.name)


def find_entry(name: str) -> Entry:
    """The entry of a dataset.

    Args:
        name: a TUDataset name, ``ogbg-molhiv``, ``ogbg-molpcba`` or ``QM9``; names in this
            catalogue may be written in any case.

    Returns:
        Its entry; any other well-formed name is assumed to be a TUDataset.

    Raises:
        ValueError: the name cannot be that of a dataset.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise ValueError(
            f"expected the name of a dataset, such as MUTAG, ogbg-molhiv or QM9, found {name!r}"
        )
    name = catalogue_spelling(name) or name
    if name in _OGB_NAMES:
        short = _OGB_NAMES[name]
        others = (name, name.replace("-", "_"), short, f"{short}.zip")
        return Entry(name, "ogb", (Remote(f"{name}.zip", f"{_OGB}/{short}.zip", others=others),))
    if name.startswith("ogbg-"):
        raise ValueError(f"expected one of {', '.join(_OGB_NAMES)}, found {name!r}")
    if name == "QM9":
        return Entry(name, "qm9", _QM9)
    archive = Remote(f"tu/{name}.zip", f"{_TU}/{name}.zip", others=(f"tu/{name}",))
    splits = None
    if name in _PUBLISHED_SPLITS:
        url = f"{_SPLITS}/{_PUBLISHED_SPLITS[name]}_splits.json"
        splits = Remote(f"splits/{name}.json", url)
    return Entry(name, "tu", (archive,), splits)


def known_names() -> tuple[str, ...]:
    """The datasets in this catalogue; TUDataset has many more."""
    return (*PAPER, "PROTEINS_full", "Mutagenicity", *_OGB_NAMES, "QM9")


def catalogue_spelling(name: str) -> str | None:
    """The spelling of a name in this catalogue, whatever its case; None if it is not there."""
    return {known.lower(): known for known in known_names()}.get(name.lower())


_QM9 = (
    Remote(
        "qm9/qm9.zip",
        "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/molnet_publish/qm9.zip",
        others=("qm9/qm9_130831.csv.xz", "qm9/gdb9.sdf"),
    ),
    Remote("qm9/uncharacterized.txt", "https://ndownloader.figshare.com/files/3195404"),
)

FINGERPRINTS: dict[str, str] = {
    "MUTAG": "d3cd4e560e1f6aaaeb4e01d4f7d5773941a45cb0d298e985d3d671bf102e01a8",
    "NCI1": "6915abbe4840bf4d0588ed910f4311d90757462db102141c5d8d3e6bce40c870",
    "PROTEINS": "57f3834bafe1793314d060e4b508871135f10aa7350bb0a4356ebcebd38e14de",
    "PROTEINS_full": "377c8de4b01fe97fb042ff45ca6087457da91fd8ca30fd6911bf64af5738a034",
    "ENZYMES": "06948b60c6acd7bec972891be3ebf909d0f90a3ac5569ebcfb0df102a807579f",
    "IMDB-BINARY": "7817ca93961a2a7c2ea4b15528b45d3254dab635a0b7dc7fdbdb493b961cbd32",
    "IMDB-MULTI": "a4ae9b79d4fe4a6a7ef5f823eeb5137c18568ce2bf64872536bcfef0694d8cc3",
    "Mutagenicity": "1e1f26237275b7c66925d83152e9cc23713964cee5c5fd94625e5c04eb2c1cea",
}
"""Fingerprints of prepared datasets whose original files are known: downloads must match."""

REBUILT_FINGERPRINTS: dict[str, str] = {
    "DD": "c7ae4d24fb895d51ae1f721cb2b80111112066ebd38113b20ca02eca414d0d0f",
    "REDDIT-BINARY": "f91345a389e55da54bad69ff874e98977ac902948f76759a4a5310a4f6fca3ba",
    "COLLAB": "c1f30ab70d2b0f535c3e37ed998d4478dd470a7c125297528a7e023900f9d20d",
}
"""Fingerprints of copies whose edge lists were rebuilt: only reported, downloads may differ."""

SPLIT_CHECKSUMS: dict[str, str] = {
    "DD": "78222c28bbfd93131ae9d5599b52529fea811341fdc36f60bd7c55f9bc574128",
    "NCI1": "55e0236afb95a681e0fa3eaa2e8cc4d86036543d3aa26a2e2e5201fdb0d9c0e5",
    "PROTEINS": "e7219a3e86ebb1e8ccf8c30cc731c527ee7f1fed1bbace2f7ab011faabcae50e",
    "PROTEINS_full": "e7219a3e86ebb1e8ccf8c30cc731c527ee7f1fed1bbace2f7ab011faabcae50e",
    "ENZYMES": "d09eba2a674ecb5e67390297a36a2cdc6b78ffad91f29d832b2cac84b950fa33",
    "IMDB-BINARY": "86041965a8791c5a3200dd1eb242d18e24f2e1516a6f4d0026139add5b56548a",
    "IMDB-MULTI": "eaa7134a5feba8217c75b4a77d5fc23a7268f5c97705f02cd9de9f33e6f52e53",
    "REDDIT-BINARY": "1a30ef2f652ca33fab09a94a65ea6aff454662e7bab4cc65cc026f9defd6256f",
    "COLLAB": "d7b3fdce62264494d59a977c622529555e80689073f5ee53d9813eb24585bfea",
    "REDDIT-MULTI-5K": "2134296b5bd9eccb32b183de512cefc66f5221244150ff39ea45c21005724c96",
}
"""SHA-256 of published splits, see :class:`softperm.data.datasets.splits.Folds`."""

FILE_CHECKSUMS: dict[str, dict[str, str]] = {
    "ogbg-molhiv": {
        "table": "6b19c03f3ce433b3ecc36c0ef6184d5c93cf721444dd906c914d991c1d9c1dd9",
        "train": "29ea24c280086d7c3fc1011cd1f75c481c5e3beb14b8b8891e208574d14e34b8",
        "validation": "11f0db3641f325f72a002852b27ca32c860bcb5e529cd4bb1b699bb12322f3f0",
        "test": "111b66eae1ab5006f12787c119bc48176a4eea987a014fa134cd7d3e3dca35ce",
    }
}
"""SHA-256 of the text inside the gzipped files of an archive."""
