"""Lab: predict what changes gain, before anything is measured.

    python -m lab.campaigns.improvements.plan plans/h200-improvements.json

Thirty networks of ten families, each as a user would run it first: `foretell improve` suggests changes, and the first
ones that one GPU can show (no other GPU, no retraining) are written with their predicted gains and intervals, together
with the first rejected one. `lab.campaigns.improvements.measure` measures them.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.advisors.improvement import Change, Improvement
from foretell.devices import find_device
from foretell.files import write_whole
from foretell.graph import parse_dtype
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, make_graph
from foretell.workflows.improving.improve import Limits, improve_workload
from foretell.workflows.improving.places import Prices

_SUGGESTED, _REJECTED = 3, 1
_HERE = ("precision", "layout", "compiler", "graph", "batch")  # kinds that the same GPU can show


@dataclass(frozen=True, slots=True)
class Network:
    """A network as a user would run it."""

    family: str
    spec: str
    input_shape: tuple[int, ...]
    batch_size: int
    dtype: str = "fp32"
    by: str = "latency"


_BERT = "hf:bert?hidden_size={}&intermediate_size={}&num_attention_heads={}&num_hidden_layers={}&vocab_size=30522"
_GPT = "hf:gpt2?n_embd={}&n_head={}&n_layer={}&vocab_size=50257"
NETWORKS = (
    Network("residual", "timm:resnet50", (3, 224, 224), 8),
    Network("residual", "timm:seresnext26d_32x4d", (3, 224, 224), 32),
    Network("residual", "torchvision:wide_resnet50_2", (3, 224, 224), 16, "fp16"),
    Network("mobile", "timm:mobilenetv3_large_100", (3, 224, 224), 8),
    Network("mobile", "timm:efficientnet_b2", (3, 260, 260), 32),
    Network("mobile", "torchvision:shufflenet_v2_x1_5", (3, 224, 224), 1, "fp16"),
    Network("modern convolutions", "timm:convnext_small", (3, 224, 224), 8),
    Network("modern convolutions", "timm:regnety_064", (3, 224, 224), 16),
    Network("modern convolutions", "torchvision:densenet169", (3, 224, 224), 4),
    Network("vision transformers", "timm:vit_base_patch16_224", (3, 224, 224), 8),
    Network("vision transformers", "timm:deit_small_patch16_224", (3, 224, 224), 1),
    Network("vision transformers", "timm:mixer_b16_224", (3, 224, 224), 32),
    Network("windows", "timm:swin_small_patch4_window7_224", (3, 224, 224), 8),
    Network("windows", "timm:swin_tiny_patch4_window7_224", (3, 224, 224), 32, "fp16"),
    Network("windows", "timm:visformer_small", (3, 224, 224), 8),
    Network("dense prediction and video", "torchvision:fcn_resnet50", (3, 256, 256), 4),
    Network("dense prediction and video", "torchvision:lraspp_mobilenet_v3_large", (3, 256, 256), 8),
    Network("dense prediction and video", "torchvision:r3d_18", (3, 16, 112, 112), 4),
    Network("encoders of text", _BERT.format(768, 3072, 12, 12), (128,), 8),
    Network("encoders of text", _BERT.format(640, 2560, 10, 8) + "&attn_implementation=eager", (384,), 16),
    Network("encoders of text", _BERT.format(512, 2048, 8, 6) + "&attn_implementation=eager", (256,), 32, "fp16"),
    Network("decoders of text", _GPT.format(768, 12, 12), (256,), 4),
    Network("decoders of text", _GPT.format(1024, 16, 10) + "&attn_implementation=eager", (512,), 4, "bf16"),
    Network("decoders of text", _GPT.format(576, 9, 7), (192,), 1),
    Network("networks of users", "wild:organs?size=64&width=32", (1, 64, 64, 64), 2),
    Network("networks of users", "wild:pyramid-detector?size=256&width=32", (3, 256, 256), 8),
    Network("networks of users", "wild:separator?samples=16000&width=128", (16000,), 4),
    Network("random", "synthetic:mlp?act=gelu&widths=784-3000-3000-1500-10", (784,), 64),
    Network(
        "random", "synthetic:cnn?act=relu&channels=3-48-96-96-192-384&kernels=5-3-3-3-3&norm=batch&strides=2-1-2-2-2",
        (3, 160, 160), 16,
    ),
    Network(
        "random", "synthetic:cnn?act=silu&channels=3-64-128-128-256&kernels=7-3-3-3&norm=batch&strides=2-2-1-2",
        (3, 128, 128), 32, by="throughput",
    ),
)  # fmt: skip


def workload_of(network: Network) -> Workload:
    """The workload of a network; its graph is read from the same code that will be measured."""
    graph = make_graph(GraphKey(network.spec, network.input_shape, "inference")).with_batch(network.batch_size)
    return Workload(graph.with_dtype(parse_dtype(network.dtype)), Target(find_device("h200")), network.dtype)


def suggested(answer: Improvement) -> Iterator[Change]:
    """What shall be measured: the first suggestions of different kinds, all together, and the worst rejected change."""
    possible = [change for change in answer.changes if change.kind in _HERE and change.accuracy != "retraining"]
    of_kinds: dict[str, Change] = {}
    for change in possible:
        of_kinds.setdefault(change.name if change.kind == "graph" else change.kind, change)
    yield from list(of_kinds.values())[:_SUGGESTED]
    if answer.together is not None:
        yield answer.together
    refused = [change for change in answer.rejected if change.kind in _HERE and change.accuracy != "retraining"]
    yield from refused[-_REJECTED:]


def planned(network: Network, answer: Improvement) -> Mapping[str, Any]:
    """One network with its predictions."""
    before = answer.before.latency_ms
    assert before is not None
    tasks = []
    for rank, change in enumerate(suggested(answer), 1):
        after, gain = change.after.latency_ms, change.gains["latency"]
        assert after is not None
        task: dict[str, Any] = {"change": change.name, "rank": rank, "accepted": not change.reason}
        task |= {"kind": change.kind, "batch_size": change.after.batch_size, "after_ms": after.to_dict()}
        # a larger batch gains in throughput, and a run of it takes longer
        tasks.append(task | {"latency_gain": gain.to_dict(), "gain": change.gains[answer.objective].to_dict()})
    return {
        "family": network.family, "spec": network.spec, "input_shape": list(network.input_shape),
        "batch_size": network.batch_size, "dtype": network.dtype, "by": network.by, "before_ms": before.to_dict(),
        "changes": tasks,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Predict all networks and write the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args(arguments).out
    rows = []
    for network in NETWORKS:
        limits = Limits(objective=network.by)  # type: ignore[arg-type]
        answer = improve_workload(workload_of(network), limits, Prices(), [])
        rows.append(planned(network, answer))
        names = ", ".join(f"{task['change']} {task['gain']['value']:.2f}" for task in rows[-1]["changes"])
        sys.stdout.write(f"{network.spec[:60]}: {names}\n")
        sys.stdout.flush()
    write_whole(out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
