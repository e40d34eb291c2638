"""Activation checkpointing: an export keeps nothing of it, so the answer says so; in inference it changes nothing."""

from pathlib import Path

import pytest

from foretell.workflows.workload import load_graph

CODE = """import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.part, self.reentrant = torch.nn.Linear(6, 6), reentrant
    def forward(self, x):
        return x + checkpoint(self.part, x, use_reentrant=self.reentrant)
def old():
    return Net(True)
def new():
    return Net(False)
def none():
    return torch.nn.Linear(6, 6)
"""


@pytest.mark.parametrize(
    ("function", "mode", "is_said"),
    [("old", "training", True), ("new", "training", True), ("new", "inference", False), ("none", "training", False)],
)
def test_a_checkpointed_step_says_what_is_not_counted(tmp_path: Path, function: str, mode: str, is_said: bool) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(CODE)
    graph = load_graph(f"{tmp_path / 'net.py'}:{function}", input_shape="6", batch_size=3, mode=mode, trust=True)
    assert any("torch.utils.checkpoint is not counted" in warning for warning in graph.warnings) == is_said
