"""What a time on the catalogue's CPU means."""

from foretell.predictors.unit.pace import ONE_CORE, REFERENCE_MS, one_core_note


def test_the_note_says_the_pace_and_what_to_run():
    note = one_core_note()
    assert note.startswith(f"{ONE_CORE} {REFERENCE_MS:g} ms")
    assert "foretell characterise" in note
    assert "foretell adapt --device cpu" in note
