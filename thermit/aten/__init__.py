"""PyTorch's vocabulary in primitives; @lower is the only registration."""
