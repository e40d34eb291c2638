"""The pages that people read: every file, name, link, command and extra in them exists."""

import importlib
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from foretell.cli.main import app
from foretell.predictors.fitted_files import judged_errors
from lab.commands import app as lab_app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "foretell"
# the lab book and the changelog tell what was, under the names of their day
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
RECORDS = [
    ROOT / "CHANGELOG.md",
    ROOT / "lab" / "claims.md",
    *sorted((ROOT / "docs" / "lab").glob("*.md")),
    *sorted((ROOT / "reports").glob("*.md")),
]
LONGEST_README = 120
FEWEST_TERMS = 30
# files that a reader makes, or that another project has
EXAMPLES = {
    "adapt-plan.toml",
    "net.py",
    "prices.toml",
    "carbon.toml",
    "tiny.toml",
    "my-gpu.toml",
    "my-cpu.toml",
    "plan.toml",
}
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w/.:-])((?:[\w.-]+/)*[\w.-]+\.(?:py|toml))(?![\w:])")
DOTTED = re.compile(r"(?<![\w./-])((?:foretell|lab)(?:\.[A-Za-z_]\w*)+)")
COMMAND = re.compile(r"(?:^|(?<=[\s`$/(]))(foretell|python -m lab) +(-?-?[a-z][\w-]*)(.*)")
EXTRA = re.compile(r"(?:foretell|\.)\[([a-z,]+)\]")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code_of(page: Path) -> Iterator[str]:
    """What a page sets as code: lines of blocks, and words between backticks."""
    fenced = False
    for line in text_of(page).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip().removeprefix("$ ")
        else:
            yield from CODE.findall(line)


@cache
def tracked() -> frozenset[str]:
    """All files of the project, from its root."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # a copy without its history
        return frozenset(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.*") if ".venv" not in path.parts)
    return frozenset(listed.stdout.splitlines())


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file) if file else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


@each_page
def test_every_file_that_is_named_is_there(page: Path) -> None:
    for code in code_of(page):
        for name in FILE.findall(code):
            exists = name in EXAMPLES or any(file == name or file.endswith(f"/{name}") for file in tracked())
            assert exists, f"{name} in {code!r}"


@each_page
def test_every_name_that_is_dotted_can_be_imported(page: Path) -> None:
    for name in set(DOTTED.findall(text_of(page))):
        resolve(name)


def resolve(name: str) -> Any:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            known = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            known = False
        if known:
            target: Any = importlib.import_module(module)
            for attribute in parts[length:]:
                assert hasattr(target, attribute), name
                target = getattr(target, attribute)
            return target
    raise AssertionError(name)


@cache
def command_tree(name: str) -> Any:
    return lab_app if "lab" in name else app


def check_command(program: str, words: list[str]) -> None:
    """A line as somebody would type it: its sub-commands and its options are known."""
    command = command_tree(program)
    known = {"--help", "-h"}
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            assert word in command.list_commands(click.Context(command)), f"{program} has no command {word!r}"
            command = command.get_command(click.Context(command), word)
        known |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if re.fullmatch(r"--?[a-z][a-z-]*", word):
            assert word in known, f"{program} {command.name} has no option {word!r}"


@each_page
def test_every_command_is_known_with_its_options(page: Path) -> None:
    for code in code_of(page):
        for program, first, rest in COMMAND.findall(code):
            # a remark stands apart by three spaces or more; right behind the command up to four only align the lines
            words = [] if rest.startswith(" " * 5) else re.split(r" {3,}", rest.strip())[0].split()
            check_command(program, [first, *(word.rstrip(",;:.)") for word in words)])


def test_a_wrong_command_or_option_is_noticed() -> None:
    check_command("foretell", ["data", "card", "--json"])
    for wrong in (["tell"], ["predict", "model.onnx", "--fast"], ["data", "cards"], ["data", "card", "--slo-ms"]):
        with pytest.raises(AssertionError, match="has no"):
            check_command("foretell", wrong)
    with pytest.raises(AssertionError, match="has no command 'train'"):
        check_command("python -m lab", ["train"])


@each_page
def test_every_extra_can_be_installed(page: Path) -> None:
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for names in EXTRA.findall(text_of(page)):
        assert set(names.split(",")) <= set(extras), names


def test_the_readme_is_a_page() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= LONGEST_README


def test_the_index_names_every_page() -> None:
    index = text_of(ROOT / "docs" / "README.md")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not {name for name in pages if f"({name})" not in index}


def terms() -> list[tuple[str, str]]:
    return re.findall(r"^\*\*([^*]+)\*\* ?(.*)$", text_of(ROOT / "docs" / "glossary.md"), re.MULTILINE)


def test_the_glossary_is_sorted_and_every_term_has_a_place_in_the_code() -> None:
    names = [name.lower() for name, _ in terms()]
    assert len(names) >= FEWEST_TERMS
    assert names == sorted(set(names))


@pytest.mark.parametrize(("name", "meaning"), terms() if (ROOT / "docs" / "glossary.md").exists() else [])
def test_a_class_of_the_glossary_is_in_the_file_beside_it(name: str, meaning: str) -> None:
    """``Class`` (`path.py`): the file has the class, function or constant of that name."""
    places = re.findall(r"(?:`([\w.]+)` )?\(?`((?:[\w-]+/)*[\w-]+\.(?:py|toml))`", meaning)
    assert places, f"{name} names no file"
    for defined, path in places:
        file = next(place for place in (PACKAGE / path, ROOT / path) if place.exists())
        assert not defined or re.search(rf"\b{defined.split('.')[-1]}\b", text_of(file)), f"{defined} in {path}"


def test_the_readme_and_reports_say_the_same_errors() -> None:
    """Both come from predictors/unit/judged.toml; the README's first row is about the default predictor of the H200."""
    row = next(
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| H200, arch")
    )
    judged = judged_errors("h200", "unit-network")
    for text, error in (
        ("latency {}", "latency_ms"), ("(median {})", "latency_ms_median"), ("memory {}", "memory_mib"),
        ("energy {}", "energy_j"), ("power {}", "power_w"),
    ):  # fmt: skip
        assert text.format(f"{100 * judged[error]:.1f} %") in row
