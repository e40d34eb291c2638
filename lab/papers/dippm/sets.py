"""Lab: DIPPM's sets: measured workloads with their graphs in one small file, the ten families of the paper, and splits.

The file is made where the measurements and their graphs are, and read where a GPU is: it needs no store there.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, Split, assign
from foretell.files import write_whole
from foretell.predictors.sample import TRUTHS, Sample
from foretell.training.judging.protocol import SHARE
from lab.judging.graph_set import pack, unpack
from lab.papers.graph_networks.arrays import GraphArrays

# The families of Table 2, by the beginning of a model's name in timm, torchvision or Hugging Face.
FAMILIES: Mapping[str, str] = {
    "efficientnet": r"(tf_|gc_)?efficientnet", "mnasnet": r"(se)?mnasnet", "mobilenet": r"(tf_)?mobilenet",
    "resnet": r"(wide_)?resnet\d", "vgg": r"vgg\d", "swin": r"swin(v2)?_", "vit": r"vit(_|$)",
    "densenet": r"densenet", "visformer": r"visformer", "poolformer": r"poolformer",
}  # fmt: skip
# those of the thesis' chapter 5 (TraPPM)
THESIS_FAMILIES: Mapping[str, str] = {**FAMILIES, "convnext": r"convnext"}
SUBSETS = ("families", "vision", "inference")
_VISION, _NAMED = ("timm", "torchvision"), ("timm", "torchvision", "hf")


@dataclass(frozen=True)
class Labelled:
    """A measured workload and its graph; what was not measured is NaN."""

    workload_id: str
    spec: str
    family: str
    mode: str
    graph: GraphArrays
    truth: Mapping[str, float]


def family_of(spec: str, families: Mapping[str, str] = FAMILIES) -> str | None:
    """The family of DIPPM's Table 2, or another table, that a model belongs to.

    >>> family_of("timm:tf_efficientnetv2_s"), family_of("timm:vit_base_patch16_224"), family_of("timm:resnetv2_50")
    ('efficientnet', 'vit', None)
    >>> family_of("timm:convnext_tiny"), family_of("timm:convnextv2_atto", THESIS_FAMILIES)
    (None, 'convnext')
    """
    zoo, _, rest = spec.partition(":")
    name = re.split(r"[.?]", rest)[0]
    if zoo not in _NAMED:
        return None
    return next((family for family, start in families.items() if re.match(start, name)), None)


def write_set(samples: Sequence[Sample], graphs: Mapping[str, GraphArrays], file: Path) -> None:
    """All captured samples and their graphs, as one file."""
    rows = [
        Labelled(s.workload_id, s.spec, s.family, s.setting.mode, graphs[s.workload_id], s.truth)
        for s in samples
        if s.captured
    ]
    write_labelled(rows, file)


def write_labelled(rows: Sequence[Labelled], file: Path) -> None:
    """Workloads with their graphs, as one file; a truth that is missing is NaN."""
    data = io.BytesIO()
    np.savez_compressed(
        data,
        allow_pickle=False,
        **pack({row.workload_id: row.graph for row in rows}),
        specs=np.array([row.spec for row in rows]),
        families=np.array([row.family for row in rows]),
        modes=np.array([row.mode for row in rows]),
        truths=np.array([[row.truth.get(name, np.nan) for name in TRUTHS] for row in rows], np.float64),
    )
    write_whole(file, data.getvalue())


def read_set(file: Path) -> list[Labelled]:
    """The workloads that `write_labelled` wrote."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    facts = zip(
        unpack(arrays).items(), *(arrays[name].tolist() for name in ("specs", "families", "modes", "truths")),
        strict=True,
    )  # fmt: skip
    return [
        Labelled(workload_id, spec, family, mode, graph, dict(zip(TRUTHS, truth, strict=True)))
        for (workload_id, graph), spec, family, mode, truth in facts
    ]


def subset(rows: Sequence[Labelled], name: str) -> list[Labelled]:
    """``families``: the ten of the paper; ``vision``: timm and torchvision; ``inference``: prefill and decode, too.

    ``training`` are all training steps. ``grid`` is all of a set that `lab.papers.dippm.grid_set` made.
    """
    if name == "grid":
        return list(rows)
    if name == "training":
        return [row for row in rows if row.mode == "training"]
    if name == "inference":
        return [row for row in rows if row.mode != "training"]
    plain = [row for row in rows if row.mode == "inference"]
    if name == "vision":
        return [row for row in plain if row.spec.partition(":")[0] in _VISION]
    return [row for row in plain if family_of(row.spec)]


def split_rows(rows: Sequence[Labelled], kind: str, seed: int) -> dict[str, list[Labelled]]:
    """The sides of a split: 70, 15 and 15 %, as in the paper; wild networks only train, as everywhere."""
    records = {
        "workload_id": [row.workload_id for row in rows], "spec": [row.spec for row in rows],
        "family": [row.family for row in rows],
    }  # fmt: skip
    parts: dict[str, list[Labelled]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for row, side in zip(rows, assign(Split(kind, SHARE, SHARE, seed), records), strict=True):
        parts[TRAIN if row.spec.startswith("wild:") else side].append(row)
    return parts
