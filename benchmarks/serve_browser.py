"""The page in a real browser: every tab, uploads, links, downloads, errors, pictures; nothing leaves the machine.

python benchmarks/serve_browser.py FOLDER [--chromium /usr/bin/chromium] [--url http://127.0.0.1:7860] [--axe FILE]

Needs playwright and a Chromium. Without --url it starts a server on a free port, by the Python of --python.
Writes FOLDER/{state}-{light|dark}-{1440|390}.png and the downloads; exits 1 where a step fails. With --axe (the file of
axe-core) every state is checked for accessibility too; serious findings count as failures.
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


def press(panel: Any, name: str, wanted: str) -> None:
    panel.get_by_role("button", name=name, exact=True).click()
    panel.locator(wanted).first.wait_for(timeout=WAIT_MS)


def save(page: Page, panel: Any, button: str, folder: Path) -> Path:
    with page.expect_download(timeout=WAIT_MS) as waiting:
        panel.get_by_role("button", name=button).click()
    file = folder / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file


class Looking:
    """A page that is looked at: its pictures, and what axe finds on them."""

    def __init__(self, page: Page, url: str, folder: Path, mark: str, axe: str | None) -> None:
        self.page, self.url, self.folder, self.mark, self.axe = page, url, folder, mark, axe
        self.found: list[str] = []

    def picture(self, name: str) -> None:
        """Store a picture of the whole page, and look at its width and its accessibility."""
        self.page.wait_for_timeout(500)
        self.page.screenshot(path=str(self.folder / f"{name}-{self.mark}.png"), full_page=True)
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            self.found.append(f"{name} {self.mark}: the page is {wide} pixels too wide")
        if self.axe is not None:
            self.page.evaluate(self.axe)
            for problem in self.page.evaluate("async () => (await axe.run()).violations"):
                if problem["impact"] in ("serious", "critical"):
                    places = [node["html"][:120] for node in problem["nodes"][:3]]
                    self.found.append(f"{name} {self.mark}: {problem['id']}: {places}")


def walk(look: Looking) -> None:
    page, folder = look.page, look.folder
    page.goto(look.url)
    page.get_by_role("tab", name="Predict").wait_for(timeout=WAIT_MS)
    panel = tab(page, "Predict")
    panel.locator(".ft-card").first.wait_for(timeout=WAIT_MS)  # the example is answered without a press
    assert "example:resnet50" in panel.locator(".ft").first.inner_text()
    look.picture("example")
    panel.get_by_label("Model").first.fill("")
    press(panel, "Predict", ".ft-problem")
    look.picture("error")
    upload(panel, MODEL)
    press(panel, "Predict", ".ft-card")
    shown = panel.locator(".ft").first.inner_text()
    assert "resnet50.onnx" in shown, shown
    assert "l4" in shown, shown
    assert "Fits on h200" in shown, shown
    look.picture("predict")
    found = json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))
    assert found["prediction"]["latency_ms"]["value"] > 0
    assert len(found["sweep"]) > 8
    report = save(page, panel, "Download report", folder).read_text(encoding="utf-8")
    assert "</html>" in report
    assert "resnet50" in report
    # the name that is typed after a file was dropped is what is meant
    panel.get_by_label("Model").first.press_sequentially("example:resnet50")
    assert panel.locator(".ft-drop b").count() == 0
    panel.get_by_role("button", name="Predict", exact=True).click()
    panel.locator(".ft h3").get_by_text("example:resnet50").wait_for(timeout=WAIT_MS)

    panel = tab(page, "Compare")
    look.picture("compare-empty")
    upload(panel, MODEL, 0)
    panel.get_by_label("Second model").fill("example:resnet50")
    press(panel, "Compare", ".ft-charts")
    look.picture("compare")
    assert "times" in json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))
    panel.get_by_label("Second model").fill("/etc/passwd")
    press(panel, "Compare", ".ft-problem")
    assert "No file of the server is opened" in panel.locator(".ft-problem").inner_text()

    panel = tab(page, "Share a GPU")
    for label in ("First model", "Second model"):
        panel.get_by_label(label).fill("example:resnet50")
    press(panel, "Share", ".ft-charts")
    look.picture("share")
    assert json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))["fits"] is True

    panel = tab(page, "Advise")
    panel.get_by_label("Model").first.fill("example:resnet50")
    limit_ms = str(10 + sum(map(ord, look.mark)) % 89)  # another one for each look, so that no answer is cached
    panel.get_by_label("Longest latency, ms").fill(limit_ms)
    press(panel, "Advise", ".ft-busy")
    look.picture("busy")
    panel.locator(".ft table").first.wait_for(timeout=WAIT_MS)
    look.picture("advise")
    advice = json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))
    shown = [choice["usd_per_million"]["value"] for choice in advice["choices"] if not choice["incomplete"]]
    assert shown == sorted(shown)
    assert "tab=advise" in page.url
    assert f"slo_ms={limit_ms}" in page.url

    panel = tab(page, "Language models")
    press(panel, "Serve", ".ft-card")
    look.picture("language-model")
    assert json.loads(save(page, panel, "Download JSON", folder).read_text(encoding="utf-8"))["fits"] is True
    press(panel, "Where to serve it", "table")
    look.picture("language-model-where")

    page.goto(f"{look.url}/?tab=predict&model=example:resnet50&devices=l4&batch_size=100000&dtype=fp32")
    panel = page.get_by_role("tabpanel").filter(visible=True)
    panel.locator(".ft-no").first.wait_for(timeout=WAIT_MS)
    assert panel.get_by_label("Batch size").input_value() == "100000"
    look.picture("link")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--url")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    axe = given.axe.read_text(encoding="utf-8") if given.axe else None
    if given.url:
        look(given.url, given.folder, given.chromium, axe)
    else:
        with server(given.python) as url:
            look(url, given.folder, given.chromium, axe)


def look(url: str, folder: Path, chromium: str, axe: str | None) -> None:
    outside, problems, found = [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
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
                looking = Looking(page, url.rstrip("/"), folder, f"{scheme}-{width}", axe)
                walk(looking)
                found += looking.found
                page.close()
                print(f"{scheme} {width}: every tab, uploads, a link, downloads, errors", flush=True)
        browser.close()
    print(f"requests that left the machine: {len(outside)} {sorted(set(outside))}")
    print(f"errors in the console: {len(problems)} {sorted(set(problems))[:5]}")
    print(f"too wide, or serious for axe: {len(found)}")
    for text in found:
        print(f"  {text}")
    sys.exit(1 if outside or problems or found else 0)


if __name__ == "__main__":
    main()
