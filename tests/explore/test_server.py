"""The server: the same answers as Python, refusals in one sentence, nothing that crashes it."""

import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import networkx as nx
import numpy as np
import pytest
from samples import labelled_path

from softperm import PiGNNClassifier
from softperm.distance import EditCosts, edit_distance
from softperm.explore.answers import ENDPOINTS, Answers, Limits
from softperm.explore.contents import gather
from softperm.explore.write_page import page_html
from softperm.search import GraphIndex

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

pytestmark = pytest.mark.filterwarnings("ignore::softperm.errors.GraphWarning")

WORDS = ["aab", "abab", "bbbb", "abba", "aaaa", "babab", "bb", "aabb", "baaab", "abaaba"] * 3


@pytest.fixture(scope="module")
def answers() -> Answers:
    graphs = [labelled_path(word) for word in WORDS]
    y = ["many" if word.count("a") > 2 else "few" for word in WORDS]
    ids = [f"{word} {i}" for i, word in enumerate(WORDS)]
    estimator = PiGNNClassifier(latent_vertices=3, hidden=4, epochs=5, progress=False)
    estimator.fit(graphs, y)
    contents = gather(estimator, graphs, ids, {"target": np.array(y)}, explained=0)
    return Answers(estimator, graphs, contents, GraphIndex.build(graphs, ids), Limits(body=200_000))


@pytest.fixture(scope="module")
def address(answers):
    """A running server; its log must stay free of tracebacks."""
    from softperm.explore.server import build_app

    app = build_app(answers, page_html(answers.contents, server=True), ["models.example"])
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def send(address, method, path, body=b"", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask(address, endpoint, content, status=200):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    kind = {"Content-Type": "application/json"}
    code, _, text = send(address, "POST", f"/api/{endpoint}", body, **kind)
    assert code == status, text
    return json.loads(text)


def node_link(graph: nx.Graph) -> dict:
    return nx.node_link_data(graph, edges="links")


NEW = labelled_path("abaab")


def test_predictions_are_those_of_the_estimator(address, answers):
    graphs = [NEW, labelled_path("bb")]
    rows = ask(address, "predict", {"graphs": [node_link(g) for g in graphs]})["predictions"]
    estimator = answers.estimator
    assert [row["prediction"] for row in rows] == estimator.predict(graphs).tolist()
    for row, chances in zip(rows, estimator.predict_proba(graphs), strict=True):
        named = dict(zip(estimator.classes_.tolist(), chances, strict=True))
        assert row["probabilities"] == pytest.approx(named)


def test_a_description_has_what_the_page_shows(address, answers):
    found = ask(address, "describe", {"graph": node_link(NEW)})
    np.testing.assert_allclose(
        found["permutation"], answers.estimator.permutations([NEW])[0], atol=1e-5
    )
    assert [edge[:2] for edge in found["edges"]] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert found["label"] == [0, 1, 0, 0, 1]
    assert found["unknown_labels"] == 0
    inside = ask(address, "describe", {"graph": {"position": 3}})
    assert inside["neighbours"][0]["distance"] == pytest.approx(0, abs=1e-5)
    odd = labelled_path("abz")
    assert ask(address, "describe", {"graph": node_link(odd)})["unknown_labels"] == 1


def test_explanations_are_those_of_the_estimator(address, answers):
    found = ask(address, "explain", {"graph": node_link(NEW)})
    (wanted,) = answers.estimator.explain([NEW], tolerance=1e-3)
    assert found["explains"] == wanted.explains
    assert "the network's part" in found["explains"]  # a forest shares in the prediction
    np.testing.assert_allclose(found["edges"], wanted.edges, rtol=1e-9)
    np.testing.assert_allclose(found["edge_totals"], wanted.edge_totals, rtol=1e-9)
    assert wanted.structure.any()  # through the network
    np.testing.assert_allclose(found["vertices"], wanted.vertices, rtol=1e-9)


def test_search_finds_neighbours_by_vector_and_by_proof(address, answers):
    twin = labelled_path("abba")
    found = ask(address, "search", {"graph": node_link(twin), "k": 3})
    assert {hit["id"].split()[0] for hit in found["by_vector"]} == {"abba"}
    proven = found["proven"]
    assert [hit["distance"] for hit in proven] == [0, 0, 0]
    assert all(hit["proven"] for hit in proven)


def test_distances_come_with_matching_and_proof(address):
    first, second = labelled_path("abab"), labelled_path("bba")
    found = ask(address, "distance", {"first": node_link(first), "second": node_link(second)})
    exact = edit_distance(first, second, costs=EditCosts.edges())
    assert (found["distance"], found["exact"]) == (exact.distance, True)
    labels = [first.nodes[u]["label"] for u in first], [second.nodes[v]["label"] for v in second]
    assert all(labels[0][u] == labels[1][v] for u, v in enumerate(found["matching"]) if v >= 0)


def described_statuses(address) -> set[int]:
    """The statuses that the description of the requests lists for every endpoint."""
    _, _, text = send(address, "GET", "/openapi.json")
    paths = json.loads(text)["paths"].values()
    (statuses,) = {tuple(path["post"]["responses"]) for path in paths}
    return set(map(int, statuses))


def test_every_request_is_described(address):
    _, _, text = send(address, "GET", "/openapi.json")
    description = json.loads(text)
    assert description["openapi"].startswith("3.")
    assert set(description["paths"]) == {f"/api/{name}" for name in ENDPOINTS}
    for path in description["paths"].values():
        assert path["post"]["requestBody"]["content"]["application/json"]["schema"]["required"]


def assert_secure(headers, text) -> None:
    names = {name.lower(): value for name, value in headers.items()}
    assert "default-src 'none'" in names["content-security-policy"]
    assert names["x-content-type-options"] == "nosniff"
    assert b"Traceback" not in text


@pytest.mark.parametrize("path", ["/", "/openapi.json", "/nothing", "/api/predict"])
def test_every_answer_has_a_content_security_policy(address, path):
    _, headers, text = send(address, "GET", path)
    assert_secure(headers, text)


def test_every_status_of_an_endpoint_is_provoked_and_described(address, monkeypatch):
    """Refusals have one sentence, and the security headers, also where the server itself failed."""
    kind = {"Content-Type": "application/json"}

    def fail(*_):
        raise KeyError("a defect")

    good = json.dumps({"graphs": [node_link(NEW)]}).encode()
    cases = {
        200: (good, kind, {}),
        400: (b"[]", kind, {}),
        408: (b"{", {**kind, "Content-Length": "100"}, {"WAIT": 0.1}),
        413: (b" " * 300_000, kind, {}),
        415: (b"{}", {}, {}),
        422: (b"{}", kind, {}),
        500: (good, kind, {"_compute": fail}),
        503: (good, kind, {"WAITING": 0}),
    }
    assert set(cases) == described_statuses(address)
    for status, (body, headers, changes) in cases.items():
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(f"softperm.explore.server.{name}", value)
            code, found, text = send(address, "POST", "/api/predict", body, **headers)
        assert code == status
        assert_secure(found, text)
        assert status == 200 or set(json.loads(text)) == {"error"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        (socket.gethostname(), 200),
        ("192.168.1.5:8000", 200),
        ("[fe80::1]:8000", 200),
        ("models.example:80", 200),
        ("evil.example", 400),
        ("models.example.evil.example", 400),
        ("localhost.evil.example", 400),
        ("1.2.3.4.evil.example", 400),
        ("", 400),
    ],
)
def test_only_known_names_and_addresses_reach_the_server(address, host, status):
    code, headers, text = send(address, "GET", "/openapi.json", Host=host)
    assert code == status
    assert_secure(headers, text)
    assert status == 200 or "add it to the allowed names" in json.loads(text)["error"]


def test_an_address_that_is_taken_or_foreign_is_named_with_the_remedy():
    from softperm.explore.server import listen

    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            ValueError, match=rf"port {port}: address already in use; choose another"
        ):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match=r"cannot serve at 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "headers"),
    [
        (404, "GET", "/../../etc/passwd", b"", {}),
        (404, "GET", "/%2e%2e/%2e%2e/etc/passwd", b"", {}),
        (404, "GET", "/page/main.js", b"", {}),
        (405, "GET", "/api/predict", b"", {}),
        (415, "POST", "/api/predict", b"{}", {"Content-Type": "text/plain"}),
        (400, "POST", "/api/predict", b"{", {"Content-Type": "application/json"}),
        (400, "POST", "/api/predict", b"[1]", {"Content-Type": "application/json"}),
        (400, "POST", "/api/predict", b'{"k": NaN}', {"Content-Type": "application/json"}),
        (413, "POST", "/api/predict", b" " * 300_000, {"Content-Type": "application/json"}),
    ],
)
def test_what_the_server_does_not_know_it_refuses(address, status, method, path, body, headers):
    code, _, text = send(address, method, path, body, **headers)
    assert code == status
    assert b"root:" not in text


@pytest.mark.parametrize(
    ("endpoint", "content", "sentence"),
    [
        ("predict", {}, "graphs must be a list"),
        ("predict", {"graphs": ["C"] * 65}, "at most 64"),
        ("predict", {"graphs": [{"nodes": 3, "links": []}]}, "expected a list of objects"),
        ("predict", {"graphs": ["/etc/passwd"]}, "not valid SMILES"),
        ("predict", {"graphs": ["C" * 3000]}, "longer than 2000"),
        ("describe", {"graph": {"position": -1}}, "whole number from 0 to 29"),
        ("describe", {"graph": {"position": 1e9}}, "whole number"),
        ("describe", {"graph": {"nodes": [{"id": 0}] * 2, "links": []}}, "listed twice"),
        ("search", {"graph": node_link(NEW), "k": 0}, "number from 1 to 100"),
        ("distance", {"first": node_link(NEW)}, "second is missing"),
        ("distance", {"first": [], "second": []}, "first must be a SMILES"),
        ("explain", {"graph": {"nodes": [{"id": k} for k in range(1200)], "links": []}}, "1000"),
    ],
)
def test_a_refusal_says_what_is_wrong(address, endpoint, content, sentence):
    assert sentence in ask(address, endpoint, content, status=422)["error"]


def odd_content(rng: random.Random) -> dict:
    """Fields of every request, each with a value of any kind, or with a mistake in it."""
    good = node_link(labelled_path("".join(rng.choices("ab", k=rng.randint(1, 6)))))
    values = [
        None, True, -1, 1e308, 10**30, "", "/etc/passwd", "C1CC", "[Xx]", "c1ccc1", "\x00",
        "𝒞" * 50, "<script>alert(1)</script>", "C" * 5000, [], {}, [[]], "\ud800",
        {"position": rng.randint(-3, 40)}, {"position": "../../etc/passwd"}, {"smiles": 7},
        {"nodes": [], "links": []},
        {"nodes": [{"id": [1, [2]]}], "links": [{"source": 0, "target": {}}]},
        {"nodes": [{"id": 0, "label": ["a", "b"]}], "links": []},
        {"nodes": [{"id": 0, "x": "much"}], "links": []}, {**good, "directed": True},
        {"nodes": [{"id": 0, "x": [1e300, 10**400]}], "links": []}, {**good, "multigraph": "yes"},
        {"nodes": good["nodes"], "links": [{"source": 0, "target": 99}]},
        {"nodes": good["nodes"], "links": [{"source": 0, "target": 0, "weight": 1e308}]},
        {"nodes": dict.fromkeys("ab"), "links": "ab"}, {"nodes": [None], "links": [None]},
        {"nodes": [{"id": k} for k in range(150)], "links": []}, good, good, good,
    ]  # fmt: skip
    several = [good] * rng.randint(1, 70)
    return {
        "graphs": rng.choice([rng.choice(values), [rng.choice(values)], several]),
        "graph": rng.choice(values), "first": rng.choice(values), "second": rng.choice(values),
        "k": rng.choice([1, 3, 0, -5, "3", 1e9, None, 2.5, 10**400, [1]]),
        "seconds": rng.choice([0, 1, -1, "x", 1e9, 10**400, True]),
    }  # fmt: skip


def odd_request(rng: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body and headers that no sensible client sends, or with a mistake in them."""
    body = json.dumps(odd_content(rng)).encode()
    damage = rng.random()
    if damage < 0.05:
        body = body.replace(b"1", rng.choice([b"NaN", b"-Infinity", b"1e999", b"0x1"]))
    elif damage < 0.1:
        body = body[: rng.randrange(len(body))]
    elif damage < 0.15:
        body = bytes(rng.randrange(256) for _ in range(rng.randrange(300)))
    elif damage < 0.17:
        body = rng.choice([b"[", b'{"a":']) * rng.randrange(30_000)
    elif damage < 0.19:
        body = b'{"graphs": "' + b"x" * rng.choice([400_000, 5_000_000]) + b'"}'
    method, path = "POST", f"/api/{rng.choice(list(ENDPOINTS))}"
    headers = {"Content-Type": "application/json"}
    oddity = rng.random()
    if oddity < 0.08:
        method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "ODD"])
    elif oddity < 0.16:
        path = rng.choice(
            ["/api", "/api/", "/api/predict/", "/api/%00", "/api/../../etc/passwd", "//etc/passwd",
             "/%2e%2e/%2e%2e/etc/passwd", "/api/predict?graphs=/etc/passwd", "/" + "x" * 5000,
             "/api/predict%0d%0aX:1", "/static/main.js", "/openapi.json", "/"]
        )  # fmt: skip
    elif oddity < 0.24:
        headers["Host"] = rng.choice(
            ["evil.example", "", "localhost", "[::1", "[::1]:x", "127.0.0.1:99999", "a" * 3000,
             "localhost:80@evil.example", "<script>alert(1)</script>"]
        )  # fmt: skip
    elif oddity < 0.3:
        kinds = ["", "text/plain", "multipart/form-data", "application/json; charset=utf-16", ";"]
        headers["Content-Type"] = rng.choice(kinds)
    return method, path, body, headers


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_odd_requests_are_all_answered_and_none_fails(count, address, answers):
    """By a refusal in one sentence or an answer, 16 clients at once; never by status 500."""

    def answer(seed):
        method, path, body, headers = odd_request(random.Random(seed))
        try:
            return send(address, method, path, body, **headers)
        except (BrokenPipeError, ConnectionResetError):  # refused before the whole body was sent
            assert len(body) > answers.limits.body, (method, path, headers)
            return 413, {}, b'{"error": "too large"}'

    with ThreadPoolExecutor(16) as clients:
        results = list(clients.map(answer, range(count)))
    codes = Counter(code for code, _, _ in results)
    known = {200, 400, 404, 405, 413, 415, 422}
    assert set(codes) - {503} == known, codes  # 503: others kept the model busy for 20 seconds
    for code, headers, text in results:
        assert b"Traceback" not in text
        assert b"root:" not in text
        assert not headers or "content-security-policy" in {name.lower() for name in headers}
        assert code == 200 or not text or set(json.loads(text)) == {"error"}
    test_predictions_are_those_of_the_estimator(address, answers)


@pytest.mark.usefixtures("without_shape_checks")
def test_fifty_clients_at_once_each_get_the_answer_to_their_own_graph(address, answers):
    words = ["".join(letters) for letters in itertools.product("ab", repeat=6)][:50]
    graphs = [labelled_path(word) for word in words]
    start = threading.Barrier(50)

    def client(graph):
        start.wait()
        content = {"graphs": [node_link(graph)]}
        return [ask(address, "predict", content)["predictions"][0] for _ in range(2)]

    with ThreadPoolExecutor(50) as clients:
        results = list(clients.map(client, graphs))
    for rows, chances in zip(results, answers.estimator.predict_proba(graphs), strict=True):
        named = dict(zip(answers.estimator.classes_.tolist(), chances, strict=True))
        assert [row["probabilities"] for row in rows] == [pytest.approx(named)] * 2


def test_the_page_predicts_explains_and_compares_graphs_of_ones_own(open_page, address, wait_until):
    page = open_page(f"{address}/", offline=False)
    page.click("#tab-own")
    page.fill("#own-graph", json.dumps(node_link(NEW)))
    page.click("#own-submit")
    page.wait_for_selector("#graph-title")
    assert page.inner_text("#graph-title") == "your graph"
    assert page.locator("#panel-graph .drawing-holder circle").count() == 5
    page.check("#explain")
    wait_until(page, "window.page.shown.explanation !== null")
    page.locator("#neighbours button.link").first.click()
    page.wait_for_selector("#verdict[data-exact=true]")


def test_a_mistake_in_ones_own_graph_is_said_in_the_page(browser, address, wait_until):
    page = browser.new_page()
    page.goto(f"{address}/")
    page.wait_for_selector("body[data-ready]")
    page.click("#tab-own")
    page.fill("#own-graph", "<script>alert(1)</script>")
    page.click("#own-submit")
    wait_until(page, "document.getElementById('own-message').textContent.includes('SMILES')")
    page.close()
