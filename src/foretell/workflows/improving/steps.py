"""Workflows: the changes that can be made to a workload, one function each: workload in, changed workload out.

A step says what it costs in accuracy: nothing (the same numbers, up to the last bit), numerics (the same weights in
other precision: check the accuracy), retraining (other weights). Where a step does not apply, it returns None.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from foretell.advisors.improvement import Accuracy
from foretell.advisors.rewrites.attention import fuse_attention
from foretell.advisors.rewrites.batch_norms import fold_batch_norms
from foretell.advisors.rewrites.channels import fill_tiles
from foretell.graph import Graph, parse_dtype
from foretell.graph.cost.training import OPTIMIZERS
from foretell.records import TF32, Workload
from foretell.workflows.workload import COMPILED, CUDA_GRAPH, EAGER

Apply = Callable[[Workload], Workload | None]
_HALF = ("fp16", "bf16")
_AUTOCAST = "with torch.autocast('cuda', {}): the forward pass and the loss"
_CASTS = {"fp16": "model.half(), and inputs.half()", "bf16": "model.to(torch.bfloat16), and inputs as well"}
_IMAGE_AXES = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a workload: its name, its kind, what it costs in accuracy, how to make it, and the change itself."""

    name: str
    kind: str
    accuracy: Accuracy
    how: str
    apply: Apply


def steps_for(workload: Workload) -> Iterator[Step]:
    """All changes of the model or of how it is run that might apply to a workload; places are elsewhere."""
    device = workload.target.device
    yield from _precisions(workload)
    if device.is_nvidia:
        how = "model.to(memory_format=torch.channels_last), and images as well"
        yield Step("channels-last", "layout", "none", how, _channels_last)
        how = "torch.compile(model, mode='reduce-overhead')" if _is_eager(workload) else "torch.compile(model)"
        yield Step("torch.compile", "compiler", "none", how, _compiled)
    if _is_eager(workload) and device.is_nvidia:
        how = "capture a run with torch.cuda.graph and replay it; shapes must not change"
        yield Step("CUDA graphs", "runtime", "none", how, _captured)
    yield Step(
        "fused attention", "graph", "none",
        "torch.nn.functional.scaled_dot_product_attention instead of the softmax of a product "
        "(Hugging Face: attn_implementation='sdpa'; timm: set_fused_attn(True, experimental=True))",
        _rewriting(fuse_attention),
    )  # fmt: skip
    if workload.mode == "inference":
        how = "torch.nn.utils.fuse_conv_bn_eval for each convolution and the batch norm after it"
        yield Step("batch norms folded", "graph", "none", how, _rewriting(fold_batch_norms))
    how = "channel counts rounded up to multiples of 8, then training"
    yield Step("channels that fill tiles", "graph", "retraining", how, _rewriting(fill_tiles))
    if workload.is_training:
        for name in OPTIMIZERS:
            if name != workload.optimizer:
                how = f"another optimizer and another schedule of its learning rate: {name}"
                yield Step(f"optimizer {name}", "optimizer", "retraining", how, _optimizer(name))


def batch_step(batch_size: int) -> Step:
    """More items in a batch: each takes less time, and waits for all."""
    return Step(
        f"batch {batch_size}", "batch", "none", f"collect {batch_size} items before a run",
        lambda workload: replace(workload, graph=workload.graph.with_batch(batch_size)),
    )  # fmt: skip


def _is_eager(workload: Workload) -> bool:
    return workload.target.runtime == EAGER


def _precisions(workload: Workload) -> Iterator[Step]:
    device = workload.target.device
    # a GPU without matrix units for a format runs it slower, or not at all
    for dtype in _HALF:
        if dtype in device.tensor_tflops and workload.dtype not in (dtype, *(("bf16",) if dtype == "fp16" else ())):
            how = _AUTOCAST.format(f"torch.{'float16' if dtype == 'fp16' else 'bfloat16'}")
            if dtype == "fp16" and workload.is_training:
                how += ", and a GradScaler"
            yield Step(dtype, "precision", "numerics", how if workload.is_training else _CASTS[dtype], _cast(dtype))
    if workload.dtype == "fp32" and device.is_nvidia and TF32 in device.tensor_tflops:
        how = "torch.backends.cuda.matmul.allow_tf32 = True"
        yield Step(TF32, "precision", "numerics", how, _cast(TF32))


def _cast(dtype: str) -> Apply:
    def apply(workload: Workload) -> Workload | None:
        # in training half precision means autocast, which keeps the weights
        keeps = workload.is_training or dtype == TF32
        graph = workload.graph if keeps else workload.graph.with_dtype(parse_dtype(dtype))
        return replace(workload, graph=graph, dtype=dtype)

    return apply


def _channels_last(workload: Workload) -> Workload | None:
    graph = workload.graph
    has_images = any(
        node.op in ("Conv", "ConvTranspose") and len(graph.tensors[node.inputs[0]].shape) == _IMAGE_AXES
        for node in graph.nodes
    )
    return replace(workload, channels_last=True) if has_images and not workload.channels_last else None


def _compiled(workload: Workload) -> Workload | None:
    if workload.mode != "inference" or workload.target.runtime == COMPILED:
        return None
    return replace(workload, target=replace(workload.target, runtime=COMPILED))


def _captured(workload: Workload) -> Workload | None:
    return replace(workload, target=replace(workload.target, runtime=CUDA_GRAPH)) if _is_eager(workload) else None


def _rewriting(rewrite: Callable[[Graph], Graph]) -> Apply:
    def apply(workload: Workload) -> Workload | None:
        graph = rewrite(workload.graph)
        return None if graph is workload.graph else replace(workload, graph=graph)

    return apply


def _optimizer(name: str) -> Apply:
    return lambda workload: replace(workload, optimizer=name)
