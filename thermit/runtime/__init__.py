"""Machine code, the native entry, allocation, threads; every fact about PyTorch's binary interface."""
