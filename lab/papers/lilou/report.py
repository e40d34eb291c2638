"""Lab: the LILOU report: one page for its two parts; writing one section keeps the other."""

from collections.abc import Sequence
from pathlib import Path

from foretell.files import write_whole
from foretell.training.judging.table import Comparison, page

FILE = "lilou.md"
_HEAD = """# LILOU

The two networks of LILOU (Q. Liang, H. Wang, P. Shenoy), fitted to foretell's data, beside foretell's own predictors.
Architectures held out, five folds. Remade by `python -m lab evaluate lilou-partitioner --report`,
`python -m lab evaluate lilou-analyser --report` and `python -m lab remake lilou-compiled`."""
_SECTION = "\n\n## "


def write_section(folder: Path, title: str, text: str, tables: Sequence[Comparison]) -> Path:
    """Write the section of one part; sections are in the order of their titles."""
    file = folder / FILE
    # the other part's section is kept as it is
    sections = dict(part.split("\n", 1) for part in _read(file).split(_SECTION)[1:])
    sections[title] = "\n" + page(text, tables).decode()
    body = "".join(f"{_SECTION}{name}\n{sections[name].rstrip()}" for name in sorted(sections, reverse=True))
    write_whole(file, f"{_HEAD}{body}\n".encode())
    return file


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
