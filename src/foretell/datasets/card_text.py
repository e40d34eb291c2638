"""Datasets: the text of a card: short tables for a terminal or as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foretell.datasets.card import Card, Number
from foretell.units import engineering, size

_MAX_ROWS = 24  # rows of a table for reading; --json has all of them


_COUNTED: Mapping[str, str] = {
    "measurements": "workloads with latency and memory",
    "architectures": "models among them",
    "energy": "of them with energy",
    "kernel_traces": "workloads with every kernel of a run",
    "training": "workloads that are training steps",
    "llm": "workloads that are prefill or decode",
    "slices": "workloads on a share of a device, by share",
    "colocation": "groups that ran together",
    "mixes": "queues of jobs that ran a few at a time",
    "occupancy": "workloads with hardware counters",
    "compiled": "workloads as they are and compiled",
    "fusion_inductor": "models fused by Inductor",
    "fusion_onnxruntime": "models fused by ONNX Runtime",
}


@dataclass(frozen=True)
class Section:
    """A titled table; the columns numbered in ``texts`` are text, the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = (0,)


def sections(card: Card) -> Iterator[Section]:
    """The tables of a card, without its gaps; empty tables are left out."""
    time = card.kernel_time
    tied = (("a graph node", "share"), ("an ATen call", "share_tied_to_calls"))
    facts = ("campaign_id", "device", "first", "last", "records")
    all_sections = (
        Section("records", ("distinct", "count", "what is counted"), _counts(card.counts), texts=(0, 2)),
        Section("rows", ("table", "rows"), [*_pairs(card.by_table), ("size on disk", size(card.size_bytes))]),
        Section("ranges", ("quantity", "min", "median", "max"), [_range(*item) for item in card.ranges.items()]),
        *(Section(f"workloads by {_title(name)}", (name, "workloads"), _shortened(v)) for name, v in card.by.items()),
        Section("noise", ("quantity", "value"), [(name, _share(name, value)) for name, value in card.noise.items()]),
        _repeats(card),
        Section("kernel time", ("tied to", "share"), [(to, f"{time[key]:.2%}") for to, key in tied if key in time]),
        *(Section(f"failures in {name}", ("reason", "records"), _shortened(v)) for name, v in card.failures.items()),
        Section("campaigns", facts, [[str(campaign[name]) for name in facts] for campaign in card.campaigns]),
    )
    return (section for section in all_sections if section.rows)


def _title(column: str) -> str:
    return column.removesuffix("_name").replace("_", " ")


def _pairs(values: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{value:,}") for name, value in values.items()]


def _counts(values: Mapping[str, int]) -> list[tuple[str, str, str]]:
    return [(name.replace("_", " "), f"{value:,}", _COUNTED.get(name, "")) for name, value in values.items()]


def _shortened(values: Mapping[str, int]) -> list[tuple[str, str]]:
    rows = [(name, f"{value:,}") for name, value in values.items()]
    rest = list(values.values())[_MAX_ROWS:]
    return rows[:_MAX_ROWS] + ([(f"{len(rest)} more", f"{sum(rest):,}")] if rest else [])


def _range(name: str, values: Mapping[str, Number]) -> tuple[str, ...]:
    return (name, *(engineering(float(values[statistic])) for statistic in ("min", "median", "max")))


def _share(name: str, value: Number) -> str:
    return f"{value:,}" if name == "records" else f"{value:.2%}"


def _repeats(card: Card) -> Section:
    repeats = card.repeatability
    title = f"repeatability: {repeats.workloads} workloads, {repeats.pairs} pairs"
    if repeats.hours_between_max is not None:
        title += f", up to {repeats.hours_between_max:.1f} h apart, {repeats.pairs_on_another_day} on another day"
    rows = [
        (name, str(s.pairs), f"{s.median:.3%}", f"{s.mean:.3%}", f"{s.p95:.3%}", f"{s.max:.3%}")
        for name, s in repeats.differences.items()
    ]
    return Section(title, ("difference in", "pairs", "median", "mean", "95th percentile", "max"), rows)


def to_markdown(card: Card, command: str) -> str:
    """The card as a page; ``command`` is the command that makes it."""
    lines = ["# Dataset card", "", f"Made by `{command}`; do not edit.", ""]
    for section in sections(card):
        lines += [f"## {section.title[0].upper()}{section.title[1:]}", "", _row(section.columns)]
        marks = ["---" if index in section.texts else "---:" for index in range(len(section.columns))]
        lines += [_row(marks), *map(_row, section.rows), ""]
    lines += ["## Known gaps", "", *(f"- {gap}" for gap in card.gaps), ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
