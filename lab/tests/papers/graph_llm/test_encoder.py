import pytest
import torch

from lab.papers.graph_llm.encoder import GinEncoder, MaskedAutoencoder, stack
from lab.tests.papers.graph_llm import tiny


def test_a_graph_has_the_same_embedding_alone_and_among_others():
    torch.manual_seed(0)
    encoder = GinEncoder(16, 2).eval()
    graphs = [tiny.graph(1), tiny.graph(8, 2.0), tiny.graph(2)]
    both = encoder.pooled(stack(graphs, "cpu"))
    for number, graph in enumerate(graphs):
        assert torch.allclose(encoder.pooled(stack([graph], "cpu"))[0], both[number], atol=1e-5)
    assert not torch.allclose(both[0], both[1])


def test_messages_go_both_ways():
    encoder = GinEncoder(16, 1).eval()
    graphs = stack([tiny.graph()], "cpu")
    before = encoder(graphs.nodes, graphs.edges)
    changed = graphs.nodes.clone()
    changed[2] += 1
    moved = (encoder(changed, graphs.edges) - before).abs().sum(dim=1) > 1e-6
    assert moved.tolist() == [False, True, True, True, False]


def test_sizes_know_what_a_mean_does_not():
    small, large = (stack([tiny.graph(batch)], "cpu").sizes for batch in (1, 64))
    assert (large >= small).all()
    assert (large > small).any()


def test_masked_nodes_are_learned_from_their_neighbours():
    torch.manual_seed(0)
    network = MaskedAutoencoder(GinEncoder(32, 2))
    graphs = stack([tiny.graph(batch, width) for batch in (1, 4, 16) for width in (1.0, 2.0)], "cpu")
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    losses = []
    for step in range(80):
        loss = network(graphs, torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_the_decoder_sees_no_masked_node():
    torch.manual_seed(0)
    network = MaskedAutoencoder(GinEncoder(16, 2)).eval()
    with torch.no_grad():
        network.between.weight.fill_(0)
    graphs = stack([tiny.graph()], "cpu")
    first, second = (float(network(graphs, torch.Generator().manual_seed(seed)).detach()) for seed in (0, 0))
    assert first == pytest.approx(second)
