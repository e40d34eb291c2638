"""A language model and graphs that take milliseconds."""

import json
from dataclasses import replace

import numpy as np
import torch
from tokenizers import pre_tokenizers

from foretell.devices import find_device
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from lab.papers.graph_llm import language_model as lm
from lab.papers.graph_llm.sets import Row
from lab.papers.graph_llm.sizes import Size
from lab.papers.graph_llm.stages import Workplace
from lab.papers.graph_networks.arrays import extract_graph_arrays
from lab.papers.trappm.unlabelled import Variant

CONFIG = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
}  # fmt: skip
SIZE = Size(
    width=16, layers=2, graphs=12, encoder_steps=30, encoder_batch=4, pairs=8, pair_layers=1, text_steps=2,
    text_batch=2, fit_steps=10, batch=4, samples=(4,), few_steps=8, few_batch=4, ablation_steps=2,
    json_nodes=5, judged=None, aside=4, regressor_steps=60, tuning_steps=200,
    platforms=2, bf16=False,
)  # fmt: skip


def graph(batch=1.0, width=1.0):
    whole = extract_graph_arrays(Workload(tiny_graph(), Target(find_device("h200"))))
    return Variant(batch, width).of(whole)


def tokens():
    return [*sorted(pre_tokenizers.ByteLevel.alphabet()), lm.END]


def language():
    torch.manual_seed(0)
    names = tokens()
    embeddings = 0.3 * torch.randn(len(names), CONFIG["hidden_size"])
    return lm.LanguageModel(lm.new_llama(CONFIG), embeddings, lm._tokenizer(names, []), tuple(range(len(names))))


def write_model(folder):
    """The files that `convert` would write, with matrices that are not quantised."""
    model = language()
    parts = {there: here for here, there in lm._NAMES.items()}
    stored = {"output_norm.weight": model.body.norm.weight.numpy()}
    for name, weight in model.body.state_dict().items():
        if name.startswith("layers."):
            _, layer, *part = name.removesuffix(".weight").split(".")
            stored[f"blk.{layer}.{parts['.'.join(part)]}.weight"] = weight.numpy()
    folder.mkdir(parents=True)
    lm._write_npz(folder / "part-0.npz", stored)
    lm._write_npz(folder / "embeddings.npz", {"embeddings": model.embeddings.numpy()})
    (folder / "tokenizer.json").write_text(model.tokenizer.to_str())
    (folder / "model.json").write_text(json.dumps({"config": CONFIG, "kept": list(model.kept)}))


def workplace(folder, **changes):
    return Workplace(folder, replace(SIZE, **changes), "cpu", float("inf"), lambda _: None)


def rows(count=12, platform="h200 fp32"):
    """Rows whose latency grows with the batch size."""
    batches = 2.0 ** (np.arange(count) % 6)
    return [Row(platform, f"group-{number}", graph(batch), 0.1 * batch) for number, batch in enumerate(batches)]
