"""Adapters: real allocators behind the interface of kvproof.model.interface."""
