"""Web: the questions that clients may ask, as Pydantic models.

A model is a spec that runs no code of the model's author, or an upload. It is never a file on the server.
"""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foretell.errors import InputError, ModelError, UnknownNameError
from foretell.predictors import PREDICTORS
from foretell.registry import did_you_mean

UPLOAD = "upload:"
EXAMPLE = "example:resnet50"  # its graph is part of the package, so that the page has an answer without any extra
ALLOWED = "timm:NAME, torchvision:NAME, hf:ID, or an uploaded .onnx or .pt2 file"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"
_SPEC = re.compile(f"(timm|torchvision):{_NAME}|hf:{_NAME}(/{_NAME})?")
_MAX_PROBLEMS = 3
_LANGUAGE_MODEL = "hf:meta-llama/Llama-3.1-8B"

Word = Annotated[str, Field(max_length=100)]
# a name of the catalogue: files of the server are none of a client's business
DeviceName = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9 ()_-]+$")]
Model = Annotated[str, Field(max_length=200, description=f"{ALLOWED}: upload:ID", examples=["timm:resnet50"])]
Text = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=1, le=1_048_576)]
Tokens = Annotated[int, Field(ge=1, le=4_194_304)]
Positive = Annotated[float, Field(gt=0)]


class Question(BaseModel):
    """The fields of all questions: a model, its inputs and its precision."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: Model
    input_shape: list[Text] = Field([], max_length=32, description="[NAME=]3x224x224[:DTYPE], without the batch")
    dtype: Word = Field("fp32", examples=["fp16"])

    def sources(self) -> dict[str, str]:
        """The fields that name models."""
        return {name: getattr(self, name) for name in ("model", "other") if hasattr(self, name)}


class _OnDevice(Question):
    device: DeviceName = Field("h200", examples=["h200", "a100"])
    batch_size: Count = 1
    mode: Word = Field("inference", description="inference, training, prefill or decode")
    allow_unknown: bool = False


class Predict(_OnDevice):
    """The options of ``foretell predict``."""

    slice: Word | None = Field(None, description="mps:30, mig:1g.18gb, sms:66")
    runtime: Word = Field("cuda-graph", description="cuda-graph, eager or compiled")
    optimizer: Word | None = Field(None, description="sgd or adamw, in training")
    predictor: Word | None = None
    context: Count | None = Field(None, description="Tokens already in the cache, when decoding")
    latency_limit_ms: Positive | None = None


class Fit(_OnDevice):
    """The options of ``foretell fit``."""

    slice: Word | None = Field(None, description="mig:1g.18gb, mps:30, sms:66")
    optimizer: Word | None = Field(None, description="sgd or adamw, in training")
    context: Count | None = Field(None, description="Tokens already in the cache, when decoding")


class _Served(BaseModel):
    """The fields of questions about a language model as engines serve it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: Model = Field(examples=["hf:meta-llama/Llama-3.1-8B"])
    input_tokens: Tokens = 1024
    output_tokens: Tokens = 256
    kv_dtype: Word | None = Field(None, description="bf16 or fp8")
    engine: Word = Field("paged", description="paged, vllm, sglang or trtllm")

    def sources(self) -> dict[str, str]:
        """The field that names the model."""
        return {"model": self.model}


class Llm(_Served):
    """A language model as engines serve it, with the options of ``foretell llm``."""

    device: DeviceName = Field("h200", examples=["h200", "h100-sxm"])
    concurrency: Annotated[int, Field(ge=1, le=65_536)] = 1
    gpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    dtype: Word = "bf16"
    weights: Word | None = Field(None, description="fp8, int8 or int4 [those of the published checkpoint]")


class AdviseLlm(_Served):
    """Where to serve a language model, with the options of ``foretell advise --llm``."""

    ttft_ms: Positive | None = Field(None, description="The longest time to a first token")
    tpot_ms: Positive | None = Field(None, description="The longest time between tokens")
    rate: Positive | None = Field(None, description="Requests a second")
    budget: Positive | None = Field(None, description="Dollars an hour")
    by: Word = Field("usd", description="usd, energy or carbon")
    weights: list[Word] = Field(["published", "fp8", "int4"], min_length=1, max_length=8)
    devices: list[DeviceName] = Field(["all"], min_length=1, max_length=64)
    clouds: list[Word] = Field([], max_length=16)
    region: Word | None = None
    country: Word | None = None
    market: Word = "on-demand"
    pue: Annotated[float, Field(ge=1, le=10)] | None = None


class Compare(_OnDevice):
    """The options of ``foretell compare``."""

    other: Model
    slice: Word | None = None


class Share(_OnDevice):
    """Two models on one GPU at the same time, with the options of ``foretell share``; both run in the same way."""

    other: Model
    method: Word = Field("mps", description="mps or time-slicing")


class Sweep(Question):
    """The options of ``foretell sweep``."""

    devices: list[DeviceName] = Field(["h200"], min_length=1, max_length=64)
    batch_sizes: list[Count] = Field([1, 2, 4, 8, 16, 32, 64], min_length=1, max_length=32)
    dtypes: list[Word] = Field(["fp32"], min_length=1, max_length=8)
    slices: list[Word] = Field(["whole"], min_length=1, max_length=16)
    mode: Word = "inference"
    optimizer: Word | None = None
    predictor: Word | None = None
    context: Count | None = None
    allow_unknown: bool = False


class Advise(Question):
    """The options of ``foretell advise``."""

    dtype: Word = "fp16"
    slo_ms: Positive | None = None
    rate: Positive | None = Field(None, description="Requests a second")
    budget: Positive | None = Field(None, description="Dollars an hour")
    max_batch: Annotated[int, Field(ge=1, le=4096)] | None = None
    by: Word = Field("usd", description="usd, energy or carbon")
    devices: list[DeviceName] = Field(["all"], min_length=1, max_length=64)
    clouds: list[Word] = Field([], max_length=16)
    region: Word | None = None
    country: Word | None = None
    market: Word = "on-demand"
    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    mig: bool = True
    shared: bool = Field(False, description="Try two and three copies on one GPU under MPS too")
    train: bool = False
    steps: Annotated[int, Field(ge=1, le=10**12)] = 100_000
    batch_size: Count = 32
    optimizer: Word = "sgd"


class Report(_OnDevice):
    """The options of ``foretell report``."""

    optimizer: Word | None = None
    context: Count | None = None
    slo_ms: Positive | None = None
    rate: Positive | None = None
    budget: Positive | None = None


AnyQuestion = Question | _Served
QUESTIONS: dict[str, type[AnyQuestion]] = {
    "predict": Predict, "fit": Fit, "compare": Compare, "share": Share, "sweep": Sweep, "advise": Advise,
    "report": Report, "llm": Llm, "advise-llm": AdviseLlm,
}  # fmt: skip


def read_question(kind: str, values: dict[str, Any]) -> AnyQuestion:
    """Check the values of a question.

    >>> read_question("predict", {"model": "timm:resnet50", "batch_size": "8"}).batch_size
    8
    """
    try:
        question = QUESTIONS[kind].model_validate(values)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc'])) or kind}: {detail['msg']}" for detail in error.errors()]
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise InputError("; ".join(problems[:_MAX_PROBLEMS]) + more) from error
    for spec in question.sources().values():
        check_spec(spec)
        if isinstance(question, _Served) and not spec.startswith("hf:"):
            raise ModelError(f"Got the model {spec[:80]!r}; a language model is hf:ID, such as {_LANGUAGE_MODEL}.")
    name = getattr(question, "predictor", None)
    # Names only: the command line also accepts a file, but clients must not choose files of the server.
    if name is not None and name not in PREDICTORS:
        raise UnknownNameError(f"Unknown predictor {name!r}.{did_you_mean(name, PREDICTORS)}")
    return question


def check_spec(spec: str) -> None:
    """Refuse a model that would let the server open one of its files, or run code.

    >>> check_spec("/etc/passwd")
    Traceback (most recent call last):
    ...
    foretell.errors.ModelError: Got the model '/etc/passwd'; allowed are timm:NAME, torchvision:NAME, hf:ID, or an ...
    """
    if spec.startswith(UPLOAD) or spec == EXAMPLE:
        return
    if not _SPEC.fullmatch(spec) or ".." in spec or spec.endswith((".json", ".py")):
        raise ModelError(f"Got the model {spec[:80]!r}; allowed are {ALLOWED}. No file of the server is opened.")
