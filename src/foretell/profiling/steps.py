"""Profiling: the step that is measured: a forward pass, a training step, a prefill, or one decoded token."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foretell.profiling.workload import TF32, Workload
from foretell.profiling.zoos.zoo import Built, Inputs

_TORCH_DTYPES = {"fp32": torch.float32, TF32: torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_IMAGE_AXES = 4  # PyTorch's channels_last is a format of tensors with so many axes
_LEARNING_RATE = 1e-4
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Step:
    """``run`` does the work once, always with the same shapes and addresses; its result keeps the outputs alive."""

    run: Callable[[], Any]
    close: Callable[[], None]


def weight_dtype(workload: Workload) -> Any:
    """The precision of the weights: in training ``bf16`` means autocast over 32-bit weights."""
    return torch.float32 if workload.mode == "training" else _TORCH_DTYPES[workload.dtype]


def make_step(built: Built, workload: Workload, device: str) -> Step:
    """The step of a workload whose model's weights are already on the device."""
    # a setting of the whole process; PyTorch's default is off, and convolutions have a setting of their own
    torch.backends.cuda.matmul.allow_tf32 = workload.dtype == TF32
    if workload.mode == "training":
        return _training(built, workload, device)
    built.model.eval()
    if workload.mode == "prefill":
        return _prefill(built, workload, device)
    if workload.mode == "decode":
        return _decode(built, workload, device)
    return _inference(built, workload, device)


def _nothing() -> None:
    return None


def _make_inputs(built: Built, workload: Workload, device: str, dtype: Any) -> Inputs:
    inputs = built.make_inputs(workload, device, dtype)
    if not workload.channels_last:
        return inputs

    def laid_out(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim == _IMAGE_AXES:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    args = tuple(laid_out(value) for value in inputs.args)
    return Inputs(args, tuple((name, laid_out(value)) for name, value in inputs.kwargs))


def _inference(built: Built, workload: Workload, device: str) -> Step:
    inputs = _make_inputs(built, workload, device, _TORCH_DTYPES[workload.dtype])
    kwargs = dict(inputs.kwargs)

    def run() -> Any:
        with torch.inference_mode():
            return built.model(*inputs.args, **kwargs)

    return Step(run, _nothing)


def _training(built: Built, workload: Workload, device: str) -> Step:
    model = built.model.train()
    inputs = _make_inputs(built, workload, device, torch.float32)
    kwargs = dict(inputs.kwargs)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if workload.optimizer == "adamw":
        # the step counter must live on the device for a step to be captured in a graph
        optimizer: Any = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, capturable=device != "cpu")
    else:
        optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM)
    kind = "cpu" if device == "cpu" else "cuda"
    labels: dict[tuple[int, ...], Any] = {}

    def loss_of(output: Any) -> Any:
        scores = getattr(output, "logits", output)
        if not isinstance(scores, torch.Tensor):
            scores = _first_tensor(output)
        if scores.ndim == 2 or hasattr(output, "logits"):
            # a loss needs labels; they are made once for each shape, so that the step always uses the same addresses
            scores = scores.flatten(0, -2)
            shape = (scores.shape[0],)
            if shape not in labels:
                labels[shape] = torch.randint(0, scores.shape[-1], shape, device=scores.device)
            return torch.nn.functional.cross_entropy(scores, labels[shape])
        return scores.float().square().mean()

    def run() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16, enabled=workload.dtype == "bf16"):
            loss = loss_of(model(*inputs.args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    def close() -> None:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        labels.clear()

    return Step(run, close)


def _first_tensor(output: Any) -> Any:
    values = output.values() if hasattr(output, "values") else output
    return next(value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())


def _tokens(built: Built, workload: Workload, length: int, device: str) -> Any:
    vocab = built.model.config.get_text_config().vocab_size
    return torch.randint(0, vocab, (workload.batch_size, length), device=device)


def _prefill(built: Built, workload: Workload, device: str) -> Step:
    from transformers import DynamicCache

    tokens = _tokens(built, workload, workload.input_shape[0], device)

    def run() -> Any:
        with torch.inference_mode():
            cache = DynamicCache(config=built.model.config)
            return built.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)

    return Step(run, _nothing)


def _decode(built: Built, workload: Workload, device: str) -> Step:
    from transformers import DynamicCache

    config, length, batch = built.model.config.get_text_config(), workload.input_shape[0], workload.batch_size
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = _tokens(built, workload, 1, device)
    positions = torch.full((batch, 1), length, device=device)
    filled = DynamicCache(config=built.model.config)
    with torch.inference_mode():
        for layer in range(config.num_hidden_layers):
            shape = (batch, heads, length, size)
            dtype = _TORCH_DTYPES[workload.dtype]
            filled.update(
                torch.randn(shape, device=device, dtype=dtype), torch.randn(shape, device=device, dtype=dtype), layer
            )

    def run() -> Any:
        # the cache grows by one token a run; a shallow copy brings every run back to the same length and addresses
        cache = copy.copy(filled)
        cache.layers = [copy.copy(layer) for layer in filled.layers]
        with torch.inference_mode():
            return built.model(input_ids=token, position_ids=positions, past_key_values=cache, use_cache=True)

    return Step(run, _nothing)
