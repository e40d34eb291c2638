"""Graph: the cost of every node, forward and backward: arithmetic, bytes moved, kernel launches."""
