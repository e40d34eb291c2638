"""The page in a real browser: upload, predict, compare, advise, download, errors, pictures; nothing leaves the machine.

python benchmarks/serve_browser.py FOLDER [--chromium /usr/bin/chromium] [--url http://127.0.0.1:7860]

Needs playwright and a Chromium. Without --url it starts a server on a free port, by the Python of --python.
Writes FOLDER/{tab}-{light|dark}-{1440|390}.png and the downloads; exits 1 where a step fails.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

MODEL = Path(__file__).parents[1] / "examples" / "resnet50.onnx"
WAIT_MS = 60_000
SIZES = ((1440, 900), (390, 844))


@contextmanager
def server(python: str) -> Iterator[str]:
    command = [python, "-m", "foretell", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()


def tab(page: Page, name: str) -> Any:
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def upload(panel: Any, file: Path, place: int = 0) -> None:
    panel.locator(".ft-drop input").nth(place).set_input_files(str(file))
    # bold: the file is there; while it is being sent, its name stands in a note
    panel.locator(".ft-drop").nth(place).locator("b").get_by_text(file.name).wait_for(timeout=WAIT_MS)


def choose_devices(page: Page, panel: Any, *devices: str) -> None:
    """Add devices to the list of a tab, then close its list of options."""
    for device in devices:
        box = panel.get_by_label("Devices")
        box.click()
        box.press_sequentially(device)
        page.get_by_role("option").filter(has_text=device).first.click()
    page.keyboard.press("Escape")


def press(panel: Any, name: str, wanted: str) -> None:
    panel.get_by_role("button", name=name, exact=True).click()
    panel.locator(wanted).first.wait_for(timeout=WAIT_MS)


def save(page: Page, panel: Any, button: str, folder: Path) -> Path:
    with page.expect_download(timeout=WAIT_MS) as waiting:
        panel.get_by_role("button", name=button).click()
    file = folder / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file


def picture(page: Page, folder: Path, name: str) -> None:
    page.wait_for_timeout(500)
    page.screenshot(path=str(folder / f"{name}.png"), full_page=True)


def walk(page: Page, url: str, folder: Path, mark: str) -> None:
    page.goto(url)
    page.get_by_role("tab", name="Predict").wait_for(timeout=WAIT_MS)
    panel = tab(page, "Predict")
    picture(page, folder, f"empty-{mark}")
    press(panel, "Predict", ".ft-problem")
    picture(page, folder, f"error-{mark}")
    upload(panel, MODEL)
    choose_devices(page, panel, "A100", "L4")
    press(panel, "Predict", ".ft-card")
    shown = panel.locator(".ft").first.inner_text()
    assert "resnet50.onnx" in shown, shown
    assert "l4" in shown, shown
    picture(page, folder, f"predict-{mark}")
    found = json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))
    assert found["prediction"]["latency_ms"]["value"] > 0
    assert len(found["sweep"]) > 8
    report = save(page, panel, "Download report", folder).read_text(encoding="utf-8")
    assert "</html>" in report
    assert "resnet50" in report

    panel = tab(page, "Compare")
    upload(panel, MODEL, 0)
    panel.get_by_label("Second model").fill("timm:resnet18")
    press(panel, "Compare", ".ft-charts")
    picture(page, folder, f"compare-{mark}")
    assert "times" in json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))
    panel.get_by_label("Second model").fill("/etc/passwd")
    press(panel, "Compare", ".ft-problem")
    assert "No file of the server is opened" in panel.locator(".ft-problem").inner_text()

    panel = tab(page, "Advise")
    panel.get_by_label("Model").first.fill("timm:resnet18")
    panel.get_by_label("Longest latency, ms").fill("5")
    press(panel, "Advise", ".ft table")
    picture(page, folder, f"advise-{mark}")
    assert json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))["choices"]
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"the page is {wide} pixels too wide"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--url")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.url:
        look(given.url, given.folder, given.chromium)
    else:
        with server(given.python) as url:
            look(url, given.folder, given.chromium)


def look(url: str, folder: Path, chromium: str) -> None:
    outside, problems = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width, height in SIZES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.on(
                    "request",
                    lambda request: (
                        outside.append(request.url)
                        if urlsplit(request.url).scheme in ("http", "https", "ws", "wss")
                        and urlsplit(request.url).netloc != urlsplit(url).netloc
                        else None
                    ),
                )
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
                walk(page, url, folder, f"{scheme}-{width}")
                page.close()
                print(f"{scheme} {width}: upload, predict, compare, advise, downloads, errors")
        browser.close()
    print(f"requests that left the machine: {len(outside)} {sorted(set(outside))}")
    print(f"errors in the console: {len(problems)} {sorted(set(problems))[:5]}")
    sys.exit(1 if outside or problems else 0)


if __name__ == "__main__":
    main()
