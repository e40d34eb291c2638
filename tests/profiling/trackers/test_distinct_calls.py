import threading

import pytest

from foretell.profiling.trackers.distinct_calls import DistinctCalls, expand

torch = pytest.importorskip("torch")


def _ran(run, **options) -> DistinctCalls:
    calls = DistinctCalls(**options)
    with torch.inference_mode(), calls.running():
        run()
    return calls


def test_views_are_no_launches_and_a_recurrent_call_is_many():
    matrix = torch.ones(4, 6)
    assert _ran(lambda: matrix.t().relu().add(1)).launches == 2
    assert _ran(lambda: matrix.view(24)).launches == 0
    lstm = torch.nn.LSTM(4, 4).eval()
    assert _ran(lambda: lstm(torch.zeros(50, 2, 4))).launches >= 50


def test_a_call_over_a_list_of_tensors_is_one_launch_or_few():
    tensors = [torch.ones(2) for _ in range(90)]
    assert _ran(lambda: torch._foreach_add(tensors, 1.0)).launches == 3
    assert _ran(lambda: torch._foreach_pow(0.9, tensors)).launches == 3  # the list comes second


def test_a_call_that_repeats_another_is_not_made_and_its_kernels_are_known():
    block = [torch.nn.Linear(8, 8), torch.nn.ReLU()]
    model = torch.nn.Sequential(*block, *block, *block, torch.nn.Linear(8, 4))
    made = []
    calls = DistinctCalls()
    with torch.inference_mode(), calls.running(made.append):
        output = model(torch.ones(2, 8))
    assert output.shape == (2, 4)
    distinct = sorted(set(calls.sequence))
    assert made == distinct
    assert len(distinct) == len(calls.sequence) - 4  # two of three blocks are left out, their views never
    assert len(expand(calls.sequence, {number: ["kernel"] for number in distinct})) == len(calls.sequence)


def test_what_differs_in_shape_layout_or_precision_is_made():
    matrix = torch.ones(4, 4)

    def run():
        matrix.relu()
        matrix[:2].relu()
        matrix[:, ::2].relu()
        matrix.double().relu()
        matrix.relu()

    assert len(_ran(run).sequence) - len(set(_ran(run).sequence)) == 1


def test_indices_are_always_computed_and_what_is_changed_in_place_is_handed_on():
    matrix = torch.ones(3)

    def run():
        matrix.argmax()
        matrix.argmax()
        assert matrix.add_(1) is matrix
        assert matrix.add_(1) is matrix

    assert _ran(run).sequence == [0, 1, 2, 2]
    assert matrix.tolist() == [2, 2, 2]


def test_without_skipping_every_call_is_made():
    matrix = torch.ones(3)
    assert _ran(lambda: (matrix.relu(), matrix.relu()), skip=False).sequence == [0, 1]


class _Named(DistinctCalls):
    """Remembers what was called, made or not."""

    def __init__(self, **options):
        super().__init__(**options)
        self.names = []

    def _call(self, func, *rest):
        self.names.append(str(func))
        return super()._call(func, *rest)


def test_a_training_step_without_repeated_calls_makes_the_same_calls_as_a_whole_one():
    block = [torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1)]
    model = torch.nn.Sequential(*block, torch.nn.Linear(8, 8), *block[1:], torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        hidden = model(torch.ones(2, 8))
        (hidden + hidden.sigmoid()).sum().backward()
        optimizer.step()

    step()
    whole, short = _Named(skip=False), _Named()
    for calls in (whole, short):
        with calls.running():
            step()
    assert whole.names == short.names
    assert len(set(whole.sequence)) == len(whole.sequence) == len(short.sequence)
    assert len(set(short.sequence)) < len(short.sequence)
    # what was left out in the backward pass counts, too
    backward = short.names.index("aten.ones_like.default")
    left_out = [number for number, made in enumerate(short.sequence) if made != number]
    assert [number for number in left_out if number > backward]
    assert [number for number in left_out if number < backward]


def test_a_backward_pass_runs_on_the_thread_of_the_ranges():
    threads, model = set(), torch.nn.Linear(3, 1)
    with DistinctCalls().running(lambda _: threads.add(threading.get_ident())):
        assert not torch.autograd.is_multithreading_enabled()
        model(torch.ones(2, 3)).sum().backward()
    assert threads == {threading.get_ident()}
    assert torch.autograd.is_multithreading_enabled()
    assert model.weight.grad is not None
