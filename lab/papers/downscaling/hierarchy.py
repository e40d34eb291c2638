"""Lab: the hierarchical roofline of ten networks, by counters: ``python -m lab.papers.downscaling.hierarchy``.

As in section 3.3.2 of the thesis: for each level of memory the arithmetic intensity is the operations over the bytes
that ``ncu`` counted there, and the rate is the operations over the time of the kernels. ``lab.campaigns.roofline``
writes the file that is read here. Operations are those of the counters where they count a known product right, and
those of the network's graph where they do not; the report says which.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.devices import find_device
from foretell.devices.ceilings import Ceilings
from foretell.errors import DataError, ForetellError
from foretell.features.units import columns_of
from foretell.files import write_whole
from foretell.profiling.jit_kernels import half_flops, load_bytes
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.registry import build
from foretell.rendering.svg import canvas
from foretell.rendering.svg.charts import mark
from foretell.units import GIGA, TERA, engineering, ms, seconds_from_us
from foretell.workflows.measure.characterise import known_ceilings
from foretell.workflows.workload import read_workload
from lab.campaigns.roofline import BUSY, GMMA, HFMA2, HMMA, LEVELS, OPS, OUT, SASS, TIME, VERSION
from lab.papers.downscaling.costs import MODEL
from lab.papers.downscaling.tensor_cores import is_contraction, uses_tensor_cores

REPORT = Path("reports/hierarchical-roofline.md")
PICTURE = Path("docs/pictures/hierarchical-roofline.svg")
PRODUCT_FLOPS = 2.0 * 4096**3
_RIGHT = (0.95, 1.05)  # counted over known operations
_NEAR = 0.25  # below this share of every ceiling no level is called the limit
_WIDTH, _HEIGHT = 860, 560


@dataclass(frozen=True)
class Kernel:
    """A kernel, how often it ran, and what was counted of one run."""

    name: str
    times: int
    values: Mapping[str, float]

    def total(self, *metrics: str) -> float:
        """The sum of some metrics over all its runs; what is absent counts as nothing."""
        return self.times * math.fsum(self.values.get(metric, 0.0) for metric in metrics)

    @property
    def tensor_instructions(self) -> float | None:
        """Instructions of tensor cores, without fp16 multiply-adds that are counted with them; None: not counted."""
        if HMMA not in self.values or GMMA not in self.values or HFMA2 not in self.values:
            return None
        return self.values[HMMA] + self.values[GMMA] - self.values[HFMA2]


@dataclass(frozen=True)
class Counted:
    """A workload of the file. ``spec`` tells probes from networks."""

    network: str
    spec: str
    batch_size: int
    input_shape: tuple[int, ...]
    dtype: str
    kernels: tuple[Kernel, ...]
    error: str = ""

    def total(self, *metrics: str) -> float:
        """The sum of some metrics over all kernels."""
        return math.fsum(kernel.total(*metrics) for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        """The time of all kernels."""
        return seconds_from_us(self.total(TIME))

    @property
    def plain_flops(self) -> float:
        """Operations without tensor cores: a multiply-add is two."""
        return math.fsum(weight * self.total(metric) for metric, weight in SASS.items())

    @property
    def has_operations(self) -> bool:
        """Whether operations were counted of every kernel, with those of tensor cores or without."""
        return all(set(SASS) <= kernel.values.keys() for kernel in self.kernels)

    @property
    def tensor_flops(self) -> float:
        """Operations on tensor cores, as counted. Of two names for one counter only the larger is taken."""
        return max(self.total(*OPS[:3]), self.total(*OPS[3:]))

    @property
    def busy(self) -> float | None:
        """How busy the tensor pipe was, weighted by the time of kernels; None where it was not counted."""
        if any(BUSY not in kernel.values for kernel in self.kernels):
            return None
        weighted = math.fsum(kernel.total(TIME) * kernel.values[BUSY] for kernel in self.kernels)
        return weighted / self.total(TIME) / 100

    def tensor_share(self) -> tuple[float | None, float]:
        """The share of the time in kernels that use tensor cores: by their instructions, and by their names."""
        told = [kernel.tensor_instructions for kernel in self.kernels]
        by_name = math.fsum(k.total(TIME) for k in self.kernels if is_contraction(k.name) and uses_tensor_cores(k.name))
        counted = None
        if None not in told:
            counted = math.fsum(k.total(TIME) for k, count in zip(self.kernels, told, strict=True) if count)
            counted /= self.total(TIME)
        return counted, by_name / self.total(TIME)


def read_counted(path: Path) -> tuple[dict[str, Any], list[Counted]]:
    """The facts and the workloads of the campaign's file."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"There is no {path}: run python -m lab.campaigns.roofline on the GPU first.") from None
    if values.get("version") != VERSION:
        raise DataError(f"{path} is not of version {VERSION}: run python -m lab.campaigns.roofline again.")
    metrics, names = values["metrics"], values["names"]
    found = []
    for row in values["workloads"]:
        kernels = tuple(
            Kernel(names[name], times, {m: v for m, v in zip(metrics, counted, strict=True) if v is not None})
            for name, times, *counted in row.get("kernels", [])
        )
        sizes = (row["batch_size"], tuple(row["input_shape"]), row["dtype"])
        found.append(Counted(row["network"], row["spec"], *sizes, kernels, row.get("error", "")))
    return values, found


def read_all(paths: Sequence[Path]) -> tuple[dict[str, Any], list[Counted]]:
    """The workloads of several files, each once: what one did not get to, another may have."""
    facts: dict[str, Any] = {}
    best: dict[tuple[str, str, str], Counted] = {}
    for path in paths:
        values, found = read_counted(path)
        if facts and any(facts[key] != values[key] for key in ("device", "cache_control")):
            raise DataError(f"{path} was counted on another device or with other caches: name files of one kind.")
        facts = facts or values
        for one in found:
            key = (one.network, one.spec, one.dtype)
            if key not in best or not best[key].kernels:
                best[key] = one
    return facts, list(best.values())


@dataclass(frozen=True)
class Checks:
    """Counted over known work of the probes; None where a probe was not counted."""

    fp16_product: float | None
    tf32_product: float | None
    half: float | None
    l1_bytes: float | None

    def trusts(self, dtype: str) -> bool:
        """Whether the counters of tensor cores count the product of a precision right."""
        ratio = self.fp16_product if dtype == "fp16" else self.tf32_product
        return ratio is not None and _RIGHT[0] <= ratio <= _RIGHT[1]


def checks_of(found: Sequence[Counted], device: str) -> Checks:
    """What the probes say of the counters."""
    sms = find_device(device).sms
    probes = {(one.spec, one.dtype): one for one in found if not one.network and one.kernels}
    half, loads = probes.get(("lab:half-loop", "fp32")), probes.get(("lab:load-loop", "fp32"))
    fp16, tf32 = probes.get(("lab:product", "fp16")), probes.get(("lab:product", "tf32"))
    return Checks(
        fp16.tensor_flops / PRODUCT_FLOPS if fp16 else None,
        tf32.tensor_flops / PRODUCT_FLOPS if tf32 else None,
        half.plain_flops / half_flops(sms) if half else None,
        loads.total(LEVELS["L1"]) / load_bytes(sms) if loads else None,
    )


def graph_flops(one: Counted) -> float | None:
    """The operations of the network's graph at its batch size; None where it cannot be read here."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            workload = read_workload(
                _model(one.spec, Path(folder)),
                batch_size=one.batch_size,
                dtype=one.dtype,
                input_shape=one.input_shape,
                trust=True,
            )
    except ForetellError as error:
        sys.stderr.write(f"{one.network}: no graph: {error}\n")
        return None
    return float(sum(cost.flops for cost in columns_of(workload).costs))


def _model(spec: str, folder: Path) -> Any:
    """What ``foretell.predict`` takes for a spec: a name of timm, a configuration, or a network that is built."""
    if spec == "lab:downscaling":
        return MODEL
    parsed = parse_spec(spec)
    if parsed.zoo == "timm":
        return spec
    if parsed.zoo == "hf":
        path = folder / "config.json"
        path.write_text(json.dumps({"model_type": parsed.name, **parsed.arguments}), encoding="utf-8")
        return path
    return build(spec).model


@dataclass(frozen=True)
class Row:
    """A network in one precision, as the report has it."""

    one: Counted
    flops: float
    counted_flops: float | None
    graph_flops: float | None
    shares: Mapping[str, float]  # of each ceiling that is known

    @property
    def flops_per_s(self) -> float:
        """The rate that is reached."""
        return self.flops / self.one.seconds

    def intensity(self, level: str) -> float:
        """Operations a byte of a level; infinite where it moved none."""
        moved = self.one.total(LEVELS[level])
        return self.flops / moved if moved else math.inf

    @property
    def limit(self) -> str:
        """The nearest ceiling, or the word that none is near."""
        nearest = max(self.shares, key=lambda name: self.shares[name])
        return nearest if self.shares[nearest] >= _NEAR else f"none (nearest {nearest})"


def row_of(one: Counted, checks: Checks, ceilings: Ceilings, graph: float | None) -> Row:
    """Operations, and the share of each ceiling."""
    counted = one.tensor_flops + one.plain_flops if one.has_operations else None
    trusted = counted if checks.trusts(one.dtype) or graph is None else graph
    flops = graph if trusted is None else trusted
    if flops is None:
        raise DataError("its operations were not counted, and it has no graph here")
    bandwidths = {"L1": ceilings.l1_gb_per_s, "L2": ceilings.cache_gb_per_s, "HBM": ceilings.dram_gb_per_s}
    shares = {
        level: one.total(LEVELS[level]) / one.seconds / (rate * GIGA) for level, rate in bandwidths.items() if rate
    }
    peak = ceilings.tflops.get("tf32" if one.dtype == "fp32" else one.dtype)
    if peak:
        shares["tensor cores"] = flops / one.seconds / (peak * TERA)
    return Row(one, flops, counted, graph, shares)


def lines(values: Mapping[str, Any], rows: Sequence[Row], checks: Checks, failed: Sequence[Counted]) -> Iterator[str]:
    """The report, line by line."""
    yield "# Hierarchical roofline of ten networks, by hardware counters"
    yield ""
    yield (
        f"Forward passes on an {values['device']}, {values['date']}, one run of each kernel under ncu with its caches "
        f"{'flushed before' if values['cache_control'] == 'all' else 'left as they are'}; clocks are not locked. "
        "`python -m lab remake hierarchical-roofline` makes this page from the counters."
    )
    yield ""
    heads = "network | precision | batch | kernels, ms | GFLOP counted | of the graph | TFLOP/s"
    yield f"| {heads} | {' | '.join(f'FLOP/byte {level}' for level in LEVELS)} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        one = row.one
        operations = (row.counted_flops, row.graph_flops)
        counted, graph = (f"{flops / GIGA:,.0f}" if flops else "–" for flops in operations)
        intensities = " | ".join(f"{row.intensity(level):.1f}" for level in LEVELS)
        yield (
            f"| {one.network} | {one.dtype} | {one.batch_size} | {ms(one.seconds):.2f} | "
            f"{counted} | {graph} | {row.flops_per_s / TERA:.1f} | {intensities} |"
        )
    yield ""
    names = ("L1", "L2", "HBM", "tensor cores")
    heads = " | ".join(f"of {name}, %" for name in names)
    yield f"| network | precision | {heads} | bound by | time in tensor kernels, % | by name, % | tensor pipe busy, % |"
    yield "|---|---|---:|---:|---:|---:|---|---:|---:|---:|"
    for row in rows:
        cells = [f"{100 * row.shares[name]:.0f}" if name in row.shares else "–" for name in names]
        by_counter, by_name = row.one.tensor_share()
        tensor = (_percent(by_counter), _percent(by_name), _percent(row.one.busy))
        shown = (row.one.network, row.one.dtype, *cells, row.limit, *tensor)
        yield "| " + " | ".join(shown) + " |"
    yield ""
    yield (
        "Shares are means over all kernels' time, of the ceilings that `foretell characterise` measured. "
        f"A network is called bound by the nearest ceiling from {_NEAR:.0%} of it on. Time in tensor kernels is that "
        "of kernels that issue instructions of tensor cores; the last column is how busy their pipe was, over all time."
    )
    yield ""
    yield f"![Networks at three intensities, one for each level, under the roofs](../{PICTURE})"
    yield ""
    yield "**Counted over known work.** " + ", ".join(
        f"{what} {'not counted' if ratio is None else f'{ratio:.2f}'}"
        for what, ratio in (
            ("operations of a 4096 product in fp16", checks.fp16_product), ("in tf32", checks.tf32_product),
            ("of fp16 multiply-adds without tensor cores", checks.half), ("bytes of loads from L1", checks.l1_bytes),
        )
    ) + "."  # fmt: skip
    untrusted = sorted({row.one.dtype for row in rows if not checks.trusts(row.one.dtype)})
    if untrusted:
        yield ""
        yield f"The counters miss operations of tensor cores in {' and '.join(untrusted)}: those of the graph are used."
    yield ""
    yield (
        "Bytes of L1 are those of its tag stage: what Hopper's copy engine (TMA) brings into shared memory does not "
        "pass it, so that products made of `wgmma` may show fewer bytes at L1 than at L2."
    )
    for one in failed:
        yield ""
        yield f"{one.network} in {one.dtype} has no counters: {one.error}."


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


def draw(rows: Sequence[Row], ceilings: Ceilings, dtype: str) -> str:
    """The picture: each network at three intensities, one for each level, under the roofs of one precision."""
    shown = [row for row in rows if row.one.dtype == dtype]
    slopes = {"L1": ceilings.l1_gb_per_s, "L2": ceilings.cache_gb_per_s, "HBM": ceilings.dram_gb_per_s}
    bandwidths = {level: rate * GIGA for level, rate in slopes.items() if rate}
    peaks = {f"{name} tensor cores": rate for name, rate in ceilings.tflops.items()
             if name == ("tf32" if dtype == "fp32" else dtype)}  # fmt: skip
    peaks |= {f"{name}, plain": rate for name, rate in
              {**{k: v for k, v in ceilings.tflops.items() if k == "fp32"}, **ceilings.plain_tflops}.items()
              if name == dtype}  # fmt: skip
    flats = {name: rate * TERA for name, rate in peaks.items()}
    points = [(row, level, row.intensity(level)) for row in shown for level in LEVELS]
    points = [point for point in points if math.isfinite(point[2]) and point[0].flops]
    rates = [row.flops_per_s for row in shown] + list(flats.values())
    y = canvas.scale([*rates, max(rates) * 1.7, min(rates) / 3], _HEIGHT - 66.0, 86.0, log=True, min_gap=36)
    ends = [at for _, _, at in points] + [flat / slope for flat in flats.values() for slope in bandwidths.values()]
    start = canvas.PAD + canvas.ticks_width(y) + 10
    x = canvas.scale([*ends, max(ends) * 4], start, _WIDTH - canvas.PAD, log=True, min_gap=60)
    title = f"Hierarchical roofline, {dtype}, by hardware counters"
    parts = [canvas.heading(title, _WIDTH)]
    for number, level in enumerate(LEVELS):
        at = canvas.PAD + 90 * number
        parts += [mark(at + 6, 46, number, 5.0), canvas.svg_text(at + 16, 50, level)]
    parts += canvas.axes(x, y, "FLOP a byte of the level", "FLOP a second")
    highest = max(flats.values())
    for number, level in enumerate(LEVELS):
        if level in bandwidths:
            slope = bandwidths[level]
            low = max(x.low, y.low / slope)
            a, b, c, d = x.place(low), y.place(low * slope), x.place(highest / slope), y.place(highest)
            parts.append(f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" class="ch-s-{number}" stroke-width="1.5"/>')
            name = f"{level} {engineering(slope, 'B/s')}"
            parts.append(
                canvas.svg_text(c, d - 6 - 12 * number, name, tone=str(number), anchor="end", size=canvas.SMALL)
            )
    for name, flat in flats.items():
        left = x.place(max(x.low, flat / max(bandwidths.values(), default=flat)))
        parts.append(f'<path d="M{left:.1f} {y.place(flat):.1f}H{x.end:.1f}" class="ch-s-ink" stroke-width="1.5"/>')
        text = f"{name} {engineering(flat, 'FLOP/s')}"
        parts.append(canvas.svg_text(x.end - 4, y.place(flat) - 5, text, anchor="end", size=canvas.SMALL))
    for row, level, intensity in points:
        note = f"{row.one.network}, {level}\n{intensity:.3g} FLOP a byte, {engineering(row.flops_per_s, 'FLOP/s')}"
        number = list(LEVELS).index(level)
        parts.append(mark(x.place(intensity), y.place(row.flops_per_s), number, 5.0, note))
    places = [
        (row, max(at for other, _, at in points if other is row)) for row in shown if any(p[0] is row for p in points)
    ]
    lowest = 0.0
    for row, at in sorted(places, key=lambda place: -place[0].flops_per_s):  # from the top; no name stands on another
        lowest = max(y.place(row.flops_per_s) + 4, lowest + canvas.SMALL + 1)
        parts.append(canvas.svg_text(x.place(at) + 8, lowest, row.one.network, size=canvas.SMALL))
    return canvas.picture(title, _WIDTH, _HEIGHT, parts)


def main() -> int:
    """Write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counters", type=Path, nargs="+", default=sorted(OUT.parent.glob("*.json")) or [OUT])
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--precision", default="fp16", help="of the picture")
    parser.add_argument("--no-graphs", action="store_true", help="do not read the networks, which takes minutes")
    chosen = parser.parse_args()
    try:
        values, found = read_all(chosen.counters)
        ceilings = known_ceilings(find_device(values["device"]))
        if ceilings is None:
            raise DataError(f"The ceilings of an {values['device']} were not measured: run foretell characterise.")
    except ForetellError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    checks = checks_of(found, values["device"])
    networks = [one for one in found if one.network]
    rows, failed = [], [one for one in networks if not one.kernels]
    for one in networks:
        if one.kernels:
            try:
                rows.append(row_of(one, checks, ceilings, None if chosen.no_graphs else graph_flops(one)))
            except DataError as error:
                failed.append(replace(one, error=str(error)))
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    write_whole(chosen.report, ("\n".join(lines(values, rows, checks, failed)) + "\n").encode())
    if any(row.one.dtype == chosen.precision for row in rows):
        write_whole(chosen.picture, draw(rows, ceilings, chosen.precision).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
