"""Draws the documentation's picture of the page, with a published model: python -m tools.service_screenshots FOLDER."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.service.served import ROOT, TOKEN, serving
from tests.service.test_page import ARGUMENTS, CHROMIUM

TEXTS = (
    "The committee did not approve the new budget because the treasurer had resigned.",
    "The committee did approve the new budget because the treasurer had resigned.",
)
SIZES = {
    "service": {"viewport": {"width": 1100, "height": 900}},
    "service-narrow": {"viewport": {"width": 400, "height": 800}},
    "service-dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
}


def main(folder: str) -> None:
    """Writes the pictures to docs/, and says how long colours took."""
    with (
        tempfile.TemporaryDirectory() as place,
        sync_playwright() as started,
        serving(Path(place) / "store", {"minilm": folder}) as served,
    ):
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name, size in SIZES.items():
            page = browser.new_page(**size)
            page.goto(f"{served.address}/?token={TOKEN}")
            page.get_by_label("Compare with a second text").check()
            for field, text in zip(("#text", "#text2"), TEXTS, strict=True):
                page.locator(field).fill(text)
            began = time.monotonic()
            page.get_by_role("button", name="Measure").click()
            page.get_by_role("rowheader", name="B − A").first.wait_for()
            page.locator("#sentence[data-shown=exact]").wait_for()
            print(f"{name}: {time.monotonic() - began:.1f} s")
            page.locator("#cancel").wait_for(state="hidden")
            page.screenshot(path=ROOT / "docs" / f"{name}.png", full_page=True)


if __name__ == "__main__":
    main(sys.argv[1])
