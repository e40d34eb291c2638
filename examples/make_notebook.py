"""Write examples/first-steps.ipynb: its cells, run one after the other, with what they print.

usage: .venv/bin/python examples/make_notebook.py
"""

import contextlib
import io
import json
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOTEBOOK = HERE / "first-steps.ipynb"

# text, or code that starts with a prompt
CELLS = [
    """# First steps with foretell

How a model will run on a GPU, before anyone runs it. This notebook needs no GPU, no weights and no network: it reads \
`resnet50.onnx`, which lies beside it.""",
    """>>> import foretell

model = "resnet50.onnx"
foretell.predict(model, device="h200", batch_size=8, dtype="fp16")""",
    "The numbers in brackets are 90 % intervals. Does it fit on a smaller GPU, and with how many pictures at a time?",
    """>>> foretell.fit(model, device="l4", batch_size=64, dtype="fp16")""",
    "What would make it faster? Each change is made on the graph and predicted again; its gain has an interval, too.",
    """>>> for change in foretell.improve(model, batch_size=8, devices=[]).changes:
    gain = change.gains["latency"]
    print(f"{change.name:16} {gain.value:.2f} ({gain.low:.2f} – {gain.high:.2f})  accuracy: {change.accuracy}")""",
    "Where should it run? Latency below 10 ms, the cheapest of three GPUs:",
    """>>> advice = foretell.advise(model, slo_ms=10, devices=["l4", "a100", "h200"], max_batch=32, mig=False)
best = advice.choices[0]
print(best.candidate.place, best.offer.name, f"{best.candidate.latency_ms.value:.1f} ms")""",
    "How does latency grow with the batch?",
    """>>> for point in foretell.sweep(model, batch_sizes=[1, 8, 64], dtypes=["fp16"]):
    p = point.prediction
    print(f"batch {p.batch_size:3}: {p.latency_ms.value:6.2f} ms, {p.throughput_per_s.value:8,.0f} pictures/s")""",
    "And in a build: a test that fails when the model outgrows its budget.",
    """>>> from foretell.testing import assert_latency

assert_latency(model, 20, device="l4", batch_size=8, dtype="fp16").latency_ms.value""",
    """More: [commands](../docs/commands.md) · [what the numbers mean](../docs/units.md) · \
[how good they are](../docs/accuracy.md)""",
]
PROMPT = ">>> "


def sources() -> list[tuple[str, str]]:
    """The kind and the text of every cell."""
    return [("code", c.removeprefix(PROMPT)) if c.startswith(PROMPT) else ("markdown", c) for c in CELLS]


def run(code: str, names: dict[str, object]) -> str:
    """Run a cell as a notebook does: what it prints, and its last expression."""
    *statements, last = code.split("\n")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            compiled = compile(last, "cell", "eval")
        except SyntaxError:
            exec(compile(code, "cell", "exec"), names)
            return printed.getvalue()
        exec(compile("\n".join(statements), "cell", "exec"), names)
        value = eval(compiled, names)
    return printed.getvalue() + ("" if value is None else repr(value))


def main() -> None:
    os.chdir(HERE)
    names: dict[str, object] = {}
    cells, count = [], 0
    for number, (kind, text) in enumerate(sources()):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            count += 1
            shown = run(text, names)
            output = {"output_type": "stream", "name": "stdout", "text": shown.splitlines(keepends=True)}
            cell |= {"execution_count": count, "outputs": [output] if shown else []}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
