"""kvproof.gpu: the GPU backend."""
