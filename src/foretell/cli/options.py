"""Cli: options that several commands share, and how lists are read.

Each of them is a decorator that adds one parameter of that name to a command.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from foretell.errors import InputError

Command = TypeVar("Command", bound=Callable[..., object])
PATH = click.Path(path_type=Path)


class OutputFile(click.Path):
    """A file that a command will write at its end; that it can be written is checked at its start.

    Reading a model may take half a minute, so a wrong folder or suffix is reported before.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or say why no file can be written there."""
        path = Path(str(super().convert(value, param, ctx)))
        option = max(param.opts, key=len, default="path") if param else "path"
        if self.suffixes and path.suffix not in self.suffixes:
            allowed = " or ".join(
                [", ".join(self.suffixes[:-1]), self.suffixes[-1]] if self.suffixes[1:] else self.suffixes
            )
            raise InputError(f"Cannot write {str(path)!r}: the name of {option} must end in {allowed}.")
        if path.is_dir():
            raise InputError(f"Cannot write {path}: it is a folder. Choose another {option}.")
        folder = next(parent for parent in path.absolute().parents if parent.exists())  # those below it will be made
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            why = "is not a folder" if not folder.is_dir() else "cannot be written to"
            raise InputError(f"Cannot write {path}: {folder} {why}. Choose another {option}.")
        return path


MODELS = (
    "model.onnx · model.pt2 · TorchScript · timm:NAME · torchvision:NAME · hf:ID · config.json · net.py:build · "
    "model.keras · saved_model/ · Paddle's model.json"
)

model = click.argument("model", metavar="MODEL", help=MODELS)
batch_size = click.option("--batch-size", "-b", type=int, default=1, help="Items in a batch.")
inputs = click.option(
    "inputs",
    "--input",
    "-i",
    multiple=True,
    metavar="[NAME=]SHAPE[!][:DTYPE]",
    help="Shape of an input without the batch: 3x224x224, or 128 tokens; with ! it has no batch. Repeat for several.",
)
dtype = click.option(
    "--dtype", default="fp32", help="fp32, tf32, fp16, bf16, …; in training fp16 and bf16 mean autocast."
)
channels_last = click.option(
    "--channels-last", is_flag=True, help="Model and images in PyTorch's memory format channels_last."
)
mode = click.option("--mode", default="inference", help="inference, training, prefill or decode.")
context = click.option("--context", type=int, help="Tokens already in the cache, when decoding.")
trust = click.option("--trust", is_flag=True, help="Allow code that comes with the model to run (net.py:build).")
allow_unknown = click.option(
    "--allow-unknown", is_flag=True, help="Count operators of unknown domains by the bytes they move."
)
as_written = click.option(
    "--as-written", is_flag=True, help="Count QuantizeLinear and DequantizeLinear by themselves; engines fuse them."
)
no_cache = click.option("--no-cache", is_flag=True, help="Convert the model again and do not store its graph.")
memory_limit = click.option(
    "memory_limit_gib", "--memory-limit", type=float, metavar="GIB", help="Memory that reading a file may take [8]."
)
timeout = click.option(
    "timeout_s", "--timeout", type=float, metavar="S", help="Seconds that reading a file may take [300]."
)


def reading(command: Command) -> Command:
    """Add the options for how a model is read: ``--trust``, ``--no-cache``, ``--memory-limit`` and ``--timeout``."""
    # decorators apply from the last to the first, so that the help page has them in this order
    for option in (timeout, memory_limit, no_cache, trust):
        command = option(command)
    return command


as_json = click.option("as_json", "--json", is_flag=True, help="Print one JSON object.")

# of the commands that fit and judge predictors
store_folder = click.option("store", "--store", type=PATH, default=Path("data"), help="A folder of Parquet files.")
fitted_device = click.option("--device", "-d", default="h200", help="The device whose measurements are used.")
cache = click.option(
    "--cache", type=PATH, default=Path("out/training"), help="A folder for extracted features and fitted networks."
)
only_networks = click.option("--only-networks", is_flag=True, help="Fit the networks, store them in --cache, and stop.")


def words(text: str) -> list[str]:
    """Split a list at its commas.

    >>> words("h200, a100,")
    ['h200', 'a100']
    """
    return [word for word in (part.strip() for part in text.split(",")) if word]
