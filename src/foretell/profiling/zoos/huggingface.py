"""Profiling: transformers from Hugging Face configurations that the spec contains; nothing is downloaded."""

import importlib
import random
from collections.abc import Iterable, Sequence
from typing import Any

from foretell.optional import available, repair_torchvision, require
from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import Spec, Workload, parse_spec
from foretell.profiling.zoos import hf_architectures as architectures
from foretell.profiling.zoos.zoo import Built, Entry, Inputs, image_inputs

_AUDIO_SAMPLES = 16000
_MEL_FRAMES = 3000
_CLIP_TOKENS, _CLIP_VOCABULARY = 77, 49408


def _transformers() -> Any:
    if available("torchvision"):
        repair_torchvision()  # transformers imports torchvision where it is installed
    transformers = require("transformers", extra="hf", purpose="Profiling Hugging Face models")
    _keep_eager()
    return transformers


def _keep_eager() -> None:
    """Make a captured forward pass run the same kernels as an uncaptured one.

    While a graph is captured, transformers cannot inspect masks and builds them in full, which keeps attention from its
    fast kernels. Nothing is padded or packed here, so the results of these inspections are known in advance.
    """
    imports = importlib.import_module("transformers.utils.import_utils")
    masking = importlib.import_module("transformers.masking_utils")
    answers: tuple[tuple[Any, str, bool | None], ...] = (
        (imports, "is_cuda_stream_capturing", False),
        (masking, "is_cuda_stream_capturing", False),
    )
    answers += ((masking, "find_packed_sequence_indices", None), (masking, "fast_all", True))
    for module, name, answer in answers:
        if hasattr(module, name):
            setattr(module, name, _always(answer))


def _always(answer: bool | None) -> Any:
    return lambda *_args, **_kwargs: answer


def _build(spec: str) -> Built:
    transformers = _transformers()
    parsed = parse_spec(spec)
    arguments = {key: None if value == "none" else value for key, value in parsed.arguments.items()}
    if parsed.name == "clip":
        return Built(_two_towers(transformers, arguments).eval(), _picture_and_text, cast_buffers=False)
    config = transformers.AutoConfig.for_model(parsed.name, **arguments)
    if parsed.name in architectures.CAUSAL:
        model = transformers.AutoModelForCausalLM.from_config(config)
    elif parsed.name == "t5":
        model = transformers.T5EncoderModel(config)
    elif parsed.name == "clip_vision_model":
        model = transformers.CLIPVisionModel(config)
    elif parsed.name == "clip_text_model":
        model = transformers.CLIPTextModel(config)
    elif parsed.name == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        model = WhisperEncoder(config)
    else:
        model = transformers.AutoModel.from_config(config)
    vocab = int(parsed.arguments.get("vocab_size", 0))
    if not vocab and model.main_input_name == "input_ids":
        vocab = int(config.vocab_size)
    return Built(model.eval(), _token_inputs(vocab) if vocab else image_inputs, cast_buffers=False)


def _two_towers(transformers: Any, arguments: dict[str, Any]) -> Any:
    """CLIP with a transformer over pictures, or with timm's network that ``vision`` names."""
    name = arguments.pop("vision", None)
    if name is None:
        return transformers.CLIPModel(transformers.CLIPConfig(vision_config=arguments))
    import torch

    timm = require("timm", extra="vision", purpose="Profiling timm's models")
    text = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig())

    class TwoTowers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vision = timm.create_model(name, pretrained=False, num_classes=text.config.projection_dim)
            self.text = text
            self.scale = torch.nn.Parameter(torch.tensor(2.6592))

        def forward(self, pixel_values: Any, input_ids: Any) -> Any:
            normal = torch.nn.functional.normalize
            pictures, texts = normal(self.vision(pixel_values)), normal(self.text(input_ids=input_ids).text_embeds)
            return self.scale.exp() * texts @ pictures.t()

    return TwoTowers()


def _picture_and_text(workload: Workload, device: str, dtype: Any) -> Inputs:
    import torch

    tokens = torch.randint(0, _CLIP_VOCABULARY, (workload.batch_size, _CLIP_TOKENS), device=device)
    pictures = image_inputs(workload, device, dtype).args[0]
    return Inputs(kwargs=(("pixel_values", pictures), ("input_ids", tokens)))


def _token_inputs(vocab: int) -> Any:
    def make(workload: Workload, device: str, dtype: Any) -> Inputs:  # noqa: ARG001 tokens have no precision
        import torch

        shape = (workload.batch_size, *workload.input_shape)
        kwargs: tuple[tuple[str, Any], ...] = (("input_ids", torch.randint(0, vocab, shape, device=device)),)
        if parse_spec(workload.spec).name in architectures.CAUSAL:
            kwargs += (("use_cache", False),)
        return Inputs(kwargs=kwargs)

    return make


class _HfZoo:
    """What both zoos share."""

    def prepare(self) -> None:
        """Import the library before initialisation is made lazy."""
        _transformers()

    def build(self, spec: str) -> Built:
        """The model of a spec, in eval mode."""
        return _build(spec)


class EncoderZoo(_HfZoo):
    """``hf:TYPE?argument=value``: text, image and audio encoders, one full forward pass."""

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """Published encoders, and ``part.models`` random ones."""
        draw = random.Random(f"{seed}/{part.name}/hf")
        specs = [*architectures.known_encoders(), *_of_this_zoo(part.specs)]
        specs += [architectures.random_encoder(draw) for _ in range(part.models)]
        entries_found = {
            str(spec): Entry(str(spec), f"hf-{spec.name}", _shape(spec), max_sequence=_limit(spec)) for spec in specs
        }
        return [entry for entry in entries_found.values() if not part.families or entry.family in part.families]


class CausalZoo(_HfZoo):
    """``hf:TYPE?argument=value``: decoder-only language models."""

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """Published language models, and ``part.models`` random ones."""
        draw = random.Random(f"{seed}/{part.name}/llm")
        specs = [*architectures.known_causal(), *_of_this_zoo(part.specs)]
        specs += [architectures.random_causal(draw) for _ in range(part.models)]
        entries_found = {}
        for spec in specs:
            parameters, cache = architectures.estimate(spec)
            limit = architectures.max_sequence(spec)
            entry = Entry(str(spec), f"llm-{spec.name}", (), False, parameters, cache, limit)
            entries_found[entry.spec] = entry
        return [entry for entry in entries_found.values() if not part.families or entry.family in part.families]


def _of_this_zoo(specs: Iterable[str]) -> list[Spec]:
    """Those of the specs that a plan names which are configurations; any configuration can be built."""
    return [spec for spec in map(parse_spec, specs) if spec.zoo == "hf"]


def _shape(spec: Spec) -> tuple[int, ...]:
    if "image_size" in spec.arguments:
        size = int(spec.arguments["image_size"])
        return (3, size, size)
    if spec.name == "whisper":
        return (int(spec.arguments["num_mel_bins"]), _MEL_FRAMES)
    return (_AUDIO_SAMPLES * 2,) if spec.name == "wav2vec2" else ()


def _limit(spec: Spec) -> int:
    return 0 if _shape(spec) else min(architectures.max_sequence(spec), 4096)
