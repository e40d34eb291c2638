"""A store of tiny networks whose convolution and activation a compiler fused."""

from pathlib import Path

from foretell.graph.ir.serde import to_document
from foretell.predictors.fusion.edges import edges_of
from foretell.testing import tiny_graph
from small.small_store import write_table


def write_fusion(folder: Path, networks: int = 20) -> Path:
    """Half of the networks under ONNX Runtime, half under Inductor, which fuses nothing."""
    graphs, labelled, edges = [], [], []
    for number in range(networks):
        graph = tiny_graph(channels=8 * (number + 1))
        facts = {"campaign_id": "c", "spec": f"timm:net{number}", "graph_hash": graph.hash}
        graphs.append({**facts, "input_shape": "3x16x16", "mode": "inference", "document": to_document(graph)})
        backend = ("onnxruntime", "inductor")[number % 2]
        own = {**facts, "fusion_id": f"f{number}", "backend": backend, "family": f"family{number % 3}"}
        labelled.append({**own, "status": "ok"})
        for source, target in edges_of(graph):
            edges.append({**own, "source": source, "target": target, "fused": target <= 1 and number % 2 == 0})
    write_table(folder / "one", "graphs", graphs)
    write_table(folder / "one", "fusion_graphs", labelled)
    write_table(folder / "one", "fusion_edges", edges)
    return folder
