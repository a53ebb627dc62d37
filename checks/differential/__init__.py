"""Two implementations on the same operations, and the self-test for a machine with a GPU."""
