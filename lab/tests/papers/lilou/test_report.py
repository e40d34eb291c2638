"""Two parts share a page; each is replaced alone."""

from pathlib import Path

from foretell.training.judging.table import Comparison
from lab.papers.lilou.report import write_section


def test_a_section_is_replaced_and_the_other_stays(tmp_path: Path) -> None:
    def table(error: float) -> list[Comparison]:
        return [Comparison("all", {"lilou": {"mape": error}})]

    write_section(tmp_path, "How long", "First.", table(0.1))
    write_section(tmp_path, "Which edges", "Second.", table(0.2))
    file = write_section(tmp_path, "How long", "Third.", table(0.3))
    text = file.read_text(encoding="utf-8")
    assert file.name == "lilou.md"
    assert "First." not in text
    assert "| lilou | 10 |" not in text
    assert text.startswith("# LILOU\n")
    assert text.index("## Which edges\n\nSecond.") < text.index("## How long\n\nThird.")
    assert text.count("| lilou | 20 |") == text.count("| lilou | 30 |") == text.count("-m lab evaluate lilou-a") == 1
