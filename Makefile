# Everything a newcomer needs: `make demo` shows the main job, `make test` proves it, `make check` keeps it tidy.
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format bench bench-peers clean

demo: $(VENV)/.bytecode
	$(BIN)/polyseq generate smollm2-135m --chat --file examples/questions.txt \
	    --system "$$(cat examples/system.txt)" --temp 0 -n 48 --show-cut

test: $(VENV)/.test $(VENV)/.bytecode
	$(BIN)/python -m pytest

check: $(VENV)/.test
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/pure/test_house.py

format: $(VENV)/.test
	$(BIN)/ruff format src tests bench
	$(BIN)/ruff check --fix src tests bench

bench: $(VENV)/.test
	$(BIN)/python bench/steps.py
	$(BIN)/python bench/generate.py
	$(BIN)/python bench/roofline.py
	$(BIN)/python -m pytest -m timing

# Peers for bench/compare.py, each in an environment of its own; llama.cpp is compiled for this machine.
bench-peers: $(VENV)/.test
	$(PY) -m venv .peers/llama-cpp
	CMAKE_ARGS=-DGGML_NATIVE=ON .peers/llama-cpp/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36
	$(PY) -m venv .peers/openvino
	.peers/openvino/bin/pip install torch==2.13.0
	.peers/openvino/bin/pip install 'openvino-genai==2026.4.1.*' 'torch==2.13.0' optimum-intel nncf 'gguf>=0.17' accelerate
	.peers/openvino/bin/pip uninstall --yes torchvision  # imports only beside another build of torch
	ln -sfn ../$(VENV) .peers/transformers
	MODEL=$$($(BIN)/polyseq pull smollm2-135m) && \
	    .peers/llama-cpp/bin/python bench/peers/requantise.py $$MODEL .peers/q4_0.gguf && \
	    .peers/openvino/bin/python bench/peers/export_openvino.py $$MODEL .peers/ir
	$(BIN)/polyseq pull all-minilm-l6-v2
	$(BIN)/python bench/peers/embed_gguf.py all-minilm-l6-v2 .peers/embed
	.peers/openvino/bin/python bench/peers/export_embed.py .peers/embed/model tests/data/texts.txt .peers/embed

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PY) -m venv $(VENV)

# What running needs.
$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

# Written here, because where PYTHONDONTWRITEBYTECODE is set no start writes any, and each compiles all it loads.
$(VENV)/.bytecode: $(shell find src -name '*.py') $(VENV)/.run
	$(BIN)/python -m compileall -q src
	touch $@

# What the tests need besides: the oracles. torch comes first and pinned, or another package would choose a larger build.
$(VENV)/.test: pyproject.toml $(VENV)/.run
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[test,check]'
	touch $@
