"""Rendering: make names from inside a model safe for a terminal."""


def printable(text: str) -> str:
    """The text without control characters: a name in a model must not control the terminal.

    >>> printable("conv\\x1b[2J1")
    'conv�[2J1'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
