"""kvproof.spec: the formal specification, one relational text."""
