"""Predictors: unit: the pace of a core: all times on a CPU were measured beside a fixed product of two matrices.

They are brought to a core that takes `REFERENCE_MS` for it, so that measurements of other days and processors compare.
"""

REFERENCE_MS = 0.14  # a product of 192 × 192 matrices in fp32 on one core
ONE_CORE = "For one core that multiplies two 192 × 192 matrices in"


def one_core_note() -> str:
    """What a time on the catalogue's CPU means."""
    return (
        f"{ONE_CORE} {REFERENCE_MS:g} ms, as the measured one does; yours may differ: foretell characterise finds its "
        "pace, and foretell adapt --device cpu corrects the rest by a few measurements."
    )
