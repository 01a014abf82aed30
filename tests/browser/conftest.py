"""One Chromium for all tests of this folder; they are skipped where there is none."""

import sys
from pathlib import Path

import pytest
from chromium import PROGRAMS, Browser, program

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))


@pytest.fixture(scope="session")
def browser():
    found = program()
    if found is None:
        pytest.skip(f"no Chromium: none of {', '.join(PROGRAMS)} is on the path")
    with Browser(found) as running:
        yield running


@pytest.fixture
def tab(browser):
    page = browser.page()
    page.size(1280)
    page.theme("light")
    yield page
    page.close()
    assert page.messages == [], "the page said something on its console"
