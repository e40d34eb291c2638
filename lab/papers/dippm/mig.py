"""Papers: the rule by which DIPPM chooses a MIG profile."""

# The limits of DIPPM's four profiles, in the MB that nvidia-smi prints; its code counts 1 GB as 1000 MB.
_LIMITS_MIB = {"1g.5gb": 5000, "2g.10gb": 10000, "3g.20gb": 20000, "7g.40gb": 40000}


def dippm_mig(memory_mib: float) -> str | None:
    """The published rule for the 40 GB A100, with its open ends: a value on a limit has no profile.

    K. Panner Selvam, M. Brorsson: DIPPM, Euro-Par 2023, eq. 2. Its memory is what nvidia-smi shows, in MB.

    >>> [dippm_mig(memory_mib) for memory_mib in (2865, 5000, 5952, 26439, 40000)]
    ['1g.5gb', None, '2g.10gb', '7g.40gb', None]
    """
    above_mib = 0
    for profile, below_mib in _LIMITS_MIB.items():
        # open at both ends, as published
        if above_mib < memory_mib < below_mib:
            return profile
        above_mib = below_mib
    return None
