"""Cli: options that several commands share, and how lists are read."""

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="model.onnx · model.pt2 · TorchScript · timm:NAME · torchvision:NAME · hf:ID · config.json · "
        "net.py:build · model.keras · saved_model/ · Paddle's model.json",
        show_default=False,
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", "-b", help="Items in a batch.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="Shape of an input without the batch: 3x224x224, or 128 tokens. Repeat for several.",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="fp32, fp16, bf16, …; in training fp16 and bf16 mean autocast.")]
Mode = Annotated[str, typer.Option("--mode", help="inference, training, prefill or decode.")]
Context = Annotated[
    int | None, typer.Option("--context", help="Tokens already in the cache, when decoding.", show_default=False)
]
Trust = Annotated[bool, typer.Option("--trust", help="Allow code that comes with the model to run (net.py:build).")]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Count operators of unknown domains by the bytes they move.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Convert the model again and do not store its graph.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def words(text: str) -> list[str]:
    """Split a list at its commas.

    >>> words("h200, a100,")
    ['h200', 'a100']
    """
    return [word for word in (part.strip() for part in text.split(",")) if word]
