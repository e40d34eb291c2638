import itertools

import pytest

from foretell.errors import DataError
from small.tiny_workloads import tiny_recipe

torch = pytest.importorskip("torch")

from lab.papers.graph_networks import loop as graph_loop
from lab.papers.graph_networks.loop import Loop, NoFiniteError, best_record, rate_at, stale_epochs


def run(scores, checkpoint=None, identity="a", patience=3, progress=lambda *_: None, seconds=None, save_every_s=0.0):
    """A loop whose weight counts its epochs and whose scores are given."""
    weight = torch.zeros(1, requires_grad=True)
    loop = Loop(tiny_recipe("dippm", patience=patience), len(scores), 1.0, 0, "cpu", identity, seconds, save_every_s)

    def train(epoch, optimizer):
        with torch.no_grad():
            weight.add_(1)
        return {"loss": float(epoch)}

    return loop.run({"w": weight}, train, lambda: {"score": scores[int(weight) - 1]}, progress, checkpoint)


def test_the_best_epoch_wins_and_stale_ones_stop_it():
    best, history = run([3.0, 1.0, 2.0, 2.0, 2.0, 0.0])
    assert best["w"].item() == 2
    assert len(history) == 5  # three stale epochs
    assert best_record(history)["score"] == 1.0


def test_a_killed_run_goes_on(tmp_path):
    scores, file = [3.0, 2.0, 1.0, 5.0], tmp_path / "run.pt"

    def kill(epoch, record):
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(scores, file, progress=kill)
    seen = []
    best, history = run(scores, file, progress=lambda epoch, record: seen.append(epoch))
    assert seen == [2, 3]
    assert best["w"].item() == 3
    assert [r["score"] for r in history] == scores
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_an_interrupted_run_is_saved_whenever_the_last_checkpoint_was(tmp_path):
    def interrupt(epoch, record):
        if epoch == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run([3.0, 2.0, 1.0], tmp_path / "run.pt", progress=interrupt, save_every_s=1e9)
    seen = []
    run([3.0, 2.0, 1.0], tmp_path / "run.pt", progress=lambda epoch, record: seen.append(epoch))
    assert seen == [2]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run([1.0], tmp_path / "run.pt")
    with pytest.raises(DataError, match="another run"):
        run([1.0], tmp_path / "run.pt", identity="b")
    (tmp_path / "run.pt").write_bytes(b"no checkpoint")
    with pytest.raises(DataError, match="delete it"):
        run([1.0], tmp_path / "run.pt")


def test_epochs_without_a_finite_score_are_an_error(tmp_path):
    with pytest.raises(DataError, match="finite"):
        run([float("nan"), float("inf")])
    seen = []
    with pytest.raises(NoFiniteError, match="5 epochs"):
        run([float("nan")] * 40, patience=40, progress=lambda epoch, record: seen.append(epoch))
    assert len(seen) == 4, "a fit without hope ends early"
    with pytest.raises(NoFiniteError):
        run([float("nan")] * 40, tmp_path / "run.pt", patience=40)
    assert not (tmp_path / "run.pt").exists(), "a fit in another way must not go on from it"
    assert len(run([float("nan"), 2.0, *[float("nan")] * 8], patience=40)[1]) == 10


def test_the_caller_s_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run([2.0, 1.0])
    assert torch.equal(torch.rand(3), expected)


def test_a_plateau_halves_the_rate_and_halves_it_again():
    flat = [{"score": 1.0}] * 40
    assert rate_at("plateau", 1.0, flat[:11], 100) == 1.0
    assert rate_at("plateau", 1.0, flat[:12], 100) == 0.5
    assert rate_at("plateau", 1.0, flat[:23], 100) == 0.25
    assert rate_at("constant", 1.0, flat, 100) == 1.0
    assert rate_at("cosine", 1.0, [], 100) == 1.0


def test_nan_is_never_best():
    assert stale_epochs([{"score": 2.0}, {"score": float("nan")}]) == 1
    assert stale_epochs([]) == 0


def ticking(monkeypatch, step_s):
    """A clock that moves on whenever it is read: twice an epoch."""
    ticks = itertools.count()
    monkeypatch.setattr(graph_loop.time, "monotonic", lambda: next(ticks) * step_s)


def test_no_epoch_begins_that_would_end_too_late(monkeypatch):
    ticking(monkeypatch, 10.0)
    falling = [float(10 - epoch) for epoch in range(10)]
    best, history = run(falling, seconds=35.0)
    assert [record["seconds"] for record in history] == [10.0, 20.0, 30.0]
    assert best["w"].item() == 3
    assert len(run(falling, seconds=1.0)[1]) == 1, "one epoch is always done"
    assert len(run(falling, seconds=1000.0)[1]) == 10
    assert "seconds" not in run(falling)[1][0]


def test_the_seconds_of_a_killed_run_count(monkeypatch, tmp_path):
    ticking(monkeypatch, 10.0)

    def kill(epoch, record):
        if epoch == 1:
            raise KeyboardInterrupt

    falling = [float(10 - epoch) for epoch in range(10)]
    with pytest.raises(KeyboardInterrupt):
        run(falling, tmp_path / "run.pt", progress=kill, seconds=35.0)
    assert len(run(falling, tmp_path / "run.pt", seconds=35.0)[1]) == 3


def test_a_cosine_ends_with_the_seconds():
    def rate(spent_s, epochs_done=1):
        return rate_at("cosine", 1.0, [{"seconds": spent_s}] * epochs_done, 100, seconds=60.0)

    assert rate(30.0) == pytest.approx(0.5)
    assert rate(60.0) == rate(90.0) == pytest.approx(0.0)
    assert rate(1.0, epochs_done=50) == pytest.approx(0.5), "the epochs may be over first"
    assert rate_at("constant", 1.0, [{"seconds": 59.0}], 100, seconds=60.0) == 1.0
