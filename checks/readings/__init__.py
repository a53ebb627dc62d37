"""What a formula means: on sets, on small finite sorts, to Z3, and as Boolean circuits."""
