"""Cli: ``foretell devices``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from foretell.cli import options
from foretell.devices import Device, all_devices, cite, device_of
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable

NEW = "new"


@click.command()
@click.argument(
    "name", required=False, metavar="[DEVICE|new]", help="Show one device, by name or file; new: describe this machine."
)
@click.option("-o", "out", type=options.PATH, help="With new: the device file to write, such as my-gpu.toml.")
@click.option("--kind", help="With new: cuda or cpu [cuda if there is a GPU].")
@options.as_json
def run(name: str | None, out: Path | None, kind: str | None, as_json: bool) -> None:
    """List the devices that foretell knows, show one of them, or describe this machine's in a file."""
    if name != NEW and (out is not None or kind is not None):
        raise InputError("-o or --kind is for: foretell devices new")
    if name == NEW:
        _make_new(out, kind)
    elif as_json:
        shown: Any = _as_dict(device_of(name)) if name else [_as_dict(d) for d in all_devices()]
        click.echo(json.dumps(shown, indent=1))
    elif name:
        _print_one(device_of(name))
    else:
        _print_all()


def _make_new(out: Path | None, kind: str | None) -> None:
    from foretell.workflows.measure.new_device import describe_machine, write_device

    new = describe_machine(kind)
    if out is None:
        click.echo(new.text, nl=False)
        return
    write_device(out, new)
    click.echo(printable(f"written: {out}"))
    if new.missing:
        click.echo(f"Fill in before you use it: {', '.join(new.missing)}")
    else:
        click.echo(printable(f"Use it: foretell predict MODEL --device {out}"))


def _as_dict(device: Device) -> dict[str, Any]:
    return {key: value for key, value in asdict(device).items() if value is not None}


def _print_all() -> None:
    from rich import box
    from rich.table import Table

    from foretell.rendering.terminal.prediction import console

    table = Table(box=box.SIMPLE)
    for column in ("device", "SMs", "memory GiB", "GB/s", "TF32", "FP16", "FP32", "W", "MIG profiles", "also called"):
        table.add_column(column, justify="left" if column in ("device", "MIG profiles", "also called") else "right")
    # Two precisions suffice here: the page of a single device has all of them.
    for d in all_devices():
        cells = [
            f"{d.memory_gib:g}",
            f"{d.bandwidth_gb_per_s:g}",
            *(f"{d.tensor_tflops[k]:g}" if k in d.tensor_tflops else "·" for k in ("tf32", "fp16")),
        ]
        profiles = f"{len(d.mig_profiles)}: {d.mig_profiles[0].name} …" if d.mig_profiles else "·"
        table.add_row(
            d.id, str(d.sms), *cells, f"{d.vector_tflops['fp32']:g}", f"{d.tdp_w:g}", profiles, ", ".join(d.aliases[:2])
        )
    out = console()
    out.print(table)
    out.print(
        "TF32 and FP16 are dense tensor-core peaks, FP32 is without tensor cores, in TFLOP/s. One device: foretell "
        "devices h200"
    )


def _print_one(device: Device) -> None:
    from rich import box
    from rich.table import Table

    from foretell.rendering.terminal.prediction import console

    out = console()
    out.print(f"{device.id}: {device.name} ({device.vendor} {device.architecture})", style="bold")
    table = Table(box=box.SIMPLE, show_header=True)
    for column in ("field", "value", "source"):
        table.add_column(column, overflow="fold")
    for key, value in _as_dict(device).items():
        if key in ("id", "name", "vendor", "sources", "aliases", "price_keys", "mig_profiles"):
            continue
        shown = (
            ", ".join(f"{k} {v:g}" for k, v in value.items())
            if isinstance(value, dict)
            else f"{value:g}"
            if isinstance(value, float)
            else str(value)
        )
        table.add_row(key, shown, _source(device, key))
    out.print(table)
    out.print(f"also called: {', '.join(device.aliases)}", soft_wrap=True)
    if device.mig_profiles:
        out.print("slices: mps:1 … mps:100, sms:1 … sms:" + str(device.sms) + ", or a MIG profile:")
        mig = Table(box=box.SIMPLE)
        for column in ("slice", "SMs", "memory GiB", "bandwidth", "at most"):
            mig.add_column(column, justify="right" if mig.columns else "left")
        for p in device.mig_profiles:
            mig.add_row(
                f"mig:{p.name}", str(p.sms), f"{p.memory_gib:g}", f"{p.bandwidth_fraction:.1%}", str(p.max_instances)
            )
        out.print(mig)


def _source(device: Device, field: str) -> str:
    try:
        return cite(device, field)
    except KeyError:  # a field that is a table, such as tensor_tflops, may have a source for each of its entries
        citations = {cite(device, key) for key in device.sources if key.partition(".")[0] == field}
        return "; ".join(sorted(citations))
