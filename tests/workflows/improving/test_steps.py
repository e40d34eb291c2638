"""The changes one by one: what they do to a workload, and where they do not apply."""

from foretell.devices import find_device
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.workflows.improving.steps import Step, batch_step, steps_for


def steps(workload: Workload) -> dict[str, Step]:
    return {step.name: step for step in steps_for(workload)}


def on(device: str, runtime: str = "cuda-graph", dtype: str = "fp32") -> Workload:
    return Workload(tiny_graph().with_dtype(dtype), Target(find_device(device), None, runtime), dtype)


def test_precisions_are_those_that_the_gpu_has_units_for() -> None:
    assert {"fp16", "bf16", "tf32"} <= set(steps(on("h200")))
    assert "bf16" not in steps(on("t4"))
    assert "tf32" not in steps(on("t4"))
    # nobody goes from bf16 back to fp16 for speed
    assert not {"fp16", "bf16", "tf32"} & set(steps(on("h200", dtype="bf16")))


def test_a_cast_casts_the_model_and_tf32_does_not() -> None:
    workload = on("h200")
    half, tf32 = (steps(workload)[name].apply(workload) for name in ("fp16", "tf32"))
    assert half is not None
    assert tf32 is not None
    assert (half.dtype, half.graph.dtype) == ("fp16", "fp16")
    assert (tf32.dtype, tf32.graph.dtype) == ("tf32", "fp32")


def test_runtimes_change_once() -> None:
    eager = on("h200", "eager")
    captured = steps(eager)["CUDA graphs"].apply(eager)
    compiled = steps(eager)["torch.compile"].apply(eager)
    assert captured is not None
    assert compiled is not None
    assert (captured.target.runtime, compiled.target.runtime) == ("cuda-graph", "compiled")
    assert steps(eager)["torch.compile"].apply(compiled) is None
    assert "CUDA graphs" not in steps(on("h200"))


def test_channels_last_needs_images_and_happens_once() -> None:
    workload = on("h200")
    step = steps(workload)["channels-last"]
    changed = step.apply(workload)
    assert changed is not None
    assert changed.channels_last
    assert step.apply(changed) is None


def test_a_batch_scales_the_graph() -> None:
    changed = batch_step(16).apply(on("h200"))
    assert changed is not None
    assert changed.batch_size == 16


def test_a_rewrite_that_changes_nothing_does_not_apply() -> None:
    workload = on("h200")
    assert steps(workload)["fused attention"].apply(workload) is None
    assert steps(workload)["batch norms folded"].apply(workload) is None
