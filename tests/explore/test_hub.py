"""Model cards, and pushing to a stand-in of the Hub's API."""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from samples import FAST, labelled_path, run_command

from softperm import PiGNNClassifier
from softperm.explore.hub import model_card, push_to_hub

EVIL = "<script>alert(1)</script>"
COMMIT = "a" * 40


@dataclass
class Hub:
    """The files of a local stand-in for the Hub, and the requests that it received."""

    files: dict[str, bytes] = field(default_factory=dict)
    created: list[dict] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    refuse: bool = False
    url: str = ""


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.tokens.add(self.headers.get("Authorization"))
            if hub.refuse:
                return self.answer({"error": "You may not write here."}, 403)
            if self.path == "/api/repos/create":
                hub.created.append(json.loads(body))
                return self.answer({"url": f"{hub.url}/someone/model"})
            if self.path == "/api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            if self.path == "/api/models/someone/model/preupload/main":
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = {"uploadMode": "regular", "shouldIgnore": False}
                return self.answer({"files": [{"path": name, **modes} for name in names]})
            assert self.path == "/api/models/someone/model/commit/main", self.path
            for line in filter(None, body.split(b"\n")):
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    hub.files[value["path"]] = base64.b64decode(value["content"])
            address = f"{hub.url}/someone/model/commit/{COMMIT}"
            return self.answer({"commitUrl": address, "commitOid": COMMIT})

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/someone/model/tree/{COMMIT}"):
                return self.answer(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": COMMIT}
                        for name, content in hub.files.items()
                    ]
                )
            if path.startswith("/api/models/someone/model"):
                siblings = [{"rfilename": name} for name in hub.files]
                return self.answer({"id": "someone/model", "sha": COMMIT, "siblings": siblings})
            content = hub.files[path.removeprefix(f"/someone/model/resolve/{COMMIT}/")]
            etag = hashlib.sha256(content).hexdigest()
            return self.send(content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        do_HEAD = do_GET

        def answer(self, content: dict | list, status: int = 200) -> None:
            self.send(json.dumps(content).encode(), {"Content-Type": "application/json"}, status)

        def send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    return Handler


@pytest.fixture
def hub():
    state = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


GRAPHS = [labelled_path(word) for word in ("ab", "aab", "abab", "bbb", "aa", "bab") * 3]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    estimator = PiGNNClassifier(**FAST).fit(GRAPHS, [EVIL, "b|c"] * 9)
    estimator.save(folder / "model")
    result = {"data": f"my {EVIL}", "metric": "accuracy", "test_score": 0.9, "train_score": 1.0}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "curve.png").write_bytes(b"a picture")
    return folder


def test_a_card_tells_data_scores_curve_and_use_and_names_stay_text(run):
    card = huggingface_hub.ModelCard(model_card(run, "someone/model", "mit"))
    assert (card.data.library_name, card.data.license) == ("softperm", "mit")
    (measured,) = card.data.eval_results
    assert (measured.metric_type, measured.metric_value) == ("accuracy", 0.9)
    assert 'PiGNNClassifier.load("hf://someone/model")' in card.text
    assert "![" in card.text
    assert "| accuracy, test graphs | 0.9 |" in card.text
    assert "| latent\\_vertices | 4 |" in card.text
    assert "Vertex labels seen in training: a, b." in card.text
    assert "&lt;script>" in card.text
    assert EVIL not in card.text
    assert "b\\|c" in card.text


def test_what_is_pushed_can_be_loaded_and_predicts_the_same(run, hub, monkeypatch, tmp_path):
    address = push_to_hub(run, "someone/model", private=True, token="hf_secret", endpoint=hub.url)
    assert address == f"{hub.url}/someone/model"
    assert hub.created[0]["name"] == "model"
    assert hub.created[0]["organization"] == "someone"
    assert hub.tokens == {"Bearer hf_secret"}
    assert {"README.md", "config.json", "model.safetensors", "curve.png"} <= set(hub.files)
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **options: download(
            name, cache_dir=tmp_path, endpoint=hub.url, token=False, **options
        ),
    )
    pulled = PiGNNClassifier.load("hf://someone/model")
    np.testing.assert_array_equal(
        pulled.predict_proba(GRAPHS), PiGNNClassifier.load(run / "model").predict_proba(GRAPHS)
    )


def test_a_refusal_of_the_hub_is_one_sentence(run, hub):
    hub.refuse = True
    with pytest.raises(ValueError, match=r"someone/model cannot be pushed: .*hf auth login"):
        push_to_hub(run, "someone/model", token="hf_secret", endpoint=hub.url)


@pytest.mark.parametrize("name", ["model", "a/b/c", "/model", ""])
def test_a_repository_has_an_owner_and_a_name(run, name):
    with pytest.raises(ValueError, match="owner/name"):
        push_to_hub(run, name)
    with pytest.raises(ValueError, match="owner/name"):
        model_card(run, name)


def test_the_command_writes_the_card_without_pushing(run, tmp_path):
    card = tmp_path / "card.md"
    done = run_command("push", run, "someone/model", "--card", card)
    assert done.exit_code == 0, done.output
    assert card.read_text(encoding="utf-8") == model_card(run, "someone/model")
