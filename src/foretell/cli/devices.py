"""Cli: ``foretell devices``."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from foretell.cli import options
from foretell.devices import Device, all_devices, cite, device_of
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable

NEW = "new"
_NAME_WIDTH = 23
_MAKERS = ("NVIDIA", "AMD", "Intel", "Apple")
_ARCHITECTURES = ("Blackwell", "Hopper", "Ada Lovelace", "Ampere", "Turing", "Volta", "Pascal")


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
        shown = _as_dict(device_of(name)) if name else {"devices": [_as_dict(d) for d in all_devices()]}
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
    from foretell.rendering.terminal.prediction import console

    out = console()
    out.print(_line(("device", "SMs", "GiB", "GB/s", "FP16", "FP32", "W", "MIG", "also called")), style="bold")
    for heading, devices in _groups(all_devices()):
        out.print(heading, style="bold")
        for d in devices:
            # Two formats suffice here: the page of a single device has all of them.
            fp16 = f"{d.tensor_tflops['fp16']:.4g}" if "fp16" in d.tensor_tflops else "·"
            rates = (f"{d.bandwidth_gb_per_s:.4g}", fp16, f"{d.vector_tflops['fp32']:.3g}", f"{d.tdp_w:.4g}")
            cells = (f"  {d.id}", str(d.sms), f"{d.memory_gib:.3g}", *rates, str(len(d.mig_profiles) or "·"))
            # a name too many is cut off, a digit never
            out.print(_line((*cells, ", ".join(d.aliases[:2]))), no_wrap=True, overflow="ellipsis", highlight=False)
    out.print(
        "FP16 is the dense peak of tensor cores or other matrix units, FP32 that without them, in TFLOP/s. SMs are "
        "compute units or cores where there are none; MIG counts profiles. One with sources: foretell devices h200. "
        "One that is not here: foretell devices new"
    )


def _line(cells: Sequence[str]) -> str:
    name, *numbers, aliases = cells
    return f"{name:<{_NAME_WIDTH}}" + "".join(f"{number:>7}" for number in numbers) + f"  {aliases}".rstrip()


def _groups(devices: Sequence[Device]) -> list[tuple[str, list[Device]]]:
    """The devices by maker and architecture, newest first, and the fastest of each first."""
    groups: dict[tuple[str, str], list[Device]] = {}
    for device in devices:
        groups.setdefault((device.vendor, device.architecture), []).append(device)

    def age(group: tuple[str, str]) -> tuple[int, int, list[int]]:
        maker, architecture = group
        known = _ARCHITECTURES.index(architecture) if architecture in _ARCHITECTURES else len(_ARCHITECTURES)
        makers = _MAKERS.index(maker) if maker in _MAKERS else len(_MAKERS)
        return makers, known, [-ord(letter) for letter in architecture]  # CDNA4 before CDNA3

    return [
        (
            architecture if architecture.startswith(maker) else f"{maker} {architecture}",
            sorted(groups[maker, architecture], key=lambda d: -d.peak_tflops("fp16", tensor_cores=True)),
        )
        for maker, architecture in sorted(groups, key=age)
    ]


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
    if device.aliases:
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
