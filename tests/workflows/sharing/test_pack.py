"""From two files to a schedule."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError, UnknownNameError
from foretell.scheduling import POLICIES
from foretell.testing import tiny_onnx

CLUSTER = '[[gpu]]\ndevice = "h200"\ncount = 2\nshare = "mps"\n'
SMALL = '[[job]]\nname = "small"\nalone_ms = 10\nsteps = 1000\nsm_share = 0.4\nmemory_mib = 1000\n'
LARGE = '[[job]]\nname = "large"\nalone_ms = 10\nsteps = 1000\nmemory_mib = 100000\n'


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(jobs: str, cluster: str = CLUSTER, **options) -> foretell.Packing:
        Path("jobs.toml").write_text(jobs)
        Path("cluster.toml").write_text(cluster)
        return foretell.pack("jobs.toml", cluster="cluster.toml", **options)

    return run


def test_jobs_of_numbers(pack) -> None:
    packing = pack(SMALL + "count = 4\n")
    assert packing.totals.makespan_s == pytest.approx(10.0)  # 0.4 + 0.4 of the SMs: two on each GPU, none slowed down
    assert [row["gpu"] for row in packing.rows()] == [0, 0, 1, 1]
    assert pack(SMALL + "count = 4\n", policy="exclusive").totals.makespan_s == pytest.approx(20.0)


def test_the_record_can_be_read_and_written(pack) -> None:
    packing = pack(SMALL + "count = 3\nmax_slowdown = 1.5\n" + LARGE)
    text = repr(packing)
    assert packing.heading() in text
    assert 3 <= len(text.splitlines()) <= 30
    document = json.loads(json.dumps(packing.to_dict(), allow_nan=False))
    assert document["jobs"] == len(document["schedule"]) == 4
    assert document["limits"] == {"jobs": 3, "broken": 0, "share": 0.0}
    assert {row["job"]: row.get("keeps_limit") for row in document["schedule"]} == {
        "small-1": True, "small-2": True, "small-3": True, "large": None,
    }  # fmt: skip
    assert all("slice" not in row for row in document["schedule"])
    assert packing._repr_html_().count("<tr>") == len(list(packing.lines()))
    pandas = pytest.importorskip("pandas")
    frame = packing.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 4


def test_a_model_is_predicted_for_every_kind_of_place(pack, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(tiny_onnx().SerializeToString())
    job = '[[job]]\nname = "tiny"\nmodel = "tiny.onnx"\nbatch_size = 4\ndtype = "fp16"\nsteps = 100000\ncount = 3\n'
    packing = pack(job, '[[gpu]]\ndevice = "h200"\n[[gpu]]\ndevice = "h200"\nmig = ["3g.71gb", "1g.18gb"]\n')
    demands = packing.runs[0].job.profile.demands
    alone_ms = foretell.predict("tiny.onnx", batch_size=4, dtype="fp16").latency_ms
    assert demands["h200"].alone_ms == pytest.approx(alone_ms.value)
    assert demands["h200 mig:1g.18gb"].slice_slowdown >= 1
    assert 0.25 <= demands["h200"].sm_share <= 1
    assert demands["h200"].memory_mib > 100
    assert {run.place for run in packing.runs} == {0, 1, 2}
    assert any("extrapolated" in warning for warning in packing.warnings)


def test_numbers_on_a_slice_follow_what_the_slice_lacks(pack) -> None:
    packing = pack(LARGE.replace("100000", "5000"), '[[gpu]]\ndevice = "h200"\nmig = ["1g.18gb"]\n')
    demand = packing.runs[0].job.profile.demands["h200 mig:1g.18gb"]
    assert demand.slice_slowdown == pytest.approx(132 / 16)  # all SMs before, 16 of 132 here
    assert packing.runs[0].slowdown == pytest.approx(132 / 16)


def test_seconds_are_those_alone_on_the_fastest_place(pack) -> None:
    packing = pack(SMALL.replace("steps = 1000", "seconds = 42"))
    assert packing.totals.makespan_s == pytest.approx(42.0)


def test_a_job_comes_after_others(pack) -> None:
    packing = pack(SMALL + "count = 3\n" + LARGE + 'after = ["small"]\n')
    ends = {run.job.profile.name: run for run in packing.runs}
    assert ends["large"].start_s == pytest.approx(max(r.end_s for r in packing.runs if r.job.profile.name == "small"))
    assert ends["large"].waiting_s == 0


def test_measured_slowdowns_are_true_and_the_oracle_knows_them(pack) -> None:
    jobs = SMALL + "max_slowdown = 1.5\n" + SMALL.replace('"small"', '"other"') + "max_slowdown = 1.5\n"
    jobs += '[[together]]\njobs = ["small", "other"]\nslowdowns = [3, 3]\n'
    cluster = CLUSTER.replace("count = 2", "count = 1")
    assert pack(jobs, cluster).totals.broken == 2
    assert pack(jobs, cluster, policy="oracle").totals.broken == 0


def test_poisson_arrivals(pack) -> None:
    arrivals = '[arrivals]\ntrace = "poisson"\njobs = 200\nload = 2\nmean_s = 30\nseed = 3\n'
    kinds = SMALL.replace("steps = 1000\n", "") + LARGE.replace("steps = 1000\n", "")
    one, two = (pack(arrivals + kinds, policy=policy) for policy in ("slowdown", "slowdown"))
    assert one.totals.jobs == 200
    assert one.to_dict() == two.to_dict()
    assert {run.job.profile.name for run in one.runs} == {"small", "large"}


def test_only_the_first_jobs_are_kept(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.workflows.sharing.pack.MOST_RUNS", 5)
    packing = pack(SMALL + "count = 9\n")
    assert (packing.totals.jobs, len(packing.runs)) == (9, 5)
    assert "the first 5 of 9" in packing.warnings[-1]


def test_a_job_that_fits_nowhere_says_how_much_it_needs(pack) -> None:
    with pytest.raises(InputError, match=r"'large' fits nowhere: it needs 200,000 MiB, and the largest place has 14"):
        pack(LARGE.replace("100000", "200000"))


def test_the_longest_job_first_ends_sooner(pack) -> None:
    jobs = SMALL + "count = 4\n" + SMALL.replace('"small"', '"long"').replace("steps = 1000", "steps = 4000")
    by_arrival, by_length = (pack(jobs, policy="exclusive", order=order) for order in ("arrival", "longest"))
    assert by_length.totals.makespan_s < by_arrival.totals.makespan_s
    with pytest.raises(InputError, match=r"Unknown order 'longst'\. Did you mean 'longest'"):
        pack(jobs, order="longst")


def test_a_bad_policy_and_a_bad_option_come_before_any_model_is_read(pack) -> None:
    absent = '[[job]]\nname = "a"\nmodel = "absent.onnx"\nsteps = 1\n'
    with pytest.raises(UnknownNameError, match="Did you mean 'slots'"):
        pack(absent, policy="slot")
    with pytest.raises(InputError, match="Job 'a': Unknown dtype 'fp99'"):
        pack(absent + 'dtype = "fp99"\n')
    with pytest.raises(InputError, match="Job 'a': dtype is 16"):
        pack(absent + "dtype = 16\n")
    with pytest.raises(foretell.ForetellError, match=r"absent\.onnx"):
        pack(absent)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tiny.onnx").write_bytes(tiny_onnx().SerializeToString())
    return '[[job]]\nname = "tiny"\nmodel = "tiny.onnx"\nbatch_size = 64\ndtype = "fp16"\nsteps = 1000000\n'


ONE_GPU = CLUSTER.replace("count = 2", "count = 1")


def test_models_that_share_are_slowed_down_as_share_says(pack, model: str) -> None:
    packing = pack(model + "count = 2\n", ONE_GPU)
    (first, second) = foretell.share(["tiny.onnx"] * 2, batch_sizes=64, dtypes="fp16").jobs
    assert [run.slowdown for run in packing.runs] == pytest.approx(
        [first.slowdown.value, second.slowdown.value], rel=0.02
    )
    assert not any("rule of thumb" in warning for warning in packing.warnings)


def test_the_rule_is_named_with_those_who_need_it(pack, model: str) -> None:
    packing = pack(model + SMALL, ONE_GPU)
    (warning,) = [warning for warning in packing.warnings if "rule of thumb" in warning]
    assert "under MPS of small follow" in warning
    assert not any("rule of thumb" in warning for warning in pack(model + SMALL, ONE_GPU, policy="exclusive").warnings)


def test_turns_are_as_measured(pack, model: str) -> None:
    packing = pack(model + "count = 2\n", ONE_GPU.replace("mps", "time-slicing"), policy="utilisation")
    assert packing.totals.mean_slowdown == 1  # a replayed step leaves no gap
    both = pack(model + "count = 2\nutilisation = 0.5\n", ONE_GPU.replace("mps", "time-slicing"), policy="utilisation")
    assert both.totals.mean_slowdown == pytest.approx(1.5 * (1 + 0.105 / 2))


def test_a_percentage_limits_the_sms_where_there_is_mps(pack, model: str) -> None:
    packing = pack(model + "percentage = 25\ncount = 2\n", ONE_GPU + '[[gpu]]\ndevice = "h200"\n')
    demands = packing.runs[0].job.profile.demands
    limited = foretell.predict("tiny.onnx", batch_size=64, dtype="fp16", slice="mps:25").latency_ms
    assert demands["h200, mps"].alone_ms == pytest.approx(limited.value)
    assert demands["h200, mps"].slice_slowdown == pytest.approx(limited.value / demands["h200"].alone_ms)
    assert demands["h200"].slice_slowdown == 1
    assert demands["h200, mps"].sm_share <= 0.25
    numbers = pack(SMALL.replace("0.4", "0.8") + "percentage = 40\n", ONE_GPU)
    assert numbers.runs[0].slowdown == pytest.approx(2.0)  # 80 % of the SMs before, 40 % now
    unshared = pack(SMALL + "percentage = 40\n", '[[gpu]]\ndevice = "h200"\n')
    assert unshared.runs[0].slowdown == 1
    assert "a percentage does nothing: small." in unshared.warnings[0]
    with pytest.raises(InputError, match="not on slices with MPS"):
        pack(model + "percentage = 25\n", '[[gpu]]\ndevice = "h200"\nmig = ["1g.18gb"]\nshare = "mps"\n')


def test_thousands_of_jobs_ask_the_predictor_once_for_each_group(pack, model: str, monkeypatch) -> None:
    from foretell.predictors.sharing.model import SharingModel

    calls: list[int] = []
    real = SharingModel.mps_logs
    monkeypatch.setattr(SharingModel, "mps_logs", lambda self, groups: calls.append(len(groups)) or real(self, groups))
    kinds = [
        model.replace('"tiny"', f'"tiny-{size}"').replace("batch_size = 64", f"batch_size = {size}") for size in (1, 64)
    ]
    jobs = "".join(kind.replace("steps = 1000000\n", "") for kind in kinds)
    packing = pack('[arrivals]\ntrace = "poisson"\njobs = 2000\nload = 3\n' + jobs)
    assert packing.totals.jobs == 2000
    assert packing.totals.mean_slowdown > 1
    assert calls == [3]


def test_jobs_that_do_not_fit_together_do_not_share(pack, model: str) -> None:
    heavy = model + "memory_mib = 80000\ncount = 3\n"
    for policy in POLICIES:
        packing = pack(heavy, ONE_GPU.replace('"mps"', '"mps"\nslots = 2'), policy=policy)
        spans = sorted((run.start_s, run.end_s) for run in packing.runs)
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans)), policy


def test_a_job_without_memory_is_named_where_it_may_share(pack) -> None:
    weightless = SMALL.replace("memory_mib = 1000\n", "")
    assert any("took no memory: small." in warning for warning in pack(weightless).warnings)
    assert not pack(weightless, '[[gpu]]\ndevice = "h200"\n').warnings


def test_predicted_occupancy_decides_where_none_is_given(pack, model: str) -> None:
    predicted = foretell.predict("tiny.onnx", batch_size=64, dtype="fp16").occupancy.value / 100
    packing = pack(model + "count = 2\n", ONE_GPU, policy="occupancy")
    assert packing.runs[0].job.profile.demands["h200, mps"].occupancy == pytest.approx(predicted)
    together = packing.runs[1].start_s < packing.runs[0].end_s
    assert together == (2 * predicted <= 1)
    given = pack(model + f"occupancy = {0.9 if together else 0.1}\ncount = 2\n", ONE_GPU, policy="occupancy")
    assert (given.runs[1].start_s < given.runs[0].end_s) != together


def test_a_job_of_several_gpus_runs_on_all_of_them(pack) -> None:
    packing = pack(SMALL + "count = 2\n" + LARGE + "gpus = 2\n")
    (wide,) = [row for row in packing.rows() if row["job"] == "large"]
    assert (wide["gpus"], wide["start_s"]) == ([0, 1], pytest.approx(10.0))
    assert ("large", "gpus 0, 1, 10 to 20 s") in list(packing.lines())
    assert [row["gpus"] for row in packing.rows() if row["job"] != "large"] == [None, None]
    assert "gpus" not in packing.to_dict()["schedule"][0]
    with pytest.raises(InputError, match="'large' needs 3 whole GPUs of one kind, and the cluster has 2 for it"):
        pack(LARGE + "gpus = 3\n")
    with pytest.raises(InputError, match="'large' needs 2 whole GPUs, and the cluster has slices only"):
        pack(LARGE + "gpus = 2\n", '[[gpu]]\ndevice = "h200"\nmig = ["3g.71gb", "3g.71gb"]\n')


def test_a_model_on_several_gpus_is_warned_of(pack, model: str) -> None:
    packing = pack(model + "gpus = 2\n")
    assert packing.runs[0].places == (0, 1)
    assert any("transfers are not predicted" in warning for warning in packing.warnings)


def test_the_load_of_a_trace_counts_all_gpus_of_a_job(pack) -> None:
    arrivals = '[arrivals]\ntrace = "poisson"\njobs = 50\nload = 1\n'
    one, two = (
        pack(arrivals + LARGE.replace("steps = 1000\n", "") + f"gpus = {gpus}\n").runs[-1].job.arrival_s
        for gpus in (1, 2)
    )
    assert two == pytest.approx(2 * one)


def test_a_limit_that_no_place_keeps_is_warned_of(pack) -> None:
    assert any("'small' breaks its limit on every place" in w for w in pack(SMALL + "limit_ms = 9\n").warnings)
    assert not any("breaks its limit" in warning for warning in pack(SMALL + "limit_ms = 11\n").warnings)
    # an idle slice breaks the limit, a whole GPU keeps it
    slices = CLUSTER + '[[gpu]]\ndevice = "h200"\nmig = ["1g.18gb"]\n'
    assert not any("breaks its limit" in warning for warning in pack(SMALL + "limit_ms = 11\n", slices).warnings)


def test_long_times_are_written_out(pack) -> None:
    packing = pack(SMALL.replace("steps = 1000", "seconds = 294312.5"))
    assert dict(packing.lines())["makespan"] == "294,312 s"
