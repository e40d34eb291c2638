"""Runs picks of `search.py` on the GPU of this machine and shows how far the predictions were off.

python examples/search.py --out front.json
python examples/search_measure.py front.json measured.json      ten networks of the front, about 15 s each
python examples/search_measure.py front.json trial.json --device cpu --picks 1 --batch-size 1      without a GPU

The networks are PyTorch modules here. `network` builds the one that a candidate describes; its graph is the graph that
`search.py` wrote without PyTorch. Each is measured by `foretell.profile` in a process of its own. A second run goes on
where the first one stopped.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import search

import foretell

PICK = """import sys
sys.path.insert(0, {folder!r})
import search, search_measure
def build():
    return search_measure.network(search.Candidate(**{genes!r}))
"""


def network(candidate: search.Candidate) -> Any:
    """The network of a candidate, as an ``nn.Module``."""
    from torch import nn

    def convolution(inputs: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [layer, nn.BatchNorm2d(channels)]

    class Residual(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return x + self.layers(x)

    layers = [*convolution(3, 16, 3, 2), nn.Hardswish(), *convolution(16, 16, 3, groups=16)]
    inputs = 16
    for stage, (channels, first_stride, op) in enumerate(search.STAGES):
        activation = {"Relu": nn.ReLU, "HardSwish": nn.Hardswish}[op]
        for block in range(candidate.depths[stage]):
            gene, stride = stage * max(search.DEPTHS) + block, first_stride if block == 0 else 1
            wide = inputs * candidate.widths[gene]
            parts = [
                *convolution(inputs, wide, 1), activation(),
                *convolution(wide, wide, candidate.kernels[gene], stride, wide), activation(),
                *convolution(wide, channels, 1),
            ]  # fmt: skip
            layers += [Residual(*parts)] if stride == 1 and inputs == channels else parts
            inputs = channels
    layers += [*convolution(inputs, 960, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1000))


def measure(genes: dict[str, Any], device: str, batch_size: int, dtype: str) -> foretell.Measurement:
    """Run one network in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pick.py")
        file.write_text(PICK.format(folder=str(Path(__file__).resolve().parent), genes=genes), encoding="utf-8")
        shape = (3, genes["resolution"], genes["resolution"])
        return foretell.profile(
            f"{file}:build", device=device, batch_size=batch_size, dtype=dtype, input_shape=shape, trust=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front", type=Path, help="what search.py --out has written")
    parser.add_argument("out", type=Path, help="a JSON file of what was measured")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--predicted", default="h200", help="whose predictions are compared")
    parser.add_argument("--picks", type=int, default=10)
    parser.add_argument("--batch-size", type=int, help="another one than that of the search, for a trial")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no network after so long")
    chosen = parser.parse_args()
    found = json.loads(chosen.front.read_text(encoding="utf-8"))
    batch_size, dtype = chosen.batch_size or found["batch_size"], "fp32" if chosen.device == "cpu" else found["dtype"]
    rows: list[dict[str, Any]] = json.loads(chosen.out.read_text(encoding="utf-8")) if chosen.out.exists() else []
    started = time.monotonic()
    for one in search.spread(found["front"], chosen.picks):
        if any(row["genes"] == one["genes"] and row["status"] == "ok" for row in rows):
            continue
        if time.monotonic() - started > chosen.seconds:
            break
        measured = measure(one["genes"], chosen.device, batch_size, dtype)
        row: dict[str, Any] = {"genes": one["genes"], "proxy": one["proxy"], "status": measured.status}
        row["error"] = measured.error
        for name in ("latency_ms", "memory_mib", "device_memory_mib"):
            value = getattr(measured, name)
            if value is not None:
                row[name] = {"measured": value.value, "predicted": one["predicted"][chosen.predicted][name]}
        rows.append(row)
        chosen.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        print(f"{time.monotonic() - started:6.1f} s  {_line(row)}", flush=True)
    _summary([row for row in rows if row["status"] == "ok"])


def _line(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['error']}"
    parts = []
    for name, unit in (("latency_ms", "ms"), ("memory_mib", "MiB"), ("device_memory_mib", "MiB on the GPU")):
        if name in row:
            measured, predicted = row[name]["measured"], row[name]["predicted"]
            inside = "inside" if predicted["low"] <= measured <= predicted["high"] else "outside"
            parts.append(f"{measured:,.3f} {unit}, predicted {predicted['value']:,.3f} ({inside})")
    return f"proxy {row['proxy']:.3f}: " + "; ".join(parts)


def _summary(rows: list[dict[str, Any]]) -> None:
    for name in ("latency_ms", "memory_mib", "device_memory_mib"):
        pairs = [(row[name]["measured"], row[name]["predicted"]) for row in rows if name in row]
        if not pairs:
            continue
        off = sorted(abs(predicted["value"] / measured - 1) for measured, predicted in pairs)
        inside = sum(predicted["low"] <= measured <= predicted["high"] for measured, predicted in pairs)
        both = [(a, b) for number, a in enumerate(pairs) for b in pairs[:number]]
        ordered = sum((a[0] - b[0]) * (a[1]["value"] - b[1]["value"]) > 0 for a, b in both)
        print(
            f"{name}: {len(pairs)} networks, off by {sum(off) / len(off):.1%} in the mean and {off[-1]:.1%} at most; "
            f"{inside} inside their interval; {ordered} of {len(both)} pairs in the right order"
        )


if __name__ == "__main__":
    main()
