import errno
import os

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.journal import RECORDS, TRACES, Journal, read_records, read_traces


def _journal(folder):
    journal = Journal(folder)
    journal.open()
    return journal


def test_what_was_written_is_read(tmp_path):
    journal = _journal(tmp_path / "new" / "folder")
    lines = [{"number": number, "text": "ä" * number} for number in range(5)]
    for line in lines:
        journal.append(line)
        journal.append_trace(line)
    journal.close()
    assert list(read_records(tmp_path / "new" / "folder")) == lines
    assert list(read_traces(tmp_path / "new" / "folder")) == lines


@pytest.mark.parametrize("lost", [1, 7, 20])
def test_a_torn_end_is_cut_and_the_rest_kept(tmp_path, lost):
    journal = _journal(tmp_path)
    for number in range(3):
        journal.append({"number": number, "text": "x" * 40})
        journal.append_trace({"number": number, "text": "x" * 40})
    journal.close()
    for name in (RECORDS, TRACES):
        path = tmp_path / name
        os.truncate(path, path.stat().st_size - lost)
    journal = _journal(tmp_path)
    journal.append({"number": 9})
    journal.append_trace({"number": 9})
    journal.close()
    assert [line["number"] for line in read_records(tmp_path)] == [0, 1, 9]
    assert [line["number"] for line in read_traces(tmp_path)] == [0, 1, 9]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    journal = _journal(tmp_path)
    journal.append({"number": 0})
    real = os.write

    def half(handle, data):
        return real(handle, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(MeasurementError, match="free some space"):
        journal.append({"number": 1, "text": "x" * 100})
    monkeypatch.undo()
    journal.append({"number": 2})
    journal.close()
    assert [line["number"] for line in read_records(tmp_path)] == [0, 2]
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MeasurementError, match="Read-only file system"):
        _journal(tmp_path)


def test_absent_journals_are_empty(tmp_path):
    assert list(read_records(tmp_path)) == []
    assert list(read_traces(tmp_path)) == []
