"""What a time on the catalogue's CPU means."""

import pytest

from foretell.devices.cpu_runs import ONE_THREAD, OTHERS, CpuRun
from foretell.predictors.unit.pace import REFERENCE_MS, core_note, is_pace_note, paced_note, reference_ms


def test_the_note_says_the_pace_and_what_to_run():
    note = core_note()
    assert note.startswith(f"For one core that multiplies two 192 × 192 matrices in {REFERENCE_MS:g} ms, as the")
    assert "foretell characterise" in note
    assert "foretell adapt --device cpu" in note


@pytest.mark.parametrize("run", OTHERS)
def test_the_note_names_a_run_that_adapt_does_not_know(run):
    for note in (core_note(run), paced_note(run, 0.2, "2026-11-18")):
        assert note.lower().startswith(f"{run}, for {'two cores' if run.threads == 2 else 'one core'} ".lower())
        assert is_pace_note(note)
        assert "adapt" not in note


def test_the_reference_has_the_threads_of_pytorch():
    assert reference_ms(ONE_THREAD) == reference_ms(CpuRun("onnxruntime", 2)) == REFERENCE_MS
    assert 0.4 * REFERENCE_MS < reference_ms(CpuRun("eager", 2)) < 0.6 * REFERENCE_MS
