"""Prove and refute: induction for any size, and bounded search for the shortest counterexample."""
