"""Kernels as loop nests."""
