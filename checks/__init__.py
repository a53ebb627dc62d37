"""kvproof.checks: the readings of the spec and the checks of allocators."""
