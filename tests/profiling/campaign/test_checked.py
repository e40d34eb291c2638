"""Which records of a file are whole."""

import gzip
import json

import pytest

from foretell.profiling.campaign.checked import TORN, seal, split_lines, split_members

LINES = [{"kind": "row", "id": number} for number in range(3)]


def test_sealed_lines_are_read_as_they_were_written():
    data = b"".join(map(seal, LINES))
    pieces = list(split_lines(data))
    assert [piece.line for piece in pieces] == LINES
    assert b"".join(piece.data for piece in pieces) == data
    assert {piece.why for piece in pieces} == {""}


@pytest.mark.parametrize("place", range(0, len(seal(LINES[0])) - 1, 3))
def test_a_flipped_bit_costs_its_own_line_only(place):
    data = bytearray(b"".join(map(seal, LINES)))
    data[len(seal(LINES[0])) + place] ^= 1
    lines = [piece.line for piece in split_lines(bytes(data)) if piece.line is not None]
    assert lines == [LINES[0], LINES[2]]


def test_a_torn_end_is_not_damage_in_the_middle():
    data = b"".join(map(seal, LINES))
    assert [piece.why for piece in split_lines(data[:-5])] == ["", "", TORN]
    damaged = data.replace(b'"id":1', b'"id":7')
    assert [piece.why for piece in split_lines(damaged)] == ["", "the checksum does not match", ""]


def test_lines_without_a_checksum_are_believed_only_before_the_first_with_one():
    old = json.dumps(LINES[0]).encode() + b"\n"
    assert [piece.line for piece in split_lines(old + seal(LINES[1]))] == LINES[:2]
    assert [piece.why for piece in split_lines(seal(LINES[1]) + old)] == ["", "the checksum is missing"]


def test_a_damaged_trace_costs_its_own_member_only():
    members = [gzip.compress(json.dumps(line).encode() + b"\n") for line in LINES]
    assert [piece.line for piece in split_members(b"".join(members))] == LINES
    spoilt = bytearray(members[1])
    spoilt[-6] ^= 1  # in its checksum
    pieces = list(split_members(members[0] + bytes(spoilt) + members[2]))
    assert [piece.line for piece in pieces if piece.line is not None] == [LINES[0], LINES[2]]
    assert any(piece.line is None and piece.why not in ("", TORN) for piece in pieces)
    assert list(split_members(members[0] + members[1][:-3]))[-1].why == TORN
