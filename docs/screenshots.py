"""Pictures of a report for the documentation: wide, wide in the dark, and on a telephone.

    python docs/screenshots.py runs/bench/report.html --out docs/images

Needs the package playwright and a Chromium: /usr/bin/chromium, or the one that CHROMIUM names.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LOOKS = {"wide": (1280, 860, "light"), "dark": (1280, 860, "dark"), "narrow": (400, 820, "light")}
SECTIONS = ("leaderboard", "curves", "search", "bias", "atlas", "gallery", "weights", "provenance")


def picture(page: Page, section: str, path: Path) -> None:
    """One section from its top, one window high."""
    page.evaluate("id => document.getElementById(id).scrollIntoView({ behavior: 'instant' })", section)
    page.wait_for_timeout(500)
    page.screenshot(path=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--sections", nargs="+", default=["top", *SECTIONS], help="top, or the id of a section")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as tool:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = tool.chromium.launch(executable_path=chromium, args=ARGUMENTS.split())
        for look, (width, height, scheme) in LOOKS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(arguments.report.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            for section in arguments.sections:
                if section == "top":
                    page.evaluate("scrollTo(0, 0)")
                    page.wait_for_timeout(300)
                    page.screenshot(path=arguments.out / f"report-top-{look}.png")
                elif page.locator(f"#{section}").count():
                    picture(page, section, arguments.out / f"report-{section}-{look}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
