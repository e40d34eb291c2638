"""Features: the version of what is extracted from workloads, named by every cache and fit that was made of it.

Caches used to be named by the text of the source files, so that moving a line of code threw away hours of fitting.
A number says what the text cannot: whether the values have changed.
"""

# Raise it when a change of code changes any value of a sample: costs of nodes, units and their shapes, pooled columns,
# the bounds of the roofline, or which node a traced kernel belongs to. Renamed and moved code does not count.
FEATURES_VERSION = 1
