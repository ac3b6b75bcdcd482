"""A browser without a network, and pages to open in it."""

import shutil
import time

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """Chromium of the system; the tests need none that Playwright would download."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no browser found: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens a file without a network; any message of the console or dialog is a failure."""
    complaints: list[str] = []
    contexts = []

    def opened(path, **options):
        options = {"viewport": {"width": 1280, "height": 800}, "offline": True, **options}
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(path if str(path).startswith("http") else f"file://{path}")
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def wait_until():
    """Waits for an expression of a page; Playwright's own way needs ``unsafe-eval``."""

    def wait(page, expression: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not page.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            page.wait_for_timeout(20)

    return wait
