from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from foretell.errors import InputError
from foretell.profiling.campaign.plan import Part, Plan
from foretell.profiling.campaign.schedule import (
    Group,
    Schedule,
    chosen_for,
    cost,
    every_workload,
    group_of,
    interleave,
    make_schedule,
)
from foretell.profiling.zoos.zoo import Entry

pytest.importorskip("torch")

PART = Part("random", 1.0, ("synthetic",), models=66, per_model=3)


def _groups(plan: Plan, done=()) -> list[Group]:
    schedule = make_schedule(plan, done)
    collected = []
    while (group := schedule.next()) is not None:
        collected.append(group)
    return collected


def test_the_order_follows_from_the_seed():
    assert _groups(Plan(1, (PART,))) == _groups(Plan(1, (PART,)))
    assert _groups(Plan(1, (PART,))) != _groups(Plan(2, (PART,)))


def test_the_beginning_has_every_family():
    families = [group.workloads[0].family for group in islice(_groups(Plan(1, (PART,))), 11)]
    assert len(set(families)) == 11


def test_what_is_done_is_not_measured_again():
    plan = Plan(1, (PART,))
    groups = _groups(plan)
    first, second = groups[0], groups[1]
    done = {workload.id for workload in first.workloads} | {second.workloads[0].id}
    left = _groups(plan, done)
    assert first.spec not in {group.spec for group in left}
    again = next(group for group in left if group.spec == second.spec)
    assert again.workloads == second.workloads[1:]
    assert again.target_count == second.target_count - 1
    assert not {workload.id for group in left for workload in group.workloads} & done


def test_workloads_are_distinct_and_a_small_one_comes_first():
    groups = _groups(Plan(1, (PART,)))
    ids = [workload.id for group in groups for workload in group.workloads]
    assert len(ids) == len(set(ids))
    for group in groups:
        assert group.workloads[0].batch_size <= 8
        first_workloads = group.workloads[: group.target_count]
        changes = sum(a.dtype != b.dtype for a, b in pairwise(first_workloads))
        assert changes <= len({workload.dtype for workload in first_workloads})


def test_parts_take_turns_by_their_share():
    groups = {
        name: [Group(name, f"timm:{name}{number}", (), 1) for number in range(100)] for name in ("large", "small")
    }
    from collections import deque

    schedule = Schedule({name: deque(queue) for name, queue in groups.items()}, {"large": 0.75, "small": 0.25})
    drawn: Counter[str] = Counter()
    for _ in range(80):
        group = schedule.next()
        assert group is not None
        drawn[group.part] += 1
        schedule.charge(group.part, 2.0)
    assert drawn["large"] == 60


def test_interleave_keeps_everything_once():
    entries = [Entry(f"timm:{family}{number}", family, (3,)) for family in "abc" for number in range(ord(family) - 95)]
    mixed = interleave(entries, "seed")
    assert sorted(entry.spec for entry in mixed) == sorted(entry.spec for entry in entries)
    assert len({entry.family for entry in mixed[:3]}) == 3


def test_language_models_are_fitted_into_the_limits():
    entry = Entry("hf:llama", "llm", (), parameters=7e9, cache_bytes_per_token=524288, max_sequence=4096)
    part = Part(
        "llm", 1.0, ("llm",), modes=("prefill", "decode"), dtypes=("bf16",), sequences=(32, 512, 8192), per_model=8
    )
    for workload in group_of(entry, part, Plan(1, (part,))).workloads:
        assert workload.input_shape[0] < 4096
        if workload.mode == "prefill":
            assert 2 * 7e9 * cost(workload) / 4e14 <= 0.08
        assert cost(workload) * 524288 <= 6 * 2**30


def test_shares_do_not_depend_on_the_order():
    plan = Plan(1, (PART,))
    chosen = [chosen_for("energy", 0.3, plan, str(number)) for number in range(1000)]
    assert 250 < sum(chosen) < 350
    assert chosen == [chosen_for("energy", 0.3, plan, str(number)) for number in range(1000)]


def test_models_of_which_nothing_is_measured_come_first():
    plan = Plan(1, (PART,))
    before = [group.spec for group in make_schedule(plan).groups["random"]]
    seen = {("random", spec) for spec in before[:3]} | {("other", before[4])}
    after = [group.spec for group in make_schedule(plan, seen=seen).groups["random"]]
    assert after == before[3:] + before[:3]


def test_a_family_that_no_zoo_has_is_named():
    with pytest.raises(InputError, match=r"'synthetic-mpl'.*Did you mean 'synthetic-mlp'"):
        make_schedule(Plan(1, (replace(PART, families=("synthetic-lenet", "synthetic-mpl")),)))


def test_families_that_a_predictor_misjudges_come_up_more_often():
    entries = [Entry(f"timm:{family}{number}", family, (3,)) for family in "abcd" for number in range(8)]
    mixed = interleave(entries, "seed", {"a": 0.1, "b": 0.3, "c": 0.02})
    first = [entry.family for entry in mixed[:9]]
    assert (first.count("a"), first.count("b"), first.count("c"), first.count("d")) == (1, 3, 1, 4)
    assert sorted(entry.spec for entry in mixed) == sorted(entry.spec for entry in entries)


def test_twins_differ_in_their_option_alone():
    entry = Entry("synthetic:cnn?", "synthetic-cnn", (3, 32, 32))
    part = Part("twins", 1.0, ("synthetic",), dtypes=("fp32", "bf16"), per_model=2)
    plan = Plan(1, (part,))
    plain = group_of(entry, part, plan)
    group = group_of(entry, replace(part, twins=("channels_last",)), plan)
    assert group.target_count == 2 * plain.target_count
    pairs = list(zip(group.workloads[::2], group.workloads[1::2], strict=True))
    assert tuple(first for first, _ in pairs) == plain.workloads
    assert all(second == replace(first, channels_last=True) for first, second in pairs)
    group = group_of(entry, replace(part, twins=("tf32",)), plan)
    assert sum(workload.dtype == "tf32" for workload in group.workloads) == sum(
        workload.dtype == "fp32" for workload in plain.workloads
    )


def test_a_part_that_names_its_models_takes_them_with_every_setting():
    known = _groups(Plan(1, (PART,)))[5].spec
    named = replace(PART, specs=(known,), dtypes=("fp32", "fp16"), batch_sizes=(4, 2))
    (group,) = _groups(Plan(1, (named,)))
    assert [(workload.dtype, workload.batch_size) for workload in group.workloads] == [
        ("fp32", 4), ("fp32", 2), ("fp16", 4), ("fp16", 2),
    ]  # fmt: skip
    assert group.target_count == 4
    with pytest.raises(InputError, match="which its zoos lack"):
        make_schedule(Plan(1, (replace(named, specs=("synthetic:lennet",)),)))


def test_a_named_model_without_a_shape_takes_every_sequence():
    part = replace(PART, modes=("prefill", "decode"), sequences=(32, 64), batch_sizes=(1,), dtypes=("bf16",))
    group = every_workload(Entry("hf:gpt2", "llm-gpt2", ()), part)
    assert [(workload.mode, workload.input_shape) for workload in group.workloads] == [
        ("prefill", (32,)), ("prefill", (64,)), ("decode", (32,)), ("decode", (64,)),
    ]  # fmt: skip
