"""kvproof.model: the executable model of a KV-cache block allocator (standard library only)."""
