"""Frontends: makes the inputs of a transformers model: which ones it takes, and how large they are."""

import inspect
from dataclasses import dataclass
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.optional import require

DEFAULT_TOKENS = 128
DEFAULT_PROMPT = 512
DEFAULT_SAMPLES = 160_000  # ten seconds of speech at 16 kHz
DEFAULT_FRAMES = 1000  # the same, as frames of ten milliseconds
DEFAULT_IMAGE = 224
POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding")


@dataclass(frozen=True)
class Sizes:
    """The sizes that the user asked for; None if the model or a default decides."""

    batch_size: int
    sequence: int | None = None
    context: int | None = None
    image: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelInputs:
    """Makes the input tensors of one model, on the meta device."""

    model: Any
    sizes: Sizes
    dtype: Any

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters of the model's forward."""
        return frozenset(inspect.signature(type(self.model).forward).parameters)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source and writes a target."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False)) and "decoder_input_ids" in self.parameters

    def tokens(self, length: int, *, target: bool = False) -> Any:
        """Token ids of ``length`` for every item of the batch: of the source, or with ``target`` of the target."""
        torch = require("torch", extra="hf")
        limit = self._limit(target=target)
        if limit is not None and length > limit:
            raise InputError(f"{length} tokens do not fit {type(self.model).__name__}; it has {limit} positions")
        return torch.zeros(self.sizes.batch_size, length, dtype=torch.int64, device="meta")

    def floats(self, *shape: int) -> Any:
        """A floating-point tensor of this shape for every item of the batch."""
        torch = require("torch", extra="hf")
        return torch.zeros(self.sizes.batch_size, *shape, dtype=self.dtype, device="meta")

    def source(self, default: int = DEFAULT_TOKENS) -> dict[str, Any]:
        """The inputs that the model reads: text, an image, speech, or text and an image."""
        name = self.model.main_input_name
        if name == "input_ids" or name not in self.parameters:
            if "input_ids" not in self.parameters:
                raise ModelError(f"{type(self.model).__name__} takes {name!r}, which foretell does not make yet")
            inputs = {"input_ids": self.tokens(self._length(default))}
            if self._takes_image:
                inputs["pixel_values"] = self.pixels()
            return inputs
        makers = {
            "pixel_values": self.pixels,
            "pixel_values_videos": self.pixels,
            "input_features": self._features,
            "input_values": self._waveform,
        }
        if name not in makers:
            raise ModelError(f"{type(self.model).__name__} takes {name!r}, which foretell does not make yet")
        inputs = {name: makers[name]()}
        if "input_ids" in self.parameters and not self.is_encoder_decoder:
            inputs["input_ids"] = self.tokens(self._length(default))
        return inputs

    def target_length(self) -> int:
        """The number of tokens of an encoder-decoder's target."""
        requested = self.sizes.context or self.sizes.sequence
        return requested or min(DEFAULT_TOKENS, self._limit(target=True) or DEFAULT_TOKENS)

    def pixels(self) -> Any:
        """An image, or a video clip if the model takes several frames."""
        config = _part(self.model.config, "vision_config", "encoder")
        shape = self.sizes.image or (getattr(config, "num_channels", 3), *_pair(getattr(config, "image_size", None)))
        if len(shape) == 2:
            shape = (getattr(config, "num_channels", 3), *shape)
        if len(shape) != 3:
            raise InputError(f"An image is CxHxW or HxW, got {'x'.join(map(str, shape))}")
        frames = getattr(config, "num_frames", None)
        return self.floats(frames, *shape) if isinstance(frames, int) else self.floats(*shape)

    @property
    def _takes_image(self) -> bool:
        """Whether an image goes with the text: always for CLIP; for a generating model only if the user gave a size."""
        parameter = inspect.signature(type(self.model).forward).parameters.get("pixel_values")
        if parameter is None:
            return False
        return self.sizes.image is not None or not self.model.can_generate() or parameter.default is parameter.empty

    def _limit(self, *, target: bool) -> int | None:
        side = ("decoder" if target else "encoder") if self.is_encoder_decoder else ""
        return position_limit(self.model, side)

    def _length(self, default: int) -> int:
        if self.sizes.sequence is not None:
            return self.sizes.sequence
        text = _part(self.model.config, "text_config")
        limits = [self._limit(target=False), getattr(text, "max_position_embeddings", None)]
        return min([default, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])

    def _features(self) -> Any:
        """Speech as spectrogram features, in the form that the config describes."""
        config = self.model.config
        width = getattr(config, "input_feat_per_channel", None) or getattr(config, "feature_projection_input_dim", None)
        if width is not None:
            return self.floats(DEFAULT_FRAMES, width)
        if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
            return self.floats(config.num_mel_bins, 2 * config.max_source_positions)
        raise ModelError(f"{type(self.model).__name__} takes speech features of a form that foretell does not make yet")

    def _waveform(self) -> Any:
        config = self.model.config
        if hasattr(config, "num_mel_bins") and hasattr(config, "max_length") and hasattr(config, "patch_size"):
            return self.floats(getattr(config, "max_length", 1024), config.num_mel_bins)
        return self.floats(self.sizes.sequence or DEFAULT_SAMPLES)


def position_limit(model: Any, side: str = "") -> int | None:
    """Return the size of the smallest table of learned text positions in the model or in its ``side``; None if none."""
    torch = require("torch", extra="hf")
    limits = []
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or path.rpartition(".")[2] not in POSITION_TABLES:
            continue
        if side not in path or "vision" in path:
            continue
        # some tables begin with rows that are no positions: BART has an offset, RoBERTa starts after its padding index
        offset = getattr(module, "offset", None)
        if offset is None:
            offset = module.padding_idx + 1 if module.padding_idx is not None else 0
        limits.append(module.num_embeddings - offset)
    return min(limits, default=None)


def _part(config: Any, *names: str) -> Any:
    """The first sub-config with one of these names, else the config itself."""
    parts = (getattr(config, name, None) for name in names)
    return next((part for part in parts if part is not None and not isinstance(part, str)), config)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, list | tuple) and len(size) >= 2:
        return int(size[-2]), int(size[-1])
    if isinstance(size, list | tuple) and size:
        size = size[0]
    return (int(size), int(size)) if size else (DEFAULT_IMAGE, DEFAULT_IMAGE)
