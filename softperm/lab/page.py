"""A self-contained HTML page with headings, paragraphs, tables and figures."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from softperm.files import write_atomically

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1, h2 { line-height: 1.2; } figure { margin: 1.5rem 0; } figcaption { color: #555; }
svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
td { white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
"""


class Page:
    """A page to which parts are added in order.

    Args:
        title: heading of the page.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Adds the heading of a section."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Adds a paragraph of plain text."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Adds a table with a row for each mapping, whose keys are the columns."""
        columns = list(rows[0]) if rows else []
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(row[c]))}</td>" for c in columns) + "</tr>"
            for row in rows
        )
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def figure(self, figure: Figure, caption: str) -> None:
        """Adds a figure as inline SVG."""
        content = io.StringIO()
        figure.savefig(content, format="svg")
        drawing = content.getvalue()
        drawing = drawing[drawing.index("<svg") :]
        caption = html.escape(caption)
        self.parts.append(f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>")

    def save(self, path: Path) -> None:
        """Writes the page."""
        body = "\n".join(self.parts)
        text = (
            "<!doctype html>\n<html lang='en'>\n<head><meta charset='utf-8'>"
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n{body}\n</body>\n</html>\n"
        )
        write_atomically(path, text.encode())
