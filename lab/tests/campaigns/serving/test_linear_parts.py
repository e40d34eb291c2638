"""Parts of linear attention: each is listed once, with a prompt and a token for every number of heads."""

from lab.campaigns.serving.grid import key
from lab.campaigns.serving.linear_parts import HEADS, parts


def test_parts_are_listed_once_for_every_number_of_heads() -> None:
    listed = list(parts())
    assert len({key(part) for part in listed}) == len(listed)
    kinds = {(part["part"], part["key_heads"], part["value_heads"]) for part in listed}
    assert len(kinds) == 4 * len(HEADS)
    assert all(part["context"] == 1 for part in listed if part["part"].endswith("token"))
    assert min(part["context"] for part in listed if part["part"].endswith("prompt")) == 64
