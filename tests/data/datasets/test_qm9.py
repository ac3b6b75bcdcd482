"""QM9 in its two layouts: hydrogens, positions at their atoms, targets in the paper's units."""

import csv
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.test_systems import check_positions
from rdkit import Chem
from rdkit.Chem import AllChem
from samples import run_command

from softperm import PiGNNRegressor
from softperm.data.datasets import load_dataset
from softperm.data.datasets.molecules import QM9_UNITS, match_positions

SMILES = ["C", "CO", "C#N", "[NH3+]CC([O-])=O", "c1ccoc1", "FC=O"]
TARGETS = np.arange(12.0) + 100 * np.arange(len(SMILES))[:, None]
TARGETS[:, 7] = -411.123456789  # energies have more digits than float32 holds


def molecule(smiles: str) -> Chem.Mol:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=1)
    return mol


def table(first: str, names: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([first, "smiles", *QM9_UNITS])
    for name, smiles, row in zip(names, SMILES, TARGETS.tolist(), strict=True):
        writer.writerow([name, smiles, *row])
    return out.getvalue()


def space(index: list[int], shuffle: bool) -> bytes:
    """Positions in the data root's form; shuffled, they are not in the order of the atoms."""
    rng = np.random.default_rng(0)
    z, xyz, sizes = [], [], []
    for smiles in SMILES:
        mol = molecule(smiles)
        order = rng.permutation(mol.GetNumAtoms()) if shuffle else np.arange(mol.GetNumAtoms())
        z += [mol.GetAtomWithIdx(int(i)).GetAtomicNum() for i in order]
        xyz += [*mol.GetConformer().GetPositions()[order]]
        sizes.append(mol.GetNumAtoms())
    held = {
        "index": np.array(index, dtype=np.int32),
        "n_atoms": np.array(sizes, dtype=np.int8),
        "z": np.array(z, dtype=np.int8),
        "pos_milliangstrom": (1000 * np.array(xyz).T).round().astype(np.int16),
    }
    out = io.BytesIO()
    np.savez(out, **held)
    return lzma.compress(out.getvalue())


@pytest.fixture
def write_qm9(tmp_path: Path) -> Callable[..., Path]:
    def make(shuffle: bool = False, positions: bool = True) -> Path:
        folder = tmp_path / "root" / "qm9"
        folder.mkdir(parents=True, exist_ok=True)
        numbers = list(range(1, len(SMILES) + 1))
        text = table("index", [str(n) for n in numbers])
        (folder / "qm9_130831.csv.xz").write_bytes(lzma.compress(text.encode()))
        if positions:
            (folder / "qm9_positions.npz.xz").write_bytes(space(numbers, shuffle))
        return tmp_path / "root"

    return make


@pytest.fixture
def write_sdf(tmp_path: Path) -> Callable[..., Path]:
    def make(zipped: bool = False, molecules: int = len(SMILES)) -> Path:
        folder = tmp_path / "public" / "qm9"
        folder.mkdir(parents=True, exist_ok=True)
        blocks = [Chem.MolToMolBlock(molecule(s)) + "$$$$\n" for s in SMILES[:molecules]]
        texts = {
            "gdb9.sdf": "".join(blocks),
            "gdb9.sdf.csv": table("mol_id", [f"gdb_{i + 1}" for i in range(len(SMILES))]),
        }
        dropped = "\n".join(["heading"] * 9 + ["    3   HCN  a  b"] + ["end", ""])
        (folder / "uncharacterized.txt").write_text(dropped)
        if zipped:
            with zipfile.ZipFile(folder / "qm9.zip", "w") as archive:
                for name, text in texts.items():
                    archive.writestr(name, text)
        else:
            for name, text in texts.items():
                (folder / name).write_text(text)
        return folder.parent

    return make


def bond_lengths(dataset) -> torch.Tensor:
    c = dataset.collection
    ends = c.edge_index.long() + torch.repeat_interleave(c.ptr[:-1], c.edge_ptr.diff())
    return (dataset.position[ends[0]] - dataset.position[ends[1]]).norm(dim=1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_hydrogens_bonds_targets_and_positions_arrive(write_qm9: Callable, shuffle: bool) -> None:
    dataset = load_dataset("QM9", write_qm9(shuffle))
    assert dataset.target_names == tuple(QM9_UNITS)
    assert dataset.y.dtype == torch.float64
    np.testing.assert_array_equal(dataset.y, TARGETS)
    assert dataset.collection.sizes.tolist() == [5, 6, 3, 10, 9, 4]
    methane = dataset.graphs([0])[0]
    assert methane.label[:, 0].tolist() == [1, 0, 0, 0, 0]
    assert methane.edge_index.tolist() == [[0, 0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 0, 0, 0]]
    assert dataset.graphs([2])[0].edge_label.tolist() == [2, 0, 2, 0]
    assert float(bond_lengths(dataset).max()) < 1.7


def test_systems_that_read_distances_get_the_positions(write_qm9: Callable) -> None:
    check_positions(load_dataset("QM9", write_qm9()))


def test_a_model_of_distances_is_trained_and_predicts(write_qm9: Callable, tmp_path: Path) -> None:
    root, run = write_qm9(), tmp_path / "run"
    few = ("--epochs", 1, "--latent-vertices", 4, "--trees", 4, "--device", "cpu", "--no-progress")
    train = ("train", "QM9", "--target", "r2", *few, "--distance-bins", 4, "--data-root", root)
    done = run_command(*train, "--out", run)
    assert done.exit_code == 0, done.output
    done = run_command("predict", run, "QM9", "--data-root", root, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    (tmp_path / "m.csv").write_text("smiles\nCCO\n")
    done = run_command("predict", run, tmp_path / "m.csv", "--out", tmp_path / "q.csv", "--strict")
    assert done.exit_code == 2
    assert "m.csv line 2: it has no positions, which distance_bins needs" in done.stderr
    packed = root / "qm9" / "qm9_positions.npz.xz"
    packed.unlink()
    done = run_command(*train, "--out", tmp_path / "other")
    assert done.exit_code == 2
    assert "QM9 has no positions, which distance_bins needs: set distance_bins to 0" in done.stderr


def test_variants_of_the_recipe_are_evaluated_together(write_qm9: Callable, tmp_path: Path) -> None:
    systems = "pi-gnn,pi-gnn+linear-fit+positions"
    done = run_command(
        "evaluate", "--recipe", "qm9-table", "--models", systems, "--target", "r2", "--epochs", 1,
        "--data-root", write_qm9(), "--device", "cpu", "--out", tmp_path / "table",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "QM9-r2 pi-gnn+linear-fit+positions" in done.stdout


@pytest.mark.parametrize(("model", "coordinates"), [("pi-gnn", 0), ("pi-gnn+positions", 3)])
def test_the_model_that_is_kept_has_positions_if_it_reads_them(
    model: str, coordinates: int, write_qm9: Callable, tmp_path: Path
) -> None:
    root, out = write_qm9(), tmp_path / "table"
    done = run_command(
        "evaluate", "--recipe", "qm9-table", "--models", model, "--target", "r2", "--epochs", 1,
        "--data-root", root, "--device", "cpu", "--out", out, "--keep-best",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    kept = PiGNNRegressor.load(out / "best" / "QM9-r2" / "model")
    assert kept.vocabulary_.pos_size == coordinates


def test_without_positions_the_rest_arrives(write_qm9: Callable) -> None:
    whole = load_dataset("QM9", write_qm9())
    (whole.store.root / "qm9" / "qm9_positions.npz.xz").unlink()
    dataset = load_dataset("QM9", write_qm9(positions=False))
    assert dataset.position is None
    np.testing.assert_array_equal(dataset.collection.edge_index, whole.collection.edge_index)
    np.testing.assert_array_equal(dataset.collection.label, whole.collection.label)


@pytest.mark.parametrize("zipped", [False, True])
def test_the_public_files_give_the_same_graphs_less_the_dropped(
    write_qm9: Callable, write_sdf: Callable, zipped: bool
) -> None:
    table_form = load_dataset("QM9", write_qm9())
    public = load_dataset("QM9", write_sdf(zipped))
    kept = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(public.y, TARGETS[kept])
    for ours, theirs in zip(public.graphs(), table_form.graphs(kept), strict=True):
        assert ours.edge_index.equal(theirs.edge_index)
        assert ours.label.equal(theirs.label)
        assert ours.edge_label.equal(theirs.edge_label)
        torch.testing.assert_close(ours.pos, theirs.pos, atol=1e-3, rtol=0)


def test_the_random_split_is_by_seed_and_covers_all(write_qm9: Callable) -> None:
    dataset = load_dataset("QM9", write_qm9())
    split = dataset.random_split(0)
    together = torch.cat([split.train, split.validation, split.test])
    assert together.sort().values.tolist() == list(range(6))


def test_unusable_files_are_errors(write_qm9: Callable, write_sdf: Callable) -> None:
    root = write_qm9()
    packed = root / "qm9" / "qm9_130831.csv.xz"
    whole = packed.read_bytes()
    text = lzma.decompress(whole).decode()
    for content, sentence in (
        (whole[:-30], r"qm9_130831.csv.xz is damaged"),
        (lzma.compress(text.replace("gap", "gop").encode()), r"gap is missing"),
        (lzma.compress(text[:-20].encode()), r"expected 12 numbers per row"),
        (lzma.compress(text.replace("\n2,CO", "\n2,CN").encode()), r"graph 1: expected positions"),
        (lzma.compress(text.replace("\n2,CO", "\n9,CO").encode()), r"lists other molecules than"),
    ):
        packed.write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            load_dataset("QM9", root)
    packed.write_bytes(whole)
    assert len(load_dataset("QM9", root)) == 6
    with pytest.raises(ValueError, match=r"expected 6 molecules in gdb9.sdf, .* found 5"):
        load_dataset("QM9", write_sdf(molecules=5))


def test_positions_of_symmetric_cages_are_matched() -> None:
    mol = molecule("C1C2CC1N2")  # near atoms without a bond across the cage
    xyz = mol.GetConformer().GetPositions()
    z = np.array([a.GetAtomicNum() for a in mol.GetAtoms()])
    order = np.random.default_rng(1).permutation(z.size)
    found = match_positions(mol, z[order], xyz[order])
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()])
    placed = xyz[order][found]
    np.testing.assert_array_equal(z[order][found], z)
    assert np.linalg.norm(placed[ends[:, 0]] - placed[ends[:, 1]], axis=1).max() < 1.9


@pytest.mark.data
def test_real_molecules_have_as_many_atoms_as_positions(data_root: Path, tmp_path: Path) -> None:
    with lzma.open(data_root / "qm9" / "qm9_130831.csv.xz", "rt") as lines:
        text = lines.readlines()
    assert len(text) == 1 + 130_831
    rows = [*range(300), 3942, 8126, 50765, 51297, 130473, 130807]  # some in another order
    with np.load(io.BytesIO(lzma.open(data_root / "qm9" / "qm9_positions.npz.xz").read())) as held:
        ptr = np.concatenate([[0], np.cumsum(held["n_atoms"], dtype=np.int64)])
        atoms = np.concatenate([np.arange(ptr[i], ptr[i + 1]) for i in rows])
        some = {k: held[k][rows] for k in ("index", "n_atoms")}
        some |= {"z": held["z"][atoms], "pos_milliangstrom": held["pos_milliangstrom"][:, atoms]}
    folder = tmp_path / "root" / "qm9"
    folder.mkdir(parents=True)
    chosen = "".join([text[0], *(text[1 + i] for i in rows)])
    (folder / "qm9_130831.csv.xz").write_bytes(lzma.compress(chosen.encode()))
    out = io.BytesIO()
    np.savez(out, **some)
    (folder / "qm9_positions.npz.xz").write_bytes(lzma.compress(out.getvalue()))
    dataset = load_dataset("QM9", folder.parent)
    np.testing.assert_array_equal(dataset.collection.sizes, some["n_atoms"])
    long = bond_lengths(dataset) > 1.9
    assert int(long.sum()) == 4  # both directions of the two torn bonds of molecule 130807
