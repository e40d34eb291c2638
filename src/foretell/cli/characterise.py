"""Cli: ``foretell characterise``."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working
from foretell.units import KIB, gflops_from_tflops

if TYPE_CHECKING:
    from foretell.devices import Device
    from foretell.devices.ceilings import Ceilings
    from foretell.profiling.ceilings import MeasuredCeilings


@click.command()
@click.option("--device", help="cuda or cpu [cuda if there is a GPU].")
@click.option("as_toml", "--toml", is_flag=True, help="Print the entry for the package's own devices/ceilings.toml.")
@options.as_json
def run(device: str | None, as_toml: bool, as_json: bool) -> None:
    """Measure in about 20 seconds what this machine's memory, cache and arithmetic reach, for foretell roofline."""
    from foretell.workflows.measure.characterise import ceilings_path, characterise

    with working("Streaming and multiplying"):
        ceilings, measured = characterise(device)
    if as_toml:
        click.echo(ceilings.to_toml(), nl=False)
        return
    if as_json:
        click.echo(json.dumps({"device": ceilings.device, **asdict(measured), "path": str(ceilings_path())}, indent=1))
        return
    _show(ceilings, measured)
    click.echo(printable(f"saved in {ceilings_path()}"))


def _show(ceilings: "Ceilings", measured: "MeasuredCeilings") -> None:
    from rich import box
    from rich.table import Table

    from foretell.devices import find_device
    from foretell.errors import DeviceError
    from foretell.profiling.jit_kernels import L1_SET_BYTES
    from foretell.rendering.terminal.prediction import console

    try:
        known = find_device(ceilings.device)
    except DeviceError:
        known = None  # the machine may be in no catalogue: then only the measured rates are shown
    how = f"torch {measured.torch}" + (f", {measured.threads} threads" if measured.kind == "cpu" else "")
    title = f"{ceilings.name} ({ceilings.device}) · {how} · {measured.took_s:.0f} s"
    table = Table(box=box.SIMPLE_HEAD, title=printable(title), title_justify="left")
    for head in ("ceiling", "measured with", "measured", "catalogue", "reached", ""):
        table.add_column(head, justify="right" if head in ("measured", "catalogue", "reached") else "left")
    cache = "L2" if measured.kind == "cuda" else "last-level cache"
    sizes = {"memory": measured.dram_set_mib, cache: measured.cache_set_mib}
    rates = {"memory": measured.dram_gb_per_s, cache: measured.cache_gb_per_s}
    peaks = {"memory": known.bandwidth_gb_per_s if known else None, cache: None}
    for name, rate in rates.items():
        if rate is not None:
            table.add_row(name, f"streams, {number(sizes[name] or 0)} MiB", *_cells(rate, peaks[name]), "GB/s")
    if measured.l1_gb_per_s is not None:
        table.add_row("L1", f"loads, {L1_SET_BYTES // KIB} KiB", *_cells(measured.l1_gb_per_s, None), "GB/s")
    for name, tflops in measured.plain_tflops.items():
        peak = known.vector_tflops.get(name) if known else None
        table.add_row(f"plain {name}", "multiply-adds", *_cells(tflops, peak), "TFLOP/s")
    for name, tflops in measured.tflops.items():
        peak = _peak(known, name)
        # CPUs are about a thousand times slower, so their rates are in GFLOP/s.
        unit, rate = ("TFLOP/s", tflops) if measured.kind == "cuda" else ("GFLOP/s", gflops_from_tflops(tflops))
        peak = gflops_from_tflops(peak) if peak is not None and measured.kind == "cpu" else peak
        side = measured.product_sizes[name]
        table.add_row(name, f"product, {side} x {side}", *_cells(rate, peak), unit)
    console().print(table)
    if measured.kind == "cpu":
        if measured.reference_ms is not None:
            click.echo(
                f"One core multiplies two 192 x 192 matrices in {number(measured.reference_ms)} ms: "
                "foretell predict --device cpu is at this pace from now on."
            )
        click.echo("The catalogue's cpu is one core of a server, not this processor.")


def _cells(rate: float, peak: float | None) -> list[str]:
    return [number(rate), ABSENT, ABSENT] if peak is None else [number(rate), number(peak), f"{rate / peak:.0%}"]


def _peak(device: "Device | None", name: str) -> float | None:
    """The catalogue's peak for a number format; None if the catalogue does not have that format."""
    if device is None:
        return None
    # fp32 products run on tensor cores only as tf32, so plain fp32 is compared with the vector units.
    return device.vector_tflops.get(name) if name == "fp32" or device.is_cpu else device.tensor_tflops.get(name)
