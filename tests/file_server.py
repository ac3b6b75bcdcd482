"""A server of files on this machine that can misbehave, for tests of downloads."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """Serves files from memory; counts what it sent, and can misbehave."""

    files: dict[str, bytes] = field(default_factory=dict)
    version: str = '"one"'
    ranges: bool = True
    break_after: int | None = None  # bytes of one answer before the connection drops
    slow: float = 0.0  # seconds before each further kilobyte
    redirect: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range
    sent: int = 0
    url: str = ""


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            server.requests.append((self.path, asked))
            if server.redirect is not None:
                self.send_response(302)
                self.send_header("Location", server.redirect)
                self.end_headers()
                return
            content = server.files.get(self.path)
            if content is None:
                self.send_error(404, "Not Found")
                return
            begin = 0
            if asked and server.ranges and self.headers.get("If-Range") == server.version:
                begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin and begin >= len(content):
                self.send_error(416, "Range Not Satisfiable")
                return
            self.send_response(206 if begin else 200)
            self.send_header("ETag", server.version)
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            self._send(content[begin:])

        def _send(self, body: bytes) -> None:
            body = body[: server.break_after]
            for at in range(0, len(body), 1024):
                try:
                    self.wfile.write(body[at : at + 1024])
                    self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    return
                server.sent += len(body[at : at + 1024])
                time.sleep(server.slow)

    return Handler


@contextmanager
def serving() -> Iterator[FileServer]:
    served = FileServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    served.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
