"""Speed beside eager, torch.compile, torch.jit, JAX, ONNX Runtime and OpenVINO: `python -m benchmarks --help`.

cases.py            what is measured, as data        torch_functions.py, jax_functions.py   the functions, once in each spelling
torch_worker.py,    one case under one peer in       torch_models.py                        the models, as transformers makes them
jax_worker.py,      a process of its own             worker.py                              the worker's side of the conversation
model_worker.py,
export_worker.py
measure.py          runs the workers in turns        report.py                              markdown, JSON, plot
"""
