"""Latency of ``softperm explore --serve``: 50 clients that ask for predictions for a minute.

    python benchmarks/serve.py

trains a small model, serves it on this machine and prints the requests answered and their latency.
"""

import http.client
import json
import threading
import time

import networkx as nx
import numpy as np
import uvicorn

from softperm import PiGNNClassifier
from softperm.explore.answers import Answers
from softperm.explore.contents import gather
from softperm.explore.server import build_app
from softperm.explore.write_page import page_html

CLIENTS, SECONDS = 50, 60


def main() -> None:
    graphs = [nx.gnp_random_graph(12 + i % 9, 0.2, seed=i) for i in range(200)]
    y = [i % 2 for i in range(200)]
    estimator = PiGNNClassifier(epochs=3, progress=False).fit(graphs, y)
    contents = gather(
        estimator, graphs, [str(i) for i in range(200)], {"y": np.array(y)}, explained=0
    )
    app = build_app(Answers(estimator, graphs, contents), page_html(contents, server=True))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    body = json.dumps({"graphs": [nx.node_link_data(graphs[3], edges="links")]}).encode()
    latencies: list[float] = []
    failures: list[int] = []
    end = time.monotonic() + SECONDS

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            start = time.monotonic()
            connection.request("POST", "/api/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            (latencies if answer.status == 200 else failures).append(
                time.monotonic() - start if answer.status == 200 else answer.status
            )

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    server.should_exit = True
    thread.join()
    middle, slow = np.quantile(latencies, [0.5, 0.99])
    print(
        f"{CLIENTS} clients, {SECONDS} s: {len(latencies):,} answers, {len(failures)} refused, "
        f"{len(latencies) / SECONDS:.0f} a second, median {middle * 1e3:.0f} ms, "
        f"99 % within {slow * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
