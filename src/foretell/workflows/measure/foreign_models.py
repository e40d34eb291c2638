"""Workflows: build models that are in no profiling zoo, to measure them: Hugging Face models, Python files, ONNX files.

These functions run in the child process that measures; `profile` names them in its request.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.frontends.huggingface.building import attention_of, model_factory
from foretell.frontends.huggingface.configs import chosen_attention, load_config, quiet, transformers_config
from foretell.frontends.huggingface.frontend import read_sizes
from foretell.frontends.huggingface.inputs import DEFAULT_PROMPT, ModelInputs, Sizes
from foretell.frontends.request import InputSpec, parse_inputs
from foretell.frontends.torch.program import one_line
from foretell.frontends.torch.python_file import load_function
from foretell.frontends.torch.torchscript import torch_dtype
from foretell.optional import repair_torchvision, require
from foretell.profiling.runtimes.onnx_runtime import input_shapes
from foretell.profiling.single import Request
from foretell.profiling.source import Source
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.registry import load_zoo
from foretell.profiling.zoos.zoo import Built, Inputs


def build_onnx(request: Request) -> Source:
    """An ONNX file, which ONNX Runtime runs."""
    shapes_by_name = {spec.name: spec.shape for spec in parse_inputs(request.inputs)}
    workload = Workload(request.model, request.batch_size, (), request.dtype)
    shapes = input_shapes(request.model, workload, shapes_by_name)
    return Source(None, next(iter(shapes.values()), ())[1:], "onnx", request.model, feeds=shapes)


def build_huggingface(request: Request) -> Source:
    """``hf:ID``, a folder or a config.json: the class that the front-end would choose, with random weights."""
    load_zoo("hf").prepare()  # type: ignore[attr-defined]
    from foretell.profiling.skeleton import lazy_initialisation

    torch = require("torch", extra="hf")
    source = load_config(request.model)
    sequence, image = read_sizes(parse_inputs(request.inputs))
    generates = request.mode in ("prefill", "decode")
    # Without random initialisation: it takes long for large models, and weights do not change the times.
    with quiet(), lazy_initialisation():
        config = transformers_config(source, trust=request.trust)
        other = chosen_attention(source)[1]
        if other is not None:
            raise InputError(f"{source.name} names attn_implementation {other!r}; only eager and sdpa can be measured.")
        try:
            model = model_factory(source, config, generates=generates)(config, **attention_of(source)).eval()
        except Exception as error:
            raise ModelError(f"The config of {source.name} does not define a valid model: {one_line(error)}") from error
    if generates:
        if not model.can_generate() or getattr(config, "is_encoder_decoder", False):
            raise InputError(f"Mode {request.mode!r} needs a decoder-only language model; {source.name} is not one.")
        length = (request.context or sequence if request.mode == "decode" else sequence) or DEFAULT_PROMPT
        return Source(Built(model, _no_inputs, cast_buffers=False), (length,), f"hf-{config.model_type}")
    model_inputs = ModelInputs(model, Sizes(request.batch_size, sequence, request.context, image), torch.float32)
    template = model_inputs.source()
    if model_inputs.is_encoder_decoder:
        template["decoder_input_ids"] = model_inputs.tokens(model_inputs.target_length(), target=True)
    options = {"use_cache": False} if "use_cache" in model_inputs.parameters else {}
    shape = tuple(next(iter(template.values())).shape[1:])
    vocabulary = int(getattr(config.get_text_config(), "vocab_size", 0) or 2)
    made = Built(model, _random_inputs_like(template, options, vocabulary), cast_buffers=False)
    return Source(made, shape, f"hf-{config.model_type}")


def _no_inputs(workload: Workload, device: str, dtype: Any) -> Inputs:  # noqa: ARG001 prefill and decode make tokens
    return Inputs()


def _random_inputs_like(template: Mapping[str, Any], options: Mapping[str, Any], vocabulary: int) -> Any:
    """Random inputs of the template's shapes: tokens from the vocabulary, or normally distributed numbers."""

    def make(workload: Workload, device: str, dtype: Any) -> Inputs:  # noqa: ARG001 the template has the batch
        torch = require("torch", extra="hf")
        made = {
            name: torch.randn(meta.shape, device=device).to(dtype)
            if meta.is_floating_point()
            else torch.randint(0, vocabulary, meta.shape, device=device)
            for name, meta in template.items()
        }
        return Inputs(kwargs=tuple((made | dict(options)).items()))

    return make


def build_python(request: Request) -> Source:
    """``net.py:build``. The parent process has checked that the user trusts it."""
    from foretell.profiling.skeleton import lazy_initialisation

    torch = require("torch", extra="torch", purpose="Profiling PyTorch models")
    repair_torchvision()
    path, _, function = request.model.rpartition(":")
    build = load_function(Path(path), function)
    try:
        with lazy_initialisation():
            built = build()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{request.model} raised {type(error).__name__}: {one_line(error)}") from error
    module, examples = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{request.model} returned {type(module).__name__}; it must return an nn.Module.")
    specs = parse_inputs(request.inputs)
    if specs:
        return Source(Built(module.eval(), _from_specs(specs)), specs[0].shape)
    if examples is None:
        raise InputError(
            f"The inputs of {request.model} are not known. Give their shapes, without the batch: --input 3x224x224"
        )
    args, kwargs = ((), examples) if isinstance(examples, dict) else (examples, {})
    args = tuple(args) if isinstance(args, list | tuple) else (args,)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    shape = tuple(tensors[0].shape[1:]) if tensors else ()
    return Source(Built(module.eval(), _from_examples(args, kwargs)), shape)


def _from_specs(specs: tuple[InputSpec, ...]) -> Any:
    def make(workload: Workload, device: str, dtype: Any) -> Inputs:
        torch = require("torch", extra="torch")
        args, kwargs = [], []
        for spec in specs:
            shape = (workload.batch_size, *spec.shape)
            input_dtype = torch_dtype(torch, spec.dtype) if spec.dtype is not None else dtype
            floating = input_dtype.is_floating_point
            # The size of the vocabulary is not known, but 0 and 1 are valid tokens in every one.
            value = torch.randn(shape, device=device) if floating else torch.randint(0, 2, shape, device=device)
            value = value.to(dtype if floating and spec.dtype is None else input_dtype)
            if spec.name is None:
                args.append(value)
            else:
                kwargs.append((spec.name, value))
        return Inputs(tuple(args), tuple(kwargs))

    return make


def _from_examples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The example inputs at another batch size: their items are repeated in turn."""

    def make(workload: Workload, device: str, dtype: Any) -> Inputs:
        torch = require("torch", extra="torch")

        def fit(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.ndim:
                value = value.detach()[torch.arange(workload.batch_size) % value.shape[0]]
            return value.to(device, dtype) if value.is_floating_point() else value.to(device)

        return Inputs(tuple(map(fit, args)), tuple((name, fit(value)) for name, value in kwargs.items()))

    return make
