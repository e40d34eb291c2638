"""The pictures of the README, made again with today's code: docs/pictures/{page,report,report-phone,roofline}.png.

python benchmarks/pictures.py [--chromium /usr/bin/chromium] [--python .venv/bin/python] [--folder docs/pictures]

Needs playwright, Pillow and a Chromium; the Python of --python has foretell[web,pictures]. Takes about a minute.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from serve_browser import MODEL, WAIT_MS, server, tab

SETTING = (str(MODEL), "--batch-size", "8", "--dtype", "fp16")
COLOURS, WIDEST = 256, 1080


def report(browser: Browser, python: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        page = Path(made) / "report.html"
        subprocess.run([python, "-m", "foretell", "report", *SETTING, "-o", str(page)], check=True)
        for name, width, height in (("report", 1000, 1180), ("report-phone", 390, 844)):
            shown = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            shown.goto(page.as_uri())
            shown.screenshot(path=str(folder / f"{name}.png"))
            shown.close()


def served(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page.goto(url)
    page.get_by_role("tab", name="Predict").wait_for(timeout=WAIT_MS)
    panel = tab(page, "Predict")
    panel.locator(".ft-card").first.wait_for(timeout=WAIT_MS)  # the example that the page opens with
    page.wait_for_timeout(500)
    page.screenshot(path=str(folder / "page.png"), full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "docs" / "pictures")
    given = parser.parse_args()
    roofline = given.folder / "roofline.png"
    subprocess.run([given.python, "-m", "foretell", "roofline", *SETTING, "-o", str(roofline)], check=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        report(browser, given.python, given.folder)
        with server(given.python) as url:
            served(browser, url, given.folder)
        browser.close()
    for name in ("page", "report", "report-phone", "roofline"):
        file = given.folder / f"{name}.png"
        with Image.open(file) as picture:
            shown = picture.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        flat = Image.alpha_composite(white, shown).convert("RGB")
        width = min(flat.width, WIDEST)
        small = flat.resize((width, flat.height * width // flat.width), Image.Resampling.LANCZOS)
        # a palette takes a third of the bytes; this method keeps rare colours, those of small marks
        small.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE).save(file, optimize=True)
        print(f"{file}: {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
