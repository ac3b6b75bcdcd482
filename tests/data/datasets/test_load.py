"""From a name to a dataset: sources, options, targets and folds."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from file_server import FileServer

from softperm.data.datasets import load_dataset
from softperm.data.datasets.catalogue import find_entry
from softperm.data.datasets.dataset import dataset_file
from softperm.data.datasets.splits import make_folds, write_folds
from softperm.data.features import StructuralFeatures, VertexFeatures
from softperm.data.formats import read_graphs
from softperm.data.formats.tu import read_tu, to_graphs


def test_a_dataset_holds_the_graphs_of_the_files_in_their_order(write_tu: Callable) -> None:
    root = write_tu()
    dataset = load_dataset("TOY", root)
    raw = read_tu(root / "tu" / "TOY.zip")
    assert len(dataset) == 40
    assert dataset.task == "classification"
    assert dataset.class_names == ("-1", "1")
    assert dataset.y.tolist() == [i % 2 for i in range(40)]
    np.testing.assert_array_equal(dataset.collection.edge_index, raw.edge_index)
    batch = dataset.collection.batch(torch.tensor([3, 0]))
    graphs = to_graphs(raw)
    assert batch.ptr.diff().tolist() == [graphs[3].num_nodes, graphs[0].num_nodes]
    values = torch.tensor([int(v) for v in dataset.schema.label_values[0]])
    assert values[batch.x[:, :3].argmax(1)].tolist() == [*graphs[3].label, *graphs[0].label]
    torch.testing.assert_close(batch.x[:, 3:], torch.cat([graphs[3].x, graphs[0].x]))


def test_graphs_of_their_own_are_those_of_the_files(write_tu: Callable) -> None:
    root = write_tu(edge_labels=None)
    dataset = load_dataset("TOY", root)
    for ours, raw in zip(
        dataset.graphs(), to_graphs(read_tu(root / "tu" / "TOY.zip")), strict=True
    ):
        assert ours.edge_index.equal(raw.edge_index)
        assert ours.x.equal(raw.x)
        assert ours.label.equal(raw.label)
        assert ours.num_nodes == raw.num_nodes


def test_codes_stand_for_the_labels_that_occur_in_ascending_order(write_tu: Callable) -> None:
    root = write_tu(
        A="1, 2\n2, 1\n",
        graph_indicator="1\n1\n2\n",
        graph_labels="5\n3\n",
        node_labels="70\n-2\n70\n",
        node_attributes=None,
    )
    dataset = load_dataset("TOY", root)
    assert dataset.schema.label_values == (("-2", "70"),)
    assert dataset.collection.label[:, 0].tolist() == [1, 0, 1]
    assert dataset.collection.label_sizes == (2,)
    assert (dataset.class_names, dataset.y.tolist()) == (("3", "5"), [1, 0])


def test_attributes_are_a_matter_of_choice(write_tu: Callable) -> None:
    root = write_tu()
    assert load_dataset("TOY", root).collection.attribute_size == 4
    assert load_dataset("TOY", root, attributes=False).collection.attribute_size == 3
    write_tu("BARE", node_attributes=None)
    with pytest.raises(ValueError, match="BARE has no continuous vertex attributes"):
        load_dataset("BARE", root, attributes=True)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_attributes_that_are_not_finite_are_named(write_tu: Callable, bad: str) -> None:
    root = write_tu()
    good = load_dataset("TOY", root)
    row = int(good.collection.ptr[3]) + 1
    values = ["0.5"] * int(good.collection.ptr[-1])
    values[row] = bad
    write_tu("HOLES", node_attributes="\n".join(values) + "\n")
    with pytest.raises(ValueError, match=r"HOLES: graph 3: x of vertex 1 is not finite"):
        load_dataset("HOLES", root)
    assert load_dataset("HOLES", root, attributes=False).collection.attribute_size == 3


def test_names_that_are_known_here_are_known_in_any_case(write_tu: Callable) -> None:
    root = write_tu("MUTAG")
    assert load_dataset("mutag", root).name == "MUTAG"


def test_the_paper_uses_no_attribute_of_proteins(write_tu: Callable) -> None:
    root = write_tu("PROTEINS")
    with pytest.warns(UserWarning, match="PROTEINS is loaded without its vertex attributes"):
        assert load_dataset("PROTEINS", root).collection.x is None
    assert load_dataset("PROTEINS", root, attributes=True).collection.x is not None


def test_graph_attributes_are_regression_targets(write_tu: Callable) -> None:
    values = "".join(f"{i}, {i / 8}\n" for i in range(40))
    root = write_tu(graph_labels=None, graph_attributes=values)
    dataset = load_dataset("TOY", root)
    assert dataset.task == "regression"
    assert dataset.y.tolist() == [[i, i / 8] for i in range(40)]
    assert len(dataset.target_names) == 2
    assert len(dataset.folds()) == 10
    both = write_tu("BOTH", graph_attributes=values)
    assert load_dataset("BOTH", both).task == "classification"
    assert load_dataset("BOTH", both, task="regression").y.shape == (40, 2)
    with pytest.raises(ValueError, match="has targets for regression, not for classif"):
        load_dataset("TOY", root, task="classification")


def test_a_dataset_without_targets_is_an_error(write_tu: Callable) -> None:
    with pytest.raises(ValueError, match=r"TOY_graph_attributes.txt, found neither"):
        load_dataset("TOY", write_tu(graph_labels=None))


def test_edges_listed_once_are_undirected_with_symmetrise(write_tu: Callable) -> None:
    root = write_tu()
    whole = load_dataset("TOY", root)
    lines = zipfile.ZipFile(root / "tu" / "TOY.zip").read("TOY/TOY_A.txt").decode().splitlines()
    write_tu(A="\n".join(lines[::2]))
    with pytest.raises(ValueError, match="set symmetrise"):
        load_dataset("TOY", root)
    dataset = load_dataset("TOY", root, symmetrise=True)
    assert dataset.fingerprint == whole.fingerprint


def test_the_fingerprint_follows_the_data_and_not_the_packing(write_tu: Callable) -> None:
    root = write_tu()
    before = load_dataset("TOY", root).fingerprint
    with zipfile.ZipFile(root / "tu" / "TOY.zip") as archive:
        archive.extractall(root / "tu")
    (root / "tu" / "TOY.zip").unlink()
    assert load_dataset("TOY", root).fingerprint == before
    shutil.rmtree(root / "tu" / "TOY")
    assert load_dataset("TOY", write_tu(seed=1)).fingerprint != before


def test_changed_raw_files_are_never_read_stale(write_tu: Callable) -> None:
    assert len(load_dataset("TOY", write_tu(graphs=30))) == 30
    assert len(load_dataset("TOY", write_tu(graphs=31))) == 31


def test_a_downloaded_dataset_is_reused_and_a_damaged_one_downloaded_again(
    write_tu: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = (write_tu() / "tu" / "TOY.zip").read_bytes()
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    server.files["/tu/TOY.zip"] = content
    first = load_dataset("TOY")
    raw = tmp_path / "cache" / "raw" / "tu" / "TOY.zip"
    raw.write_bytes(content[:-40])
    assert load_dataset("TOY").fingerprint == first.fingerprint
    assert len(server.requests) == 2


def test_a_damaged_archive_of_the_user_is_an_error_until_replaced(
    write_tu: Callable,
) -> None:
    root = write_tu()
    archive = root / "tu" / "TOY.zip"
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"not a complete zip archive .* fetch the archive again"):
        load_dataset("TOY", root)
    assert len(load_dataset("TOY", write_tu())) == 40


def test_downloaded_data_must_be_the_known_data(
    write_tu: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    root = write_tu("MUTAG")
    server.files["/tu/MUTAG.zip"] = (root / "tu" / "MUTAG.zip").read_bytes()
    with pytest.raises(ValueError, match="MUTAG: the downloaded files hold other data"):
        load_dataset("MUTAG")
    assert len(load_dataset("MUTAG", root)) == 40  # the user's own files are the user's business


@pytest.mark.parametrize("name", ["../secret", "a/b", "", "-x", "MUTAG.zip/..", "ogbg-ppa"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        load_dataset(name)


def test_offline_one_sentence_says_what_to_put_where() -> None:
    with pytest.raises(ValueError, match=r"tu/NCI109.zip is neither .* put it at tu/NCI109.zip"):
        load_dataset("NCI109")
    with pytest.raises(ValueError, match=r"did you mean MUTAG\? softperm data list shows"):
        load_dataset("mutagg")
    with pytest.raises(ValueError, match=r"put it at tu/MUTAG.zip below [^;]*$"):
        load_dataset("MUTAG")


def test_folds_of_a_dataset_without_published_ones_are_drawn_once(
    write_tu: Callable, tmp_path: Path
) -> None:
    dataset = load_dataset("TOY", write_tu())
    folds = dataset.folds()
    assert Path(folds.origin).is_relative_to(tmp_path / "cache" / "splits")
    assert dataset.folds().digest == folds.digest != dataset.folds(seed=1).digest
    assert [int((dataset.y[s.test] == 1).sum()) for s in folds] == [2] * 10


def test_splits_in_the_data_root_are_used(write_tu: Callable) -> None:
    root = write_tu()
    dataset = load_dataset("TOY", root)
    write_folds(root / "splits" / "TOY.json", make_folds(None, 40, seed=9))
    assert dataset.folds().origin == str(root / "splits" / "TOY.json")
    write_folds(root / "splits" / "TOY.json", make_folds(None, 41, seed=9))
    with pytest.raises(ValueError, match="these splits belong to another dataset"):
        dataset.folds()


def test_published_splits_are_downloaded_and_checked(
    write_tu: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_dataset("ENZYMES", write_tu("ENZYMES"))
    with pytest.raises(ValueError, match=r"splits/ENZYMES.json is neither"):
        dataset.folds()  # offline: other folds than the published ones would not be comparable
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    dataset = load_dataset("ENZYMES", write_tu("ENZYMES"))
    write_folds(root := dataset.store.cache / "f.json", make_folds(None, 40, seed=0))
    server.files["/splits/ENZYMES.json"] = root.read_bytes()
    with pytest.raises(ValueError, match="other splits than the published ones of ENZYMES"):
        dataset.folds()


def test_every_published_address_is_protected() -> None:
    for name in ("MUTAG", "COLLAB", "REDDIT-MULTI-5K", "ogbg-molhiv", "ogbg-molpcba", "QM9"):
        entry = find_entry(name)
        remotes = [*entry.files, *([entry.splits] if entry.splits else [])]
        assert all(str(r.url).startswith("https://") for r in remotes)


def test_features_of_a_dataset_are_computed_once_and_again_if_their_file_is_damaged(
    write_tu: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_dataset("TOY", write_tu())
    settings = StructuralFeatures(walks=4, clustering=True)
    expected = VertexFeatures(settings).extend(dataset.collection).structure
    computed = []
    real = VertexFeatures.extend

    def counted(self, graphs):
        computed.append(self.settings.names)
        return real(self, graphs)

    monkeypatch.setattr(VertexFeatures, "extend", counted)
    for _ in range(2):
        graphs = dataset.feature_store.extend(dataset.collection, settings)
        assert torch.equal(graphs.structure, expected)
    assert len(computed) == 1
    (path,) = (dataset.store.cache / "features").glob("*.features")
    sound = path.read_bytes()
    for damaged in (sound[:-8], sound[:-8] + bytes([sound[-8] ^ 1]) + sound[-7:]):
        path.write_bytes(damaged)
        again = dataset.feature_store.extend(dataset.collection, settings)
        assert torch.equal(again.structure, expected)
        assert path.read_bytes() == sound
    dataset.feature_store.extend(dataset.collection, StructuralFeatures(walks=5))
    assert len(computed) == 4, "damaged twice, and other features"
    plain = dataset.feature_store.extend(dataset.collection, StructuralFeatures())
    assert plain is dataset.collection


def test_the_file_of_a_dataset_is_that_of_the_data_root_or_a_verified_download(
    write_tu: Callable, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tu("MUTAG")
    assert dataset_file("mutag", root) == root / "tu" / "MUTAG.zip"
    monkeypatch.setenv("SOFTPERM_MIRROR", server.url)
    server.files["/tu/TOY.zip"] = (write_tu() / "tu" / "TOY.zip").read_bytes()
    assert len(read_graphs(dataset_file("TOY")).graphs) == 40
    server.files["/tu/MUTAG.zip"] = (root / "tu" / "MUTAG.zip").read_bytes()
    with pytest.raises(ValueError, match="MUTAG: the downloaded files hold other data"):
        dataset_file("MUTAG")


def test_qm9_without_smiles_has_no_file_to_read(tmp_path: Path) -> None:
    (tmp_path / "qm9").mkdir()
    for name in ("gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"):
        (tmp_path / "qm9" / name).write_text("")
    with pytest.raises(ValueError, match=r"QM9 is available as gdb9.sdf, which has no SMILES: put"):
        dataset_file("QM9", tmp_path)
