"""Frontends: builds a Hugging Face model without weights, and the inputs of the mode that it runs in."""

import inspect
from collections.abc import Callable
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.frontends.huggingface.configs import (
    HfConfig,
    chosen_attention,
    first_architecture,
    foreign_values,
    load_config,
    quiet,
    transformers_config,
)
from foretell.frontends.huggingface.inputs import DEFAULT_PROMPT, DEFAULT_TOKENS, ModelInputs, Sizes
from foretell.frontends.huggingface.layers import shorten
from foretell.frontends.huggingface.tracing import as_if_run, bind_forward, cache_tensors, fill_cache
from foretell.frontends.torch.program import TorchProgram, one_line
from foretell.optional import repair_torchvision, require
from foretell.registry import did_you_mean

MODES = ("inference", "training", "prefill", "decode")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

# the experts of these run in a Python loop over values, which cannot be exported
UNSUPPORTED_MOE = frozenset({"dbrx", "jetmoe", "longcat_flash", "nllb-moe", "switch_transformers"})


def build_program(
    spec: str | HfConfig,
    *,
    mode: str = "inference",
    batch_size: int = 1,
    sequence: int | None = None,
    context: int | None = None,
    image: tuple[int, ...] | None = None,
    dtype: str = "fp32",
    trust: bool = False,
    shortened: bool = False,
) -> TorchProgram:
    """Build a Hugging Face model without weights, ready for ``torch.export(..., strict=False)``.

    Args:
        spec: ``hf:ID``, a folder with a config.json, a path to one, or its values.
        mode: ``inference`` and ``training`` run the whole model once; ``prefill`` reads a prompt into a cache and
            returns the logits of its last token; ``decode`` makes one token from a cache of ``context`` tokens.
        batch_size: The number of items in the batch.
        sequence: The number of tokens read (of the source, for an encoder-decoder), or of samples of speech.
        context: The number of tokens in the cache; in other modes than ``decode``, of an encoder-decoder's target.
        image: CxHxW or HxW; if it is None, the config decides.
        dtype: The dtype of parameters and floating-point inputs: fp32, fp16 or bf16.
        trust: Whether code that comes with the model may run.
        shortened: Whether equal layers may be left out; then ``repeat`` of the program puts them back into its trace.
    """
    _check(mode, dtype, batch_size=batch_size, sequence=sequence, context=context)
    torch = require("torch", extra="hf", purpose="Reading Hugging Face models")
    require("transformers", extra="hf", purpose="Reading Hugging Face models")
    source = load_config(spec) if isinstance(spec, str) else spec
    repair_torchvision()
    makers: dict[str, Callable[[ModelInputs], tuple[dict[str, Any], list[str]]]] = {
        "inference": _single_run,
        "training": _single_run,
        "prefill": _prefill,
        "decode": _decode,
    }
    with foreign_values(source):
        model = _build(source, mode, getattr(torch, DTYPES[dtype]), trust)
        repeat = shorten(model) if shortened else None
        model_inputs = ModelInputs(model, Sizes(batch_size, sequence, context, image), getattr(torch, DTYPES[dtype]))
        if mode in ("prefill", "decode") and not model.can_generate():
            raise InputError(
                f"Mode {mode!r} needs a model that generates; {type(model).__name__} does not. Use inference"
            )
        kwargs, notes = makers[mode](model_inputs)
    if "quantization_config" in source.values:
        notes.append(f"quantization_config is ignored: weights count as {dtype}")
    other = chosen_attention(source)[1]
    if other is not None:
        used = getattr(model.config, "_attn_implementation", None) or "eager"
        notes.append(f"attn_implementation {other!r} is ignored: only eager and sdpa are known, and {used} is read")
    return TorchProgram(source.name, model, (), kwargs, {}, tuple(notes), repeat=repeat)


def _check(mode: str, dtype: str, **counts: int | None) -> None:
    """Raise if an option is not allowed."""
    if mode not in MODES:
        raise InputError(f"Unknown mode {mode!r}.{did_you_mean(mode, MODES)}")
    if dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r} for a Hugging Face model.{did_you_mean(dtype, DTYPES)}")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{name} is {count}; it must be at least 1")


def _build(source: HfConfig, mode: str, dtype: Any, trust: bool) -> Any:
    """Build the model on the meta device, in the mode in which it runs."""
    torch = require("torch", extra="hf")
    with quiet():
        config = transformers_config(source, trust=trust)
        if config.model_type in UNSUPPORTED_MOE:
            raise ModelError(
                f"Cannot read {source.name}: the experts of model_type {config.model_type!r} run in a loop that "
                "depends on values. Mixtral, Qwen-MoE, DeepSeek, OLMoE, GPT-OSS and others work"
            )
        if getattr(config, "apply_spec_augment", False):
            config.apply_spec_augment = False  # it would make masks on the host, from the lengths of the clips
        make = model_factory(source, config, generates=mode in ("prefill", "decode"))
        foreign = not type(config).__module__.startswith("transformers.")
        remote = {"trust_remote_code": True} if trust and foreign else {}
        with torch.device("meta"):
            model = make(config, dtype=dtype, **remote, **attention_of(source))
    if getattr(config, "scale_decoder_outputs", True) is False and hasattr(model, "lm_head"):
        # T5 1.1 and Flan-T5 have a separate head, but transformers 5 ties it to the embedding without a checkpoint
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model.train(mode == "training")


def attention_of(source: HfConfig) -> dict[str, str]:
    """The argument for the function that builds a model, if its config names an implementation of attention."""
    chosen = chosen_attention(source)[0]
    return {} if chosen is None else {"attn_implementation": chosen}


def model_factory(source: HfConfig, config: Any, *, generates: bool) -> Callable[..., Any]:
    """Return the function that builds the model: of the class that the config names, else of one that fits its type."""
    transformers = require("transformers", extra="hf")
    auto = require("transformers.models.auto.modeling_auto", extra="hf")
    name = first_architecture(source.values)
    architecture: Any = None if name is None else getattr(transformers, name, None)
    is_known = inspect.isclass(architecture) and issubclass(architecture, transformers.PreTrainedModel)
    if is_known and (architecture.can_generate() or not generates):
        return architecture._from_config  # type: ignore[no-any-return]
    if getattr(config, "is_encoder_decoder", False):
        choices = [auto.AutoModelForSeq2SeqLM, auto.AutoModelForSpeechSeq2Seq, auto.AutoModelForImageTextToText]
    elif type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING:
        choices = []
    else:
        choices = [auto.AutoModelForCausalLM, auto.AutoModelForImageTextToText]
    # a config with code of its own names the auto classes that it supports
    remote = getattr(config, "auto_map", None) or {}
    matches = (choice for choice in choices if type(config) in choice._model_mapping or choice.__name__ in remote)
    return next(matches, auto.AutoModel).from_config  # type: ignore[no-any-return]


def _single_run(model_inputs: ModelInputs) -> tuple[dict[str, Any], list[str]]:
    """Bind the forward for one run of the whole model; returns its inputs and notes."""
    inputs = model_inputs.source()
    if model_inputs.is_encoder_decoder:
        inputs["decoder_input_ids"] = model_inputs.tokens(model_inputs.target_length(), target=True)
    options = {"use_cache": False} if "use_cache" in model_inputs.parameters else {}
    options |= _resampling(model_inputs)
    bind_forward(model_inputs.model, inputs, lambda forward, tensors: forward(**tensors, **options))
    return inputs, _notes(model_inputs, inputs)


def _prefill(model_inputs: ModelInputs) -> tuple[dict[str, Any], list[str]]:
    """Bind the forward for reading a prompt into a cache; returns its inputs and notes."""
    inputs = model_inputs.source(DEFAULT_PROMPT)
    if model_inputs.is_encoder_decoder:
        inputs["decoder_input_ids"] = model_inputs.tokens(1, target=True)
    options = {"use_cache": True} | _last_logits(model_inputs)
    notes = _notes(model_inputs, inputs)
    if not model_inputs.is_encoder_decoder and "logits_to_keep" not in model_inputs.parameters:
        notes.append("this model computes the logits of every token of the prompt")
    bind_forward(model_inputs.model, inputs, lambda forward, tensors: _logits_and_cache(forward(**tensors, **options)))
    return inputs, notes


def _decode(model_inputs: ModelInputs) -> tuple[dict[str, Any], list[str]]:
    """Bind the forward for one token on top of a filled cache; the tensors of the cache are inputs."""
    context = model_inputs.sizes.context or model_inputs.sizes.sequence or DEFAULT_PROMPT
    # one token; asking for context + 1 first checks that the model has that many positions
    steps = model_inputs.tokens(context + 1, target=True)[:, :1].clone()
    options: dict[str, Any] = {"use_cache": True} | _last_logits(model_inputs)
    if model_inputs.is_encoder_decoder:
        prompt = model_inputs.source(DEFAULT_TOKENS) | {"decoder_input_ids": model_inputs.tokens(context, target=True)}
    else:
        prompt = {"input_ids": model_inputs.tokens(context)}
    # running the prompt on the meta device gives a cache of the right shape: grouped heads, windows, latents, states
    template = _run(model_inputs, prompt, options)
    key = "past_key_values" if getattr(template, "past_key_values", None) is not None else "cache_params"
    cache = getattr(template, key, None)
    if cache is None:
        raise ModelError(f"{type(model_inputs.model).__name__} returns no cache that foretell can read; use prefill")
    inputs: dict[str, Any] = {"decoder_input_ids" if model_inputs.is_encoder_decoder else "input_ids": steps}
    if model_inputs.is_encoder_decoder:
        inputs["encoder_hidden_states"] = template.encoder_last_hidden_state
    inputs |= cache_tensors(cache)

    def step(forward: Callable[..., Any], tensors: dict[str, Any]) -> Any:
        arguments = {name: tensor for name, tensor in tensors.items() if name in ("input_ids", "decoder_input_ids")}
        if "encoder_hidden_states" in tensors:
            arguments["encoder_outputs"] = (tensors["encoder_hidden_states"],)
        arguments[key] = fill_cache(cache, tensors)
        return _logits_and_cache(forward(**arguments, **options))

    bind_forward(model_inputs.model, inputs, step)
    return inputs, _notes(model_inputs, inputs)


def _run(model_inputs: ModelInputs, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    torch = require("torch", extra="hf")
    try:
        with torch.no_grad(), torch.device("meta"), as_if_run(model_inputs.model):
            return model_inputs.model(**inputs, **options)
    except Exception as error:  # anything may go wrong in a model
        raise ModelError(f"Cannot fill the cache of {type(model_inputs.model).__name__}: {one_line(error)}") from error


def _logits_and_cache(output: Any) -> dict[str, Any]:
    logits = {"logits": output.logits} if getattr(output, "logits", None) is not None else {}
    cache = getattr(output, "past_key_values", None)
    return logits | {"cache": getattr(output, "cache_params", None) if cache is None else cache}


def _last_logits(model_inputs: ModelInputs) -> dict[str, Any]:
    return {"logits_to_keep": 1} if "logits_to_keep" in model_inputs.parameters else {}


def _resampling(model_inputs: ModelInputs) -> dict[str, Any]:
    """The option to resample position embeddings, if the image has another size than the model was made for."""
    if model_inputs.sizes.image is None or "interpolate_pos_encoding" not in model_inputs.parameters:
        return {}
    native_size = ModelInputs(model_inputs.model, Sizes(1), model_inputs.dtype).pixels().shape[-2:]
    return {"interpolate_pos_encoding": True} if tuple(native_size) != tuple(model_inputs.sizes.image[-2:]) else {}


def _notes(model_inputs: ModelInputs, inputs: dict[str, Any]) -> list[str]:
    if "input_ids" in inputs and "pixel_values" in model_inputs.parameters and "pixel_values" not in inputs:
        return ["only the language model runs: text without an image"]
    return []
