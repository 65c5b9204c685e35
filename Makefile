# Everything a newcomer needs: `make demo` shows the main job, `make test` proves it, `make check` keeps it tidy.
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format bench clean

demo: $(VENV)/.run
	$(BIN)/polyseq generate smollm2-135m --chat --file examples/questions.txt \
	    --system "$$(cat examples/system.txt)" --temp 0 -n 48 --show-cut

test: $(VENV)/.test
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
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/generate.py
	$(BIN)/python -m pytest -m timing

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PY) -m venv $(VENV)

# What running needs.
$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

# What the tests need besides: the oracles. torch comes first and pinned, or another package would choose a larger build.
$(VENV)/.test: pyproject.toml $(VENV)/.run
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[test,check]'
	touch $@
