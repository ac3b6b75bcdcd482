"""The page and the model's answers over HTTP (extra ``explore``: Starlette and uvicorn).

The server reads no file that a request names: it has the page and the model in memory. It binds to
localhost by default, accepts only JSON of limited size, and computes one answer of the model at a
time.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from softperm import __version__
from softperm.explore.answers import ENDPOINTS, Answers

WAITING = 200  # requests that may wait for the model
WAIT = 20.0  # seconds that a request waits for its turn, and for its own body
STATUSES = {
    400: "not a JSON object, cut short, or addressed to a name that the server does not answer to",
    408: "the body did not arrive in time",
    413: "too large",
    415: "not application/json",
    422: "cannot be answered; the error says why",
    500: "internal error",
    503: "busy",
}
"""The refusals of the endpoints, with their descriptions in ``/openapi.json``."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')

logger = logging.getLogger("softperm")


def build_app(answers: Answers, page: str, names: Sequence[str] = ()) -> Any:
    """The ASGI application: the page at ``/``, answers under ``/api``, and ``/openapi.json``.

    Args:
        answers: of the model.
        page: from :func:`softperm.explore.write_page.page_html`, with ``server=True``.
        names: host names under which requests may address this server, in addition to localhost,
            the name of this machine and IP addresses; ``*`` allows all names.
    """
    match = _POLICY.search(page)
    policy = match[1].replace("&#x27;", "'") if match else HEADERS["Content-Security-Policy"]
    turns = CapacityLimiter(1)

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    async def show_openapi(request: Request) -> Response:
        return JSONResponse(openapi(answers))

    routes = [
        Route("/", show_page),
        Route("/openapi.json", show_openapi),
        *(
            Route(f"/api/{name}", _endpoint(answers, answer, turns), methods=["POST"])
            for name, (_, answer) in ENDPOINTS.items()
        ),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_CheckHost, names={"localhost", socket.gethostname(), *names})],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the host that the request names
    return _SecurityHeaders(app)  # outside of Starlette, whose answers to errors it adds headers to


class _SecurityHeaders:
    """Adds headers to every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                for name, value in HEADERS.items():
                    if name.lower().encode() not in present:
                        message["headers"].append((name.lower().encode(), value.encode()))
            await send(message)

        await self.app(scope, receive, send_with_headers)


class _CheckHost:
    """Refuses requests that address the server by an unknown name.

    A foreign page can let a name of its own point to this machine (DNS rebinding), but it cannot
    take an IP address as its name: those are always allowed.
    """

    def __init__(self, app: Any, names: set[str]) -> None:
        self.app, self.names = app, {name.lower() for name in names}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.app
        if scope["type"] == "http":
            name = _host_name(Headers(scope=scope).get("host", ""))
            if not ({name, "*"} & self.names or _is_address(name)):
                problem = f"this server does not answer to {name!r}: add it to the allowed names"
                app = JSONResponse({"error": problem}, 400)
        await app(scope, receive, send)


def _host_name(host: str) -> str:
    """The name in a ``Host`` header, without the port and the brackets of IPv6."""
    name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _endpoint(
    answers: Answers,
    answer: Callable[[Answers, dict[str, Any]], dict[str, Any]],
    turns: CapacityLimiter,
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        content = await _read(request, answers.limits.body)
        if turns.statistics().tasks_waiting >= WAITING:
            raise HTTPException(503, "too many requests are waiting; try again later")
        with anyio.move_on_after(WAIT) as waiting:
            await turns.acquire_on_behalf_of(request)
        if waiting.cancelled_caught:
            raise HTTPException(503, "the model is busy; try again later")
        try:
            result = await to_thread.run_sync(_compute, answers, answer, content)
        finally:
            turns.release_on_behalf_of(request)
        return JSONResponse(result)

    return respond


def _compute(
    answers: Answers,
    answer: Callable[[Answers, dict[str, Any]], dict[str, Any]],
    content: dict[str, Any],
) -> dict[str, Any]:
    try:
        return answer(answers, content)
    except (ValueError, ArithmeticError, ImportError) as error:
        raise HTTPException(422, " ".join(str(error).split())[:500]) from None
    except (MemoryError, RecursionError):
        raise HTTPException(422, "the request needs too much memory") from None


async def _read(request: Request, most: int) -> dict[str, Any]:
    """The JSON object of a request.

    Other content types are refused: a form of a foreign page cannot send JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the content type must be application/json")
    body = bytearray()
    try:
        with anyio.fail_after(WAIT):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(413, f"a request may have {most} bytes")
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the request was cut short") from None
    try:
        content = json.loads(bytes(body), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not JSON") from None
    if not isinstance(content, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    logger.error("an answer failed: %s: %s", type(error).__name__, error)
    return JSONResponse({"error": "internal error"}, 500)


GRAPH = {
    "description": "A SMILES; a node-link graph as networkx writes it; or the number of a graph of "
    "the collection, except in predict.",
    "oneOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"nodes": {"type": "array"}, "links": {"type": "array"}},
            "required": ["nodes", "links"],
        },
        {
            "type": "object",
            "properties": {"position": {"type": "integer"}},
            "required": ["position"],
        },
    ],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "predict": {"graphs": {"type": "array", "items": GRAPH}},
    "describe": {"graph": GRAPH},
    "explain": {"graph": GRAPH},
    "search": {"graph": GRAPH, "k": {"type": "integer", "default": 10}},
    "distance": {"first": GRAPH, "second": GRAPH, "seconds": {"type": "number"}},
}
"""The fields of each request; all but ``k`` and ``seconds`` are required."""


def openapi(answers: Answers) -> dict[str, Any]:
    """The description of all requests in the form of OpenAPI 3.1."""
    error = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    paths = {}
    for name, (summary, _) in ENDPOINTS.items():
        fields = REQUESTS[name]
        required = [field for field in fields if field not in ("k", "seconds")]
        schema = {"type": "object", "properties": fields, "required": required}
        responses: dict[str, Any] = {
            "200": {
                "description": summary,
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        }
        for status, words in STATUSES.items():
            responses[str(status)] = {
                "description": words,
                "content": {"application/json": {"schema": error}},
            }
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[f"/api/{name}"] = {
            "post": {
                "operationId": name,
                "summary": summary,
                "requestBody": body,
                "responses": responses,
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"softperm: {answers.contents.name}", "version": __version__},
        "paths": paths,
    }


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections at an address; port 0 takes any free port.

    Raises:
        ValueError: the address is taken or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        reason = str(problem.strerror or problem).partition(" (")[0].lower()
        raise ValueError(
            f"cannot serve at {host}, port {port}: {reason}; choose another host or port"
        ) from None


def serve(app: Any, listening: socket.socket) -> None:
    """Serves an application of :func:`build_app` until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", server_header=False, date_header=False, limit_concurrency=1000,
        timeout_keep_alive=5, timeout_graceful_shutdown=3, lifespan="off",
    )  # fmt: skip
    uvicorn.Server(config).run([listening])
