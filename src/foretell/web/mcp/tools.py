"""Web: the tools that an agent may call, as Pydantic models: their arguments, checked, and what they say of themselves.

A model is a name that runs no code of its author (timm, torchvision, Hugging Face), or a file in the folder that the
user allowed. No argument can name another file, a predictor's file or an address.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foretell.errors import InputError, ModelError
from foretell.registry import did_you_mean
from foretell.web.questions import Count, DeviceName, Positive, Text, Word

MODELS = "timm:NAME, torchvision:NAME, hf:ID, or the path of an .onnx or .pt2 file in the allowed folder"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"
_SPEC = re.compile(f"(timm|torchvision):{_NAME}|hf:{_NAME}(/{_NAME})?")
_LLM_NAME = re.compile(f"(hf:)?{_NAME}(/{_NAME})?")
_MOST_PROBLEMS = 3
_FILES = (".onnx", ".pt2")
_CONFIGURATIONS = (".json",)

Model = Annotated[str, Field(max_length=400, description=MODELS, examples=["timm:resnet50", "net.onnx"])]
Fitting = Annotated[int, Field(ge=1, le=1024)]


class Arguments(BaseModel):
    """The arguments of a tool; a field that does not exist is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def models(self) -> list[str]:
        """The models that the arguments name."""
        return [self.model] if hasattr(self, "model") else []


class _Read(Arguments):
    model: Model
    input_shape: list[Text] = Field([], max_length=32, description="[NAME=]3x224x224[:DTYPE], without the batch")
    dtype: Word = Field("fp16", description="fp32, tf32, fp16 or bf16")


class _OnDevice(_Read):
    device: DeviceName = Field("h200", description="a name of the tool devices, such as h200, a100 or l4")
    batch_size: Count = 1
    mode: Word = Field("inference", description="inference, training, prefill or decode")


class Predict(_OnDevice):
    """Predict latency, memory, energy and power of a model on a GPU, with 90 % intervals. Nothing is run."""

    slice: Word | None = Field(None, description="a part of the GPU: mig:1g.18gb, mps:30, sms:66")
    runtime: Word = Field("cuda-graph", description="cuda-graph, eager or compiled (torch.compile)")
    optimizer: Word | None = Field(None, description="sgd or adamw, in training")
    context: Count | None = Field(None, description="tokens already in the cache, in decode")


class Fit(_OnDevice):
    """Say whether a model fits into the memory of a GPU: yes, perhaps or no; the largest batch; how many GPUs."""

    optimizer: Word | None = Field(None, description="sgd or adamw, in training")
    context: Count | None = Field(None, description="tokens already in the cache, in decode")


class Advise(_Read):
    """Find the GPU, MIG slice, batch size and cloud instance that serve a model cheapest under limits."""

    slo_ms: Positive | None = Field(None, description="the longest latency allowed, in ms")
    rate: Positive | None = Field(None, description="requests a second")
    budget: Positive | None = Field(None, description="dollars an hour for all instances")
    by: Word = Field("usd", description="usd, energy or carbon")
    devices: list[DeviceName] = Field(["all"], min_length=1, max_length=64)
    clouds: list[Word] = Field([], max_length=16)
    region: Word | None = None
    max_batch: Annotated[int, Field(ge=1, le=4096)] | None = None
    mig: bool = Field(True, description="try MIG slices too")


class Improve(_OnDevice):
    """Find what makes a model faster, smaller or cheaper; every change has its gain and its cost in accuracy."""

    by: Word = Field("latency", description="latency, throughput, memory or usd")
    accuracy: Word = Field("retraining", description="the most that a change may cost: none, numerics or retraining")
    runtime: Word = Field("cuda-graph", description="what drives the GPU now: cuda-graph, eager or compiled")
    slice: Word | None = None
    optimizer: Word | None = None
    latency_limit_ms: Positive | None = None
    region: Word | None = Field(None, description="the cloud region where it runs now")


class Share(Arguments):
    """Predict how much two or three models slow each other down on one GPU, and whether all fit."""

    of: list[Model] = Field(min_length=2, max_length=3, description="the models")
    device: DeviceName = "h200"
    method: Word = Field("mps", description="mps or time-slicing")
    batch_sizes: list[Count] = Field([1], min_length=1, max_length=3, description="one for all, or one for each model")
    dtypes: list[Word] = Field(["fp16"], min_length=1, max_length=3)
    limits_ms: list[Positive] | None = Field(None, min_length=1, max_length=3)

    def models(self) -> list[str]:
        """All models that share."""
        return list(self.of)


class Llm(Arguments):
    """Predict a language model as it is served: does it fit, on how many GPUs, time to first token, tokens a second."""

    model: Annotated[str, Field(max_length=400, description="meta-llama/Llama-3.1-8B, or a config.json in the folder")]
    device: DeviceName = "h200"
    input_tokens: Count = 1024
    output_tokens: Count = 256
    concurrency: Annotated[int, Field(ge=1, le=65536)] = Field(1, description="requests in flight")
    gpus: Fitting | None = Field(None, description="how many GPUs; the least that fit by default")
    tensor_parallel: Fitting | None = None
    weights: Word | None = Field(None, description="fp8, int8 or int4; those of the checkpoint by default")
    kv_dtype: Word | None = Field(None, description="bf16 or fp8")
    engine: Word = Field("paged", description="paged, vllm, sglang, trtllm or eager")


class Inspect(_Read):
    """Count parameters, MACs, FLOPs and bytes of a model, by operator."""

    batch_size: Count = 1
    mode: Word = "inference"


class Devices(Arguments):
    """List the GPUs and CPUs that can be asked for; with a name, the facts of one."""

    name: DeviceName | None = Field(None, description="one device; all by default")
    maker: Word | None = Field(None, description="nvidia, amd, intel, …")


TOOLS: dict[str, type[Arguments]] = {
    "predict": Predict, "fit": Fit, "advise": Advise, "improve": Improve, "share": Share, "llm": Llm,
    "inspect": Inspect, "devices": Devices,
}  # fmt: skip


def read_arguments(tool: str, values: dict[str, Any]) -> Arguments:
    """Check the arguments of a tool; an error says in one line what is wrong.

    >>> read_arguments("predict", {"model": "timm:resnet50", "batch_size": 8}).batch_size
    8
    """
    if tool not in TOOLS:
        raise InputError(f"Unknown tool {tool!r}.{did_you_mean(tool, TOOLS)}")
    try:
        return TOOLS[tool].model_validate(values)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc'])) or tool}: {detail['msg']}" for detail in error.errors()]
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise InputError("; ".join(problems[:_MOST_PROBLEMS]) + more) from error


def find_model(model: str, folder: Path | None, *, language: bool = False) -> str:
    """A model as the workflows take it: a name, or the whole path of a file inside the allowed folder.

    >>> find_model("timm:resnet50", None)
    'timm:resnet50'
    >>> find_model("../secret.onnx", Path("/models"))
    Traceback (most recent call last):
    ...
    foretell.errors.ModelError: Got the model '../secret.onnx', which is not inside the allowed folder.
    """
    suffixes = _CONFIGURATIONS if language else _FILES
    if not model.endswith((*_FILES, *_CONFIGURATIONS)):
        if (_LLM_NAME if language else _SPEC).fullmatch(model) and ".." not in model:
            return model
        raise ModelError(f"Got the model {model[:80]!r}; allowed are {MODELS}.")
    if not model.endswith(suffixes):
        raise ModelError(f"Got the file {model[:80]!r}; this tool reads {' and '.join(suffixes)} files.")
    if folder is None:
        raise ModelError("No folder of model files is allowed: start the server with foretell mcp --folder PATH.")
    # links are followed before the check: one that leads out of the folder is out of it
    path = (folder / model).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ModelError(f"Got the model {model[:80]!r}, which is not inside the allowed folder.")
    if not path.is_file():
        raise ModelError(f"There is no file {model[:80]!r} in the allowed folder.")
    return str(path)
