import errno
import json
import os

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.journal import DAMAGED, RECORDS, TRACES, Journal, read_records, read_traces


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
    # who reads the folder meanwhile finds no half of a record
    assert len((tmp_path / RECORDS).read_bytes().splitlines()) == 1
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


def _written(folder, count=6):
    journal = _journal(folder)
    journal.append({"kind": "campaign", "campaign_id": "c"})
    for number in range(count):
        journal.append({"kind": "measurement", "number": number, "text": "x" * 40})
        journal.append_trace({"number": number, "text": "x" * 40})
    journal.close()
    return folder


def _numbers(lines):
    return [line["number"] for line in lines if "number" in line]


@pytest.mark.parametrize("step", [1, 5])
def test_a_flipped_byte_loses_one_record_and_says_so(tmp_path, caplog, step):
    folder = _written(tmp_path)
    for name, read in ((RECORDS, read_records), (TRACES, read_traces)):
        whole = (folder / name).read_bytes()
        for place in range(step, len(whole), len(whole) // 25 + step):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 0x20]) + whole[place + 1 :])
            caplog.clear()
            numbers = _numbers(read(folder))
            # a newline that is gone joins two records; bytes of gzip's header that mean nothing may change
            assert len(numbers) >= 4
            assert set(numbers) <= set(range(6))
            torn = numbers == [0, 1, 2, 3, 4] or len(numbers) == 6
            assert caplog.records or torn
        (folder / name).write_bytes(whole)


def test_damaged_records_are_set_aside_once(tmp_path, caplog):
    folder = _written(tmp_path)
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n"
    lines[4] = lines[4].replace(b'"number":3', b'"number":8')
    (folder / RECORDS).write_bytes(b"".join(lines) + b'{"torn')
    members = (folder / TRACES).read_bytes()
    (folder / TRACES).write_bytes(members[:30] + b"\0" + members[31:])
    journal = _journal(folder)
    assert "2 damaged records were moved to damaged.jsonl" in caplog.text
    journal.append({"kind": "measurement", "number": 1})
    journal.close()
    assert _numbers(read_records(folder)) == [0, 2, 4, 5, 1]
    assert _numbers(read_traces(folder)) == [1, 2, 3, 4, 5]
    notes = [json.loads(line) for line in (folder / DAMAGED).read_text().splitlines()]
    assert [(note["file"], note["why"]) for note in notes] == [
        (RECORDS, "the checksum is missing"),
        (RECORDS, "the checksum does not match"),
        (TRACES, "the checksum does not match"),
    ]
    assert bytes.fromhex(notes[0]["hex"]) == b"garbage\n"
    _journal(folder).close()
    assert len((folder / DAMAGED).read_text().splitlines()) == 3


def test_a_header_that_is_damaged_is_read_from_its_copy(tmp_path):
    folder = _written(tmp_path)
    data = (folder / RECORDS).read_bytes()
    (folder / RECORDS).write_bytes(b"x" + data[1:])
    _journal(folder).close()
    lines = list(read_records(folder))
    assert lines[0] == {"kind": "campaign", "campaign_id": "c"}
    assert len(lines) == 7


def test_journals_without_checksums_are_read_and_continued(tmp_path):
    (tmp_path / RECORDS).write_text('{"number":0}\n{"number":1}\n{"number":2}\n')
    journal = _journal(tmp_path)
    journal.append({"number": 3})
    journal.close()
    assert _numbers(read_records(tmp_path)) == [0, 1, 2, 3]
    lines = (tmp_path / RECORDS).read_bytes().splitlines(keepends=True)
    (tmp_path / RECORDS).write_bytes(b"".join([lines[0], b"[1]\n", b"no json\n", lines[2], lines[3]]))
    _journal(tmp_path).close()
    assert _numbers(read_records(tmp_path)) == [0, 2, 3]
    assert len((tmp_path / DAMAGED).read_text().splitlines()) == 2


def test_a_disk_that_cannot_even_cut_is_cut_before_the_next_record(tmp_path, monkeypatch):
    journal = _journal(tmp_path)
    journal.append({"number": 0})
    real = os.write

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[: len(data) // 2]))
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(MeasurementError, match="free some space"):
        journal.append({"number": 1})
    monkeypatch.undo()
    journal.append({"number": 2})
    journal.close()
    assert _numbers(read_records(tmp_path)) == [0, 2]
