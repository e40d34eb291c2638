"""What every node of a graph costs, forward and backward: arithmetic and bytes."""
