"""One headless Chromium for all pages; what it says on its console fails the test."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)  # else what playwright installed
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield found
        found.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page at a width, in a theme; it must ask for nothing and complain of nothing."""
    said: list[str] = []
    pages: list[Page] = []

    def opened(path: Path, width: int = 1280, theme: str = "light", *, touch: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            has_touch=touch,
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.extend({asked.url} - {path.as_uri()}))
        page.goto(path.as_uri())
        if page.locator(".timeline").count():
            page.wait_for_selector(".timeline[data-ready]")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert not said
