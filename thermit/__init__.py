"""thermit: JAX's jit for PyTorch."""
