"""The page of QM9's 130,831 molecules in a browser: size, first map, clicks, frames.

    python benchmarks/page.py [--page explore.html] [--clicks 50] [--out page.json]

trains a regressor of the polarisability on 2,000 molecules with the default settings, writes the
page of all of them and opens it in Chromium from disk, without a network. Frames are measured while
the map moves by one event a frame, with QM9's dots and with 200,000. Needs Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

MOVING = """async ([count, kind]) => {
    const { map } = window.page;
    const known = map.places.length / 2;
    const pick = (array, width) => Array.from({ length: count * width },
        (_, k) => array[((Math.floor(k / width) % known) * width) + (k % width)]);
    if (count !== map.size) Object.assign(map, {
        places: Uint16Array.from(pick(map.places, 2)),
        colours: Uint8Array.from(pick(map.colours, 3)),
        active: new Uint8Array(count).fill(1), size: count });
    const canvas = document.getElementById("map"), box = canvas.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    const at = (k) => ({ clientX: box.x + 300 + (k % 60), clientY: box.y + 250, pointerId: 1 });
    const times = [];
    canvas.setPointerCapture = () => {};
    if (kind === "pan") canvas.dispatchEvent(new PointerEvent("pointerdown", at(0)));
    let last = await frame();
    for (let k = 1; k <= 180; k++) {
        if (kind === "pan") canvas.dispatchEvent(new PointerEvent("pointermove", at(k)));
        else canvas.dispatchEvent(
            new WheelEvent("wheel", { deltaY: k % 60 < 30 ? -30 : 30, ...at(0) }));
        const now = await frame();
        times.push(now - last);
        last = now;
    }
    if (kind === "pan") canvas.dispatchEvent(new PointerEvent("pointercancel", at(0)));
    return times;
}"""  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=Path("qm9.html"), help="written if missing")
    parser.add_argument("--clicks", type=int, default=50)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if not options.page.exists():
        start = time.perf_counter()
        options.page.write_text(build(), encoding="utf-8")
        figures["seconds_to_build"] = time.perf_counter() - start
    figures["megabytes"] = options.page.stat().st_size / 1e6
    figures |= measure(options.page, options.clicks)
    print(json.dumps(figures, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


def build() -> str:
    """The page of QM9."""
    from softperm import PiGNNRegressor
    from softperm.data.datasets import load_dataset
    from softperm.data.datasets.splits import Split
    from softperm.explore.contents import gather
    from softperm.explore.write_page import page_html
    from softperm.progress import progress_bars
    from softperm.training.sources import from_dataset

    dataset = load_dataset("QM9", None)
    sample, none = torch.randperm(len(dataset))[:2000], torch.arange(0)
    data = from_dataset(dataset, ["alpha"], test_fraction=0.1, validation_fraction=0.0, seed=0)
    estimator = PiGNNRegressor(epochs=20, progress=False)
    estimator.fit_data(replace(data, split=Split(sample, none, none)), torch.device("cpu"))
    targets = dict(zip(dataset.target_names, dataset.y.double().numpy().T, strict=True))
    with progress_bars() as report:
        contents = gather(
            estimator, dataset.collection, data.ids, targets, name="QM9", report=report,
        )  # fmt: skip
    return page_html(contents)


def measure(path: Path, clicks: int) -> dict[str, Any]:
    """Figures of a page in a browser, times in milliseconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        first = []
        for _ in range(3):
            context = browser.new_context(
                viewport={"width": 1280, "height": 800}, offline=True, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(f"file://{path.resolve()}")
            page.wait_for_selector("body[data-ready]", timeout=120_000)
            first.append(page.evaluate("window.page.firstMapMilliseconds"))
        page.evaluate(
            "addEventListener('pointerup', event => window.pressed = event.timeStamp, true)"
        )
        count = page.evaluate("window.page.collection.size")
        answers = []
        for i in np.random.default_rng(1).integers(count, size=clicks).tolist():
            x, y = page.evaluate(f"window.page.map.place({i})")
            page.evaluate("window.page.answered = 0")
            page.locator("#map").click(position={"x": x, "y": y})
            while not (end := page.evaluate("window.page.answered")):
                page.wait_for_timeout(5)
            answers.append(end - page.evaluate("window.pressed"))
        moving = {
            f"{kind} {dots}": spread(page.evaluate(MOVING, [dots, kind]))
            for dots in (count, 200_000)
            for kind in ("pan", "zoom")
        }
        version = browser.version
        browser.close()
    return {
        "chromium": version,
        "graphs": count,
        "first_map": first,
        "click": spread(answers),
        "frames": moving,
    }


def spread(times: list[float]) -> dict[str, float]:
    return {
        "median": float(np.median(times)),
        "99 %": float(np.quantile(times, 0.99)),
        "largest": max(times),
    }


if __name__ == "__main__":
    main()
