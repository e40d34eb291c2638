"""Features: the version of the feature extractor, which is part of the key of every cache and every fit.

An explicit number is used instead of a hash of the source files, because only a change of values matters: renaming or
moving code must not discard hours of fitting.
"""

# Raise it when a change of code changes any value of a sample: the costs of nodes, the units and their shapes, the
# pooled columns, the roofline's bounds, or which node a traced kernel belongs to.
# 2: a recurrent cell runs once, not once for each item of the batch.
# 3: sizes of Einsum, gathers, scatters, sorts and Fourier transforms.
# 4: the products of recurrent cells are units of their own; a bag of embeddings reads a row for each index.
# 5: the axes that element-wise kernels walk over; gradients of parts and of what was repeated.
# 6: the variant of an operator; what an Einsum really copies.
# 7: the bytes that a whole run moves, to half a power of two.
# 8: the order of the distinct units of a workload, which tables of launches count by.
FEATURES_VERSION = 8
