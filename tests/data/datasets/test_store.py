"""Where raw files are found: data root, cache, download, and what is said when nowhere."""

from pathlib import Path

import pytest
from file_server import FileServer

from softperm.data.datasets.store import Remote, Store, open_store

FILE = Remote("tu/TOY.zip", "https://example.org/TOY.zip", others=("tu/TOY",))


def put(folder: Path, place: str, text: str) -> Path:
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text(text)
    return folder / place


def test_the_data_root_comes_before_the_cache_before_a_download(
    tmp_path: Path, server: FileServer
) -> None:
    server.files["/tu/TOY.zip"] = b"fetched"
    store = Store(tmp_path / "cache", tmp_path / "root", server.url)
    assert store.get(FILE).read_text() == "fetched"
    assert store.get(FILE).is_relative_to(store.raw)
    own = put(store.root, "tu/TOY.zip", "own")
    assert store.get(FILE) == own
    folder = own.with_suffix("")
    folder.mkdir()
    assert store.get(FILE) == folder
    assert len(server.requests) == 1


def test_a_downloaded_file_that_changed_is_downloaded_again(
    tmp_path: Path, server: FileServer
) -> None:
    server.files["/tu/TOY.zip"] = b"fetched"
    store = Store(tmp_path / "cache", mirror=server.url)
    path = store.get(FILE)
    path.write_bytes(b"damaged")
    assert store.get(FILE).read_bytes() == b"fetched"


def test_a_file_the_user_put_into_the_cache_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", mirror="http://127.0.0.1:9")
    own = put(store.raw, "tu/TOY.zip", "own")
    assert store.get(FILE) == own
    assert own.read_text() == "own"


def test_offline_the_sentence_says_what_to_put_where(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", tmp_path / "root", "http://127.0.0.1:9")
    with pytest.raises(
        ValueError, match=r"tu/TOY.zip is neither .* put it at tu/TOY.zip below"
    ) as e:
        store.get(FILE)
    assert str(store.root) in str(e.value)
    assert "\n" not in str(e.value)


def test_arguments_come_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SOFTPERM_DATA", str(tmp_path / "a"))
    assert open_store().root == tmp_path / "a"
    assert open_store(tmp_path / "b").root == tmp_path / "b"
    assert open_store(cache=tmp_path / "c").cache == tmp_path / "c"
    monkeypatch.delenv("SOFTPERM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert open_store().cache == tmp_path / "x" / "softperm"


def test_a_missing_data_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        open_store(tmp_path / "nothing")
