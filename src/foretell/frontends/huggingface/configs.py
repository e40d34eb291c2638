"""Frontends: finds the config.json of a Hugging Face model, reads it as data and checks it before use."""

import codecs
import logging
import re
import socket
import tomllib
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, ModelError, UntrustedModelError
from foretell.frontends.budget import Budget, parse_json
from foretell.frontends.torch.program import one_line
from foretell.optional import require
from foretell.registry import did_you_mean
from foretell.units import MIB

MAX_CONFIG_BYTES = 8 * MIB
_NO_CONFIG = "{} has neither model_type nor architectures: not a transformers config"
MAX_LAYERS = 256  # of one part, and MAX_ALL_LAYERS of all together; an export takes about 0.1 s for each
MAX_ALL_LAYERS = 512
MAX_EXPERTS = 1024
MAX_COUNT = 2**17  # of anything else that a model may have a list of
MAX_WIDTH = 2**28

# keys with which a config makes transformers fetch and run kernels or weights from the hub; they are removed
_COMMANDS = re.compile(r"^_?(attn|experts)_implementation(_internal)?$|^(use_pretrained_backbone|use_kernels)$")
ATTENTION = ("eager", "sdpa")
_MAX_NAME = 60
_LAYER_KEYS = re.compile(r"^(num_(hidden_|decoder_|encoder_)?layers|n_layers?|(encoder|decoder)_layers|depths?)$")
_EXPERT_KEYS = re.compile(r"^(num_(local_)?|n_(routed_|shared_)?|moe_num_)experts$")
# modules and labels that a model makes a list of
_COUNT_KEYS = re.compile(
    r"^num_(labels|codebooks|blocks|stages|groups|levels|queries|feature_levels|frames|mel_bins|classes)$"
    r"|_(layers|blocks|stages|experts|groups)$|^(num|n)_\w*(layers?|blocks|experts)$"
)
_WIDTH_KEYS = re.compile(
    r"^(hidden_sizes?|n_embd|d_model|dim|embed_dim|vocab_size|intermediate_size|d_ff|d_kv|ffn_dim|head_dim|patch_size"
    r"|(encoder|decoder)_(ffn_dim|attention_heads)|num_(attention_|key_value_)?heads|n_heads?"
    r"|num_(local_)?experts|n_routed_experts|max_position_embeddings|n_positions|image_size|num_channels)$"
)


@dataclass(frozen=True)
class HfConfig:
    """The values of a config.json, and where they came from."""

    name: str
    values: dict[str, Any]
    location: str


def load_config(spec: str) -> HfConfig:
    """Read the config that ``spec`` names: ``hf:ID``, a folder with a config.json, or a JSON file.

    An ID is looked up in the local Hugging Face cache, then in the table that is shipped with foretell, then online.
    """
    ident = spec.removeprefix("hf:")
    path = Path(ident).expanduser()
    # hf:PATH also works for a local folder or file
    if not spec.startswith("hf:") or path.is_dir() or path.suffix == ".json":
        return _from_path(path)
    cached = _cached(ident)
    if cached is not None:
        return HfConfig(ident, _parse(cached), ident)
    known = _lookup(ident)
    return HfConfig(ident, known, ident) if known is not None else HfConfig(ident, _parse(_download(ident)), ident)


def is_shipped(config: HfConfig) -> bool:
    """Whether the values are those of the table that is shipped with foretell."""
    return _lookup(config.name) == config.values


def names_shipped(ident: str) -> bool:
    """Whether an ID, or its short name, is in the table that is shipped with foretell.

    >>> names_shipped("gpt2"), names_shipped("gpt9")
    (True, False)
    """
    return _lookup(ident) is not None


def known_models() -> list[str]:
    """Return the IDs of the models whose configs are shipped with foretell.

    >>> "meta-llama/Llama-2-7b-hf" in known_models()
    True
    """
    return list(_table())


def transformers_config(source: HfConfig, *, trust: bool) -> Any:
    """Return the transformers config object of ``source``. Code that comes with a model runs only with ``trust``."""
    auto = require("transformers.models.auto.configuration_auto", extra="hf", purpose="Reading Hugging Face models")
    values = source.values
    model_type = values.get("model_type") or _type_of_architecture(values, auto)
    if isinstance(model_type, str) and model_type in auto.CONFIG_MAPPING:
        with foreign_values(source):
            return auto.CONFIG_MAPPING[model_type].from_dict(_without_commands({**values, "model_type": model_type}))
    if values.get("auto_map"):
        if not trust:
            raise UntrustedModelError(
                f"{source.name} (model_type {model_type!r}) needs the code that comes with it. If you trust it, add "
                "--trust"
            )
        return _trusted_config(source)
    if model_type is None:
        raise ModelError(_NO_CONFIG.format(source.name))
    hint = did_you_mean(str(model_type), auto.CONFIG_MAPPING.keys())
    raise ModelError(f"Unknown model_type {model_type!r} in {source.name}.{hint}")


@contextmanager
def foreign_values(source: HfConfig) -> Iterator[None]:
    """Within this context, what fails is said of the config: it is foreign data, and anything may be wrong with it."""
    try:
        yield
    except ForetellError:
        raise
    except Exception as error:
        raise ModelError(f"The config of {source.name} does not make a model: {one_line(error)}") from error


def _trusted_config(source: HfConfig) -> Any:
    auto = require("transformers.models.auto.configuration_auto", extra="hf")
    try:
        return auto.AutoConfig.from_pretrained(source.location, trust_remote_code=True)
    except Exception as error:  # foreign code
        raise ModelError(f"The code that comes with {source.name} failed: {one_line(error)}") from error


def _from_path(path: Path) -> HfConfig:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "no config.json in it" if path.is_dir() else "no such file; write hf:ID for a model of the hub"
        raise ModelError(f"Cannot read {path}: {what}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    values = _parse(file)
    if not any(
        values.get(key) for key in ("model_type", "architectures", "auto_map")
    ):  # before transformers is imported
        raise ModelError(_NO_CONFIG.format(name))
    return HfConfig(name, values, str(file.parent))


def _parse(file: Path) -> dict[str, Any]:
    """Read a config.json and check its sizes, before anything is built from it."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(f"{file} is larger than {MAX_CONFIG_BYTES // MIB} MiB: not a config.json")
        # some configs write an infinite limit, which is not JSON
        values = parse_json(file.read_bytes().removeprefix(codecs.BOM_UTF8), Budget(file.name), finite=False)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"Cannot read {file} as JSON: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} holds a JSON {type(values).__name__}, not an object: not a config.json")
    layers = 0
    for key, number in _numbers(values):
        least, limit = _limits(key)
        if not least <= number <= limit:
            raise ModelError(f"{file} has {key} = {number}; it must be from {least} to {limit}")
        layers += int(number) if limit == MAX_LAYERS else 0
    if layers > MAX_ALL_LAYERS:
        raise ModelError(f"{file} has {layers} layers in all; at most {MAX_ALL_LAYERS} are allowed")
    return values


def _limits(key: str) -> tuple[int, int]:
    """The smallest and the largest number that a key may have."""
    if _LAYER_KEYS.match(key):
        return 1, MAX_LAYERS
    if _EXPERT_KEYS.match(key):
        return (1 if _WIDTH_KEYS.match(key) else 0), MAX_EXPERTS
    if _WIDTH_KEYS.match(key):
        return 1, MAX_WIDTH
    return 0, MAX_LAYERS if key.endswith(("layers", "layer")) else MAX_COUNT


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The sizes and layer counts in a config, also in nested configs."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif any(keys.search(key) for keys in (_LAYER_KEYS, _WIDTH_KEYS, _EXPERT_KEYS, _COUNT_KEYS)):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    raise ModelError(f"The config has {key} = {item!r}; it must be an integer")
                if isinstance(item, int | float):
                    yield key, item  # type: ignore[misc]


def chosen_attention(source: HfConfig) -> tuple[str | None, str | None]:
    """The implementation of attention that a config names: one that is read as it is, and one that is not.

    ``eager`` writes scores and their softmax to memory, ``sdpa`` calls PyTorch's fused attention. Others need packages
    or kernels from the hub.
    """
    named = source.values.get("attn_implementation") or source.values.get("_attn_implementation")
    if named is None:
        return None, None
    return (named, None) if named in ATTENTION else (None, str(named)[:_MAX_NAME])


def _without_commands(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_commands(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if not _COMMANDS.match(key)
    }


def first_architecture(values: dict[str, Any]) -> str | None:
    """The first class that a config names; None if it names none.

    >>> first_architecture({"architectures": ["BertModel"]}), first_architecture({"architectures": 7})
    ('BertModel', None)
    """
    architectures = values.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return first if isinstance(first, str) else None


def _type_of_architecture(values: dict[str, Any], auto: Any) -> str | None:
    """The model_type that belongs to the class in ``architectures``: the longest one that its name starts with."""
    first = first_architecture(values)
    if first is None:
        return None
    prefixes = {name.removesuffix("Config"): kind for kind, name in auto.CONFIG_MAPPING_NAMES.items()}
    matches = [prefix for prefix in prefixes if first.startswith(prefix)]
    return prefixes[max(matches, key=len)] if matches else first


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))


def _lookup(ident: str) -> dict[str, Any] | None:
    """The config of a model in the shipped table. An entry lists only what differs from its ``base``."""
    table = _table()
    names = {name.lower(): name for name in table}
    names |= {alias.lower(): name for name, entry in table.items() for alias in entry["aliases"]}
    name = names.get(ident.lower())
    if name is None:
        return None
    chain = [table[name]]
    while "base" in chain[0]:
        chain.insert(0, table[chain[0]["base"]])
    values: dict[str, Any] = {}
    for entry in chain:
        values |= {key: value for key, value in entry.items() if key not in ("aliases", "base", "nulls")}
        values |= dict.fromkeys(entry.get("nulls", ()))
    return values


def _cached(ident: str) -> Path | None:
    hub = require("huggingface_hub", extra="hf", purpose="Reading Hugging Face models")
    try:
        path = hub.try_to_load_from_cache(ident, "config.json")
    except ValueError as error:
        raise ModelError(f"{ident!r} is not a Hugging Face ID: {one_line(error)}") from error
    return Path(path) if isinstance(path, str) else None


def _download(ident: str) -> Path:
    """Fetch a config.json from the hub; raise an error with advice if that fails."""
    hub = require("huggingface_hub", extra="hf")
    try:
        _probe(hub.constants)
        with quiet():
            return Path(hub.hf_hub_download(ident, "config.json", etag_timeout=5))
    except Exception as error:  # any failure of the network stack
        reason = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE else type(error).__name__
        hint = did_you_mean(ident, [*_table(), *(alias for entry in _table().values() for alias in entry["aliases"])])
        raise ModelError(
            f"Cannot fetch the config of {ident!r} ({reason}).{hint} Offline, give a folder or a config.json"
        ) from error


def _probe(constants: Any) -> None:
    """Fail at once if the hub cannot be reached: its own retries take half a minute."""
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or urllib.request.getproxies() or address.hostname is None:
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    socket.create_connection((address.hostname, port), timeout=5).close()


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context, transformers and the hub write no logs and no warnings."""
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub", "timm")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
