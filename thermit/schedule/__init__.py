"""Which values are stored, in which kernels; buffers and steps."""
