"""Speed beside eager, torch.compile, torch.jit.trace and JAX: `python -m benchmarks --help`.

cases.py            what is measured, as data        torch_functions.py, jax_functions.py   the functions, once in each spelling
torch_worker.py,    one case under one peer in       worker.py                              the worker's side of the conversation
jax_worker.py       a process of its own
measure.py          runs the workers in turns        report.py                              markdown, JSON, plot
"""
