"""A schedule as files for those who run it."""
