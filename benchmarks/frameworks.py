"""Ten networks of four frameworks, read by foretell: parameters, MACs and roofline latency against PyTorch's graph.

foretell frontends install keras; foretell frontends install paddle; foretell frontends install jax      once
python benchmarks/frameworks.py        makes the models where they are not there, writes reports/frameworks.md; exits 1
                                       where a network is outside the limits

The models are made by ``zoo_{torch,keras,paddle,jax}.py``, each in its framework's own environment.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foretell import load_graph, predict
from foretell.errors import ForetellError
from foretell.frontends.converted.environments import need_environment
from foretell.graph import graph_costs

HERE = Path(__file__).parent
NETWORKS = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "mobilenet_v2": "MobileNetV2",
    "densenet121": "DenseNet-121",
    "efficientnet_b0": "EfficientNet-B0",
    "inception_v3": "InceptionV3",
    "vit_b_16": "ViT-B/16",
    "bert_base": "BERT-base",
    "lstm": "LSTM",
    "unet": "U-Net",
}
FRAMEWORKS = {"torch": "PyTorch", "keras": "Keras", "paddle": "Paddle", "jax": "JAX"}
BATCHES = (1, 8)
MACS_LIMIT, LATENCY_LIMIT = 0.01, 0.10


@dataclass(frozen=True)
class Row:
    """What foretell reads from one model; ``trained`` is what the framework itself counts."""

    parameters: int
    trained: int
    gmacs: float
    latency_ms: tuple[float, ...]
    error: str = ""


def make_models(framework: str, folder: Path, names: list[str]) -> dict[str, int]:
    """Run a framework's zoo script, if its models are not there; returns the parameters that it counts."""
    counts = folder / "parameters.json"
    known: dict[str, int] = json.loads(counts.read_text()) if counts.exists() else {}
    missing = [name for name in names if name not in known]
    if missing:
        python = need_environment(framework, f"Making the models of {FRAMEWORKS[framework]}").python
        quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "POLYGRAPHY_AUTOINSTALL_DEPS": "0"}
        script = HERE / f"zoo_{framework}.py"
        done = subprocess.run(
            [python, script, folder, *missing], env=os.environ | quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            sys.exit(f"{script.name} failed:\n{done.stdout.decode(errors='replace')[-2000:]}")
        known |= json.loads(counts.read_text())
        counts.write_text(json.dumps(known))
    return known


def source(framework: str, folder: Path, name: str) -> str:
    """The model as foretell is given it."""
    if framework in ("torch", "jax"):
        return f"{HERE / f'zoo_{framework}.py'}:{name}"
    saved = [folder / f"{name}.{suffix}" for suffix in ("keras", "json", "pdmodel")]
    return str(next((path for path in saved if path.exists()), folder / name))


def read(framework: str, folder: Path, name: str, trained: int | None) -> Row:
    """One model, read anew."""
    try:
        trust = framework in ("torch", "jax")  # these are Python files
        graph = load_graph(source(framework, folder, name), trust=trust, use_cache=False)
        latency = tuple(
            answer.latency_ms.value
            for batch in BATCHES
            if (answer := predict(graph.with_batch(batch), batch_size=batch, predictor="roofline")).latency_ms
        )
    except ForetellError as error:
        return Row(0, trained or 0, 0.0, (), str(error))
    gmacs = graph_costs(graph).total.macs / 1e9
    return Row(graph.parameter_count, trained or graph.parameter_count, gmacs, latency)


def ratios(row: Row, of_torch: Row) -> list[float]:
    """Latency over that of PyTorch's graph, by batch."""
    return [ms / expected for ms, expected in zip(row.latency_ms, of_torch.latency_ms)]


def outside(row: Row, of_torch: Row) -> str:
    """What is outside the limits; nothing where all is well."""
    if row.error:
        return row.error
    found = []
    if row.parameters != of_torch.parameters:
        found.append(f"parameters {row.parameters - of_torch.parameters:+,}")
    if row.trained != row.parameters:
        found.append(f"the framework counts {row.trained:,}")
    if abs(row.gmacs / of_torch.gmacs - 1) > MACS_LIMIT:
        found.append(f"GMACs {row.gmacs / of_torch.gmacs - 1:+.1%}")
    if any(abs(ratio - 1) > LATENCY_LIMIT for ratio in ratios(row, of_torch)):
        found.append("latency")
    return ", ".join(found)


def write(rows: dict[tuple[str, str], Row], names: Iterable[str]) -> list[str]:
    """The table."""
    timed = " | ".join(f"ms, batch {batch} | ratio" for batch in BATCHES)
    lines = [
        f"| network | framework | parameters | GMACs | {timed} | within |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name in names:
        for framework, title in FRAMEWORKS.items():
            row, of_torch = rows.get((name, framework)), rows[name, "torch"]
            if row is None:
                continue
            if row.error:
                lines.append(f"| {NETWORKS[name]} | {title} | | | | | | | {row.error} |")
                continue
            timed = " | ".join(f"{ms:.3f} | {ratio:.3f}" for ms, ratio in zip(row.latency_ms, ratios(row, of_torch)))
            verdict = outside(row, of_torch) or "yes"
            lines.append(f"| {NETWORKS[name]} | {title} | {row.parameters:,} | {row.gmacs:.3f} | {timed} | {verdict} |")
    return lines


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/frameworks"), help="where models are kept (4 GB)")
    parser.add_argument("--report", type=Path, help="where the table goes; of a part of it, it is printed alone")
    parser.add_argument("--frameworks", nargs="+", choices=[*FRAMEWORKS][1:], default=[*FRAMEWORKS][1:])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    arguments = parser.parse_args()
    rows: dict[tuple[str, str], Row] = {}
    for framework in ("torch", *arguments.frameworks):
        folder = arguments.folder / framework
        trained = make_models(framework, folder, arguments.networks) if framework != "torch" else {}
        for name in arguments.networks:
            row = rows[name, framework] = read(framework, folder, name, trained.get(name))
            if framework == "torch" and row.error:
                sys.exit(f"{name} of PyTorch, with which all others are compared: {row.error}")
            print(f"{name} {framework}: {outside(row, rows[name, 'torch']) or 'within'}", flush=True)
    compared = {key: outside(row, rows[key[0], "torch"]) for key, row in rows.items() if key[1] != "torch"}
    good = sum(not verdict for verdict in compared.values())
    lines = [
        "# Ten networks of four frameworks",
        "",
        f"{good} of {len(compared)} networks of other frameworks are within limits: as many parameters as PyTorch's "
        f"graph has and as the framework itself counts, GMACs within {MACS_LIMIT:.0%}, roofline latency (h200, fp32) "
        f"within {LATENCY_LIMIT:.0%}. Ratios are to PyTorch's graph. Remade by `python benchmarks/frameworks.py`; "
        "`docs/frameworks.md` says how the models are made and what differs.",
        "",
        *write(rows, arguments.networks),
    ]
    whole = len(compared) == len(NETWORKS) * (len(FRAMEWORKS) - 1)
    report = arguments.report or (Path("reports/frameworks.md") if whole else None)
    print("\n".join(lines)) if report is None else report.write_text("\n".join(lines) + "\n")
    sys.exit(good < len(compared))


if __name__ == "__main__":
    main()
