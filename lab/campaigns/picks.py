"""Lab: networks that ``examples/search.py`` found, measured side by side: ``python -m lab.campaigns.picks FRONT OUT``.

``examples/search_measure.py`` measures one after the other, 15 s each, most of which is a process that starts. Here all
start together and share a lock, with which each is timed alone. The measuring is that of ``foretell.profile``, and so
are the file that is written and the lines at the end those of the example.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from foretell.files import write_whole

_EXAMPLES = Path(__file__).parents[2] / "examples"
_KEPT = ("latency_ms", "memory_mib", "device_memory_mib")
Row = dict[str, Any]


def example(name: str) -> Any:
    """A module of the examples."""
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    return importlib.import_module(name)


def measure(one: Row, batch_size: int, dtype: str, device: str, folder: Path, number: int) -> Row:
    """One network, in a process of its own that shares a lock with the others."""
    from foretell.processes.device_lock import DeviceLock
    from foretell.profiling.single import SingleRun
    from foretell.workflows.measure.profile import make_request

    genes, own = one["genes"], folder / str(number)
    own.mkdir()
    file = own / "pick.py"
    file.write_text(example("search_measure").PICK.format(folder=str(_EXAMPLES), genes=genes), encoding="utf-8")
    request = make_request(
        f"{file}:build", device=device, batch_size=batch_size, input_shape=(3, *2 * (genes["resolution"],)),
        dtype=dtype, mode="inference", optimizer=None, runtime=None, energy=False, kernels=False, threads=1,
        context=None, trust=True,
    )  # fmt: skip
    result = SingleRun(request, own, lambda _: None, DeviceLock(folder, number)).measure()
    row = {"genes": genes, "proxy": one["proxy"], "status": result["status"], "error": result["error"]}
    values = result.get("values", {})
    return row | {
        name: {"measured": values[name], "predicted": one["predicted"]["h200"][name]}
        for name in _KEPT
        if values.get(name) is not None and name in one["predicted"]["h200"]
    }


def run(front: Path, out: Path, picks: int, device: str, batch_size: int | None) -> list[Row]:
    """Measure picks of a front, and write them."""
    found = json.loads(front.read_text(encoding="utf-8"))
    chosen = example("search").spread(found["front"], picks)
    batch, dtype = batch_size or found["batch_size"], "fp32" if device == "cpu" else found["dtype"]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(len(chosen), context) as pool:
        tasks = [
            pool.submit(measure, one, batch, dtype, device, Path(folder), number) for number, one in enumerate(chosen)
        ]
        rows = [task.result() for task in tasks]
    write_whole(out, json.dumps(rows, indent=1).encode())
    return rows


def main() -> None:
    """Read the options, measure, and say how far the predictions were off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--picks", type=int, default=10)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch-size", type=int, help="another one than that of the search, for a trial")
    options = parser.parse_args()
    rows = run(options.front, options.out, options.picks, options.device, options.batch_size)
    shown = example("search_measure")
    for row in rows:
        sys.stdout.write(f"{shown._line(row)}\n")
    shown._summary([row for row in rows if row["status"] == "ok"])


if __name__ == "__main__":
    main()
