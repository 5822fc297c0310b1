PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: audit test deploy-test deploy-demo browser-test check bench clean

audit: .venv/installed  ## the main job on embedded data
	$(BIN)/coterie audit

test: .venv/installed  ## all tests
	$(BIN)/pytest -n 2 --dist worksteal

deploy-test: .venv/installed  ## real processes on loopback: a link, clients that are killed, strangers
	$(BIN)/pytest tests/deploy

deploy-demo: .venv/installed  ## a server and four clients on loopback: MingledPie under CKKS, then private k-means
	$(BIN)/coterie deploy demo

browser-test: .venv/installed  ## the report in a real browser: Debian's chromium, installed if it is not there
	command -v chromium && command -v chromedriver || (apt-get update && apt-get install -y chromium chromium-driver)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[browser]"
	$(BIN)/pytest tests/browser

check: .venv/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed  ## speeds, each as a ratio to a baseline measured beside it
	$(BIN)/coterie bench

# torch first and pinned: any looser request pulls a CUDA build of several GB
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,deploy]"
	touch $@

clean:
	rm -rf .venv build dist runs
