"""One allocator, one operation at a time: what must be true of it, and every rule after every operation."""
