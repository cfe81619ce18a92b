"""Pictures of the search page for the documentation: wide, wide in the dark, and on a telephone.

    python docs/search_screenshots.py glyphs.index query.png --out docs/images

Needs the package playwright and a Chromium: /usr/bin/chromium, or the one that CHROMIUM names. Show no photographs of
others: an index of glyphs or Omniglot will do.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from screenshots import ARGUMENTS

LOOKS = {"wide": (1280, 1120, "light"), "dark": (1280, 1120, "dark"), "narrow": (400, 1000, "light")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("query", type=Path, help="an image to search")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--looks", nargs="+", choices=LOOKS, default=list(LOOKS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "nearfield", "serve", str(arguments.index), "--port", "0", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as tool:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None, "the server did not start"
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = tool.chromium.launch(executable_path=chromium, args=ARGUMENTS.split())
        for look in arguments.looks:
            width, height, scheme = LOOKS[look]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(found[0])
            page.wait_for_selector("html[data-ready]", state="attached")
            page.set_input_files("#file", arguments.query)
            page.wait_for_selector("#hits .hit img")
            page.wait_for_timeout(1500)
            page.screenshot(path=arguments.out / f"search-{look}.png")
            page.close()
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
