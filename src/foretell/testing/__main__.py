"""Testing: ``python -m foretell.testing MODEL``: check a budget in a build; the GitHub action runs it.

Exit codes: 0 within the budget, 1 beyond it, 2 a mistake in what was asked. Where GITHUB_STEP_SUMMARY names a file, the
verdict is appended to it, so that the page of the run shows it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError
from foretell.testing.budgets import BudgetError, assert_fits, assert_latency, assert_memory


def main(arguments: Sequence[str]) -> int:
    """Check all that was asked, and say each verdict in one line."""
    options = _parser().parse_args(arguments)
    common: dict[str, Any] = {
        "device": options.device, "batch_size": options.batch_size, "dtype": options.dtype, "mode": options.mode,
        "input_shape": options.input or None,
    }  # fmt: skip
    decides: dict[str, Any] = {"sure": True} if options.sure else {}
    checks: list[Callable[[], str]] = [lambda: assert_fits(options.model, **common).heading()]
    if options.latency_ms is not None:
        checks.append(lambda: _spoken(assert_latency(options.model, options.latency_ms, **common, **decides)))
    if options.memory_mib is not None:
        checks.append(lambda: _spoken(assert_memory(options.model, options.memory_mib, **common)))
    lines, code = [], 0
    for check in checks:
        try:
            lines.append(f"ok: {check()}")
        except BudgetError as error:
            lines.append(f"over budget: {error}")
            code = 1
        except ForetellError as error:
            sys.stderr.write(f"foretell: {' '.join(str(error).split())}\n")
            return 2
    sys.stdout.write("\n".join(lines) + "\n")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write("### foretell\n\n" + "".join(f"- {line}\n" for line in lines))
    return code


def _spoken(prediction: Any) -> str:
    latency, memory = prediction.latency_ms, prediction.device_memory_mib or prediction.memory_mib
    return f"{latency.value:.4g} ms ({latency.low:.4g} – {latency.high:.4g}), {memory.value:,.0f} MiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m foretell.testing", description="Check a model's budget.")
    parser.add_argument("model")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--mode", default="inference")
    parser.add_argument("--input", action="append", help="[NAME=]3x224x224, without the batch")
    parser.add_argument("--latency-ms", type=float, help="the longest time of a batch")
    parser.add_argument("--memory-mib", type=float, help="the most memory, as nvidia-smi shows it")
    parser.add_argument("--sure", action="store_true", help="the upper end of the interval must keep the latency, too")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
