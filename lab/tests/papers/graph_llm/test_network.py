import pytest
import torch

from lab.papers.graph_llm.encoder import GinEncoder, stack
from lab.papers.graph_llm.language_model import halve
from lab.papers.graph_llm.network import Described, GraphLanguageNetwork, Shape, packing
from lab.tests.papers.graph_llm import tiny


def made(**shape):
    language = tiny.language()
    return GraphLanguageNetwork(language, GinEncoder(16, 2), Shape(**shape)).eval(), language


def plain_loss(network, inputs, answer):
    """Everything as one sequence, without a cache."""
    told = torch.cat([inputs, network.embeddings[torch.tensor(answer[:-1])]])[None]
    hidden = network.body(inputs_embeds=told, use_cache=False).last_hidden_state[0, -len(answer) :]
    return torch.nn.functional.cross_entropy(hidden @ network.embeddings.T, torch.tensor(answer))


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_question_that_is_read_once_gives_the_loss_of_whole_sequences(tokens):
    network, language = made(tokens=tokens)
    graphs = stack([tiny.graph(1), tiny.graph(4)], "cpu")
    question, answers = language.tokens("on x:"), [language.tokens("4123"), language.tokens("3271")]
    projected = network.project(network.embed(graphs))
    assert projected.shape == (2, tokens, 32)
    wanted = [
        plain_loss(network, torch.cat([network.embeddings[torch.tensor(question)], projected[row]]), answers[row])
        for row in (0, 1)
    ]
    found = network.loss([question] * 2, Described(graphs), answers)
    assert float(found.detach()) == pytest.approx(float(sum(wanted).detach()) / 2, rel=1e-4)


def test_descriptions_of_other_lengths_do_not_change_each_other():
    network, language = made()
    question, answers = language.tokens("on x:"), [language.tokens("4123"), language.tokens("3271")]
    described = [language.tokens("a long description"), language.tokens("short")]
    both = network.loss([question] * 2, Described(tokens=described), answers)
    alone = [network.loss([question], Described(tokens=[one]), [answer]) for one, answer in zip(described, answers)]
    assert float(both.detach()) == pytest.approx(float(sum(alone).detach()) / 2, rel=1e-4)
    told = network.answer([question] * 2, Described(tokens=described), 3)
    assert told == [network.answer([question], Described(tokens=[one]), 3)[0] for one in described]


def test_rows_of_a_batch_are_asked_different_questions_and_do_not_change_each_other():
    network, language = made()
    asked = [language.tokens(text) for text in ("on x:", "a longer question of:", "on x:")]
    answers = [language.tokens(text) for text in ("4123", "3271", "3999")]
    graphs = [tiny.graph(batch) for batch in (1, 4, 16)]
    both = network.loss(asked, Described(stack(graphs, "cpu")), answers)
    alone = [
        float(network.loss([question], Described(stack([graph], "cpu")), [answer]).detach())
        for question, graph, answer in zip(asked, graphs, answers, strict=True)
    ]
    assert float(both.detach()) == pytest.approx(sum(alone) / 3, rel=1e-4)
    assert alone[0] != pytest.approx(alone[1], rel=1e-3)
    told = network.answer(asked, Described(stack(graphs, "cpu")), 3)
    assert told == [
        network.answer([question], Described(stack([graph], "cpu")), 3)[0] for question, graph in zip(asked, graphs)
    ]


def test_one_sequence_of_questions_and_rows_has_the_loss_and_gradients_of_keys_and_values(monkeypatch):
    network, language = made(tokens=2)
    asked = [language.tokens(text) for text in ("on x:", "a longer question of:", "on x:")]
    answers = [language.tokens(text) for text in ("4123", "32", "3999")]
    described = (
        Described(stack([tiny.graph(batch) for batch in (1, 4, 16)], "cpu")),
        Described(tokens=[language.tokens(text) for text in ("a long description", "short", "other")]),
    )
    for some in described:
        found = []
        for longest in (0, 10_000):
            monkeypatch.setattr("lab.papers.graph_llm.network._PACKED", longest)
            network.zero_grad()
            loss = network.loss(asked, some, answers)
            loss.backward()
            found.append((float(loss.detach()), network.body.layers[0].self_attn.v_proj.up.grad.clone()))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        assert torch.allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)


def test_a_row_sees_its_question_and_itself_alone():
    allowed, places = packing(torch.tensor([[1, 1], [0, 1]]), torch.tensor([[1, 1], [0, 1]]), torch.tensor([1, 0]))
    seen = [{place for place in range(8) if row[place]} for row in allowed.tolist()]
    assert seen == [{0}, {0, 1}, {2}, {3}, {3, 4}, {3, 4, 5}, {6, 0, 1}, {0, 1, 7}]
    assert places.tolist() == [0, 1, 0, 0, 1, 2, 1, 2]


def test_what_was_encoded_once_is_read_like_the_graph():
    network, language = made()
    graphs, asked = stack([tiny.graph(1), tiny.graph(4)], "cpu"), [language.tokens("on x:")] * 2
    answers = [language.tokens("4123"), language.tokens("3271")]
    embedded = Described(embedded=network.embed(graphs).detach())
    assert torch.equal(network.loss(asked, embedded, answers), network.loss(asked, Described(graphs), answers))


def test_a_gpu_reads_whole_sequences_and_finds_the_same_loss_and_gradients():
    network, language = made()
    asked, answers = (
        [language.tokens(text) for text in ("on x:", "of:")],
        [language.tokens("4123"), language.tokens("32")],
    )
    described = (
        Described(stack([tiny.graph(1), tiny.graph(4)], "cpu")),
        Described(tokens=[language.tokens("a long description"), language.tokens("short")]),
    )
    for some in described:
        found = []
        for reads_whole in (False, True):
            network.reads_whole = reads_whole
            network.zero_grad()
            loss = network.loss(asked, some, answers)
            loss.backward()
            found.append((float(loss.detach()), network.body.layers[0].self_attn.v_proj.up.grad.clone()))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        assert torch.allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)


def test_an_answer_is_what_the_loss_finds_likeliest():
    network, language = made()
    graphs, question = stack([tiny.graph(1)], "cpu"), language.tokens("on x:")
    (told,) = network.answer([question], Described(graphs), 2)
    losses = [float(network.loss([question], Described(graphs), [[first]]).detach()) for first in range(100)]
    if told[0] < 100:
        assert losses[told[0]] == min(losses)
    assert float(network.loss([question], Described(graphs), [told[:1]]).detach()) <= min(losses)


def test_gradients_reach_all_parts_but_the_frozen_ones():
    network, language = made()
    network.train()
    graphs = stack([tiny.graph(1), tiny.graph(4)], "cpu")
    network.loss([language.tokens("q")] * 2, Described(graphs), [language.tokens("12")] * 2).backward()
    assert network.encoder.layers[0].mlp[0].weight.grad.abs().sum() > 0
    assert network.projector[0].weight.grad.abs().sum() > 0
    assert network.body.layers[0].self_attn.q_proj.up.grad.abs().sum() > 0
    assert network.body.layers[0].self_attn.q_proj.base.weight.grad is None


@pytest.mark.parametrize("reads_whole", [True, False])
def test_a_body_in_16_bits_learns_in_32(reads_whole):
    network, language = made()
    whole = float(network.loss([language.tokens("q")], Described(stack([tiny.graph(4)], "cpu")), [[3, 4]]).detach())
    network.reads_whole = reads_whole
    halve(network.body)
    for weight in network.body.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    loss = network.loss([language.tokens("q")], Described(stack([tiny.graph(4)], "cpu")), [[3, 4]])
    loss.backward()
    assert float(loss.detach()) == pytest.approx(whole, rel=0.02)
    assert network.body.layers[1].self_attn.q_proj.up.grad.dtype == torch.float32
    assert network.encoder.layers[0].mlp[0].weight.grad.abs().sum() > 0


def test_answers_of_unlike_length_are_padded_without_a_loss():
    network, language = made()
    graphs = stack([tiny.graph(1), tiny.graph(4)], "cpu")
    question, answers = language.tokens("q"), [language.tokens("12"), language.tokens("98765")]
    both = float(network.loss([question] * 2, Described(graphs), answers).detach())
    alone = [
        float(network.loss([question], Described(stack([tiny.graph(batch)], "cpu")), [answer]).detach())
        for batch, answer in zip((1, 4), answers)
    ]
    assert both == pytest.approx((2 * alone[0] + 5 * alone[1]) / 7, rel=1e-4)


def test_what_was_learned_can_be_taken_back_and_has_no_frozen_weight():
    network, _ = made()
    learned = {name: value.clone() for name, value in network.learned().items()}
    assert not any(".base." in name or name == "embeddings" for name in learned)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.requires_grad:
                weight.add_(1)
    network.restore(learned)
    assert all(torch.equal(value, learned[name]) for name, value in network.learned().items())
    with pytest.raises(ValueError, match="another"):
        network.restore({"nonsense": torch.zeros(1)})
