"""Model folders: whole or not at all, never code, and one sentence for whatever is wrong."""

import errno
import hashlib
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch.testing import assert_close

from softperm.files import write_atomically
from softperm.nn.model_folder import FolderError, read_folder, write_folder

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(7)}
CONFIG = {"kind": "Thing", "size": 3}


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "model", CONFIG, TENSORS)
    return tmp_path / "model"


def forge(folder, text: str) -> None:
    """Gives the weights another configuration, with the checksum that belongs to it."""
    blank = save(TENSORS, metadata={"softperm": f"{'0' * 64} {text}"})
    content = blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1)
    (folder / "model.safetensors").write_bytes(content)


def refused(folder, message: str, **arguments) -> None:
    """Raises unless the folder is refused in one line that matches."""
    with pytest.raises(FolderError, match=message) as caught:
        read_folder(folder, **arguments)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_folder_gives_back_what_was_written(folder):
    config, tensors = read_folder(folder, kind="Thing")
    assert config == CONFIG
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert_close(tensors[name], tensor, rtol=0, atol=0)


def test_a_folder_holds_two_files_and_no_pickle(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    for path in folder.iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError)):
            pickle.loads(path.read_bytes())


def test_writing_again_replaces_both_files(folder):
    write_folder(folder, {"kind": "Other"}, {"weight": torch.zeros(1)})
    config, tensors = read_folder(folder)
    assert config == {"kind": "Other"}
    assert list(tensors) == ["weight"]


def test_transposed_tensors_are_written_as_they_are_seen(tmp_path):
    write_folder(tmp_path, CONFIG, {"weight": TENSORS["weight"].T})
    assert_close(read_folder(tmp_path)[1]["weight"], TENSORS["weight"].T)


class Trap:
    """Leaves a mark wherever it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_the_folder_is_never_opened(folder, tmp_path):
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    for name in ("pytorch_model.bin", "model.pkl", "training_args.bin", "model.pt"):
        (folder / name).write_bytes(trap)
    assert read_folder(folder)[0] == CONFIG
    (folder / "model.safetensors").write_bytes(trap)
    refused(folder, "model.safetensors is damaged or cut short")
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_folder_is_said(tmp_path):
    refused(tmp_path / "nothing", "no such model folder")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "no such model folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "not a softperm model, model.safetensors is missing")


def test_a_folder_without_weights_is_said(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "not a softperm model, model.safetensors is missing")
    (folder / "model.safetensors").mkdir()
    refused(folder, "model.safetensors cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "model.safetensors has no usable configuration"),
        ("[" * 100_000, "model.safetensors has no usable configuration"),
        ("[1, 2]", "model.safetensors has no usable configuration"),
        ('{"softperm_format": "one"}', "model.safetensors has no usable configuration"),
        ("", "or of another program or an earlier version"),
        ('{"softperm_format": 99}', "has format 99, this softperm reads up to 2: upgrade"),
    ],
)
def test_a_configuration_that_is_damaged_foreign_or_newer_is_said(folder, text, message):
    forge(folder, text)
    refused(folder, message)


def test_weights_of_another_program_are_said(folder):
    (folder / "model.safetensors").write_bytes(save(TENSORS, metadata={"format": "pt"}))
    refused(folder, "or of another program or an earlier version")


def test_the_model_does_not_depend_on_the_copy_of_its_configuration(folder):
    for content in (b"{", b"{}", b'{"kind": "Other", "size": 4}'):
        (folder / "config.json").write_bytes(content)
        assert read_folder(folder)[0] == CONFIG
    (folder / "config.json").unlink()
    assert read_folder(folder)[0] == CONFIG


def test_equal_models_are_equal_bytes(folder, tmp_path):
    for k in range(5):
        write_folder(tmp_path / f"{k}", CONFIG, TENSORS)
        again = (tmp_path / f"{k}" / "model.safetensors").read_bytes()
        assert again == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("step", range(8))
def test_a_save_that_ends_anywhere_leaves_the_old_model_or_the_new(folder, monkeypatch, step):
    """Every call that changes the folder is a place to be killed at."""
    new = {name: tensor + 1 for name, tensor in TENSORS.items()}
    calls = iter(range(100))

    def killed_at_step(function):
        def call(*arguments, **options):
            if next(calls) == step:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "write_bytes")):
            patch.setattr(owner, name, killed_at_step(getattr(owner, name)))
        write_folder(folder, {**CONFIG, "size": 4}, new)
    config, tensors = read_folder(folder)
    expected = {3: TENSORS, 4: new}[config["size"]]
    for name, tensor in expected.items():
        assert_close(tensors[name], tensor, rtol=0, atol=0)


def test_a_folder_of_another_kind_is_said(folder):
    refused(folder, "holds a Thing, not a PiGNN", kind="PiGNN")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_weights_cut_short_are_said(folder, share):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(folder, "model.safetensors is damaged or cut short")


def test_every_damaged_byte_of_the_weights_is_noticed(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        refused(folder, "is damaged")


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_before_and_names_it(tmp_path, monkeypatch, fails):
    path = tmp_path / "result.json"
    write_atomically(path, b"before")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="the disk is full") as caught:
        write_atomically(path, b"after")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, b"before")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_cannot_hold_leave_the_folder_as_it_was(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_folder(folder, {"kind": "Thing", "mean": float("nan")}, {"w": torch.zeros(1)})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_model_on_the_hub_is_fetched_and_only_its_two_files(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert read_folder("hf://someone/model")[0] == CONFIG
    assert asked == [("someone/model", ["config.json", "model.safetensors"])]

    def fail(name, allow_patterns):
        raise RuntimeError("404 Client Error.\n\nRepository Not Found")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    refused("hf://someone/model", "cannot be fetched from the Hub: 404 Client Error. Repository")
