"""Profiling: the ``wild`` zoo: networks as users write them, that no published zoo contains."""
