# Two commands matter: `make demo` and `make test`. Both do all their set-up. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
PROFILE ?= full

.PHONY: help setup demo demo-down test check fmt gen lock test-unit test-chart test-contract test-engine test-e2e soak-engine soak-bombs soak-gateway bench-gateway clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup:  ## uv and .venv from the lock (every target does it)
	@tools/bootstrap.sh

demo: setup  ## the whole path: cluster, images, chart, unpatched and patched engine, real questions
	@$(PY) -m tools.demo up

demo-down: setup  ## remove everything that the demo set up (caches stay)
	@$(PY) -m tools.demo down

test: setup  ## everything: check, unit, chart, contract, engine, e2e
	@$(PY) -m tools.testrun check unit prepare chart contract engine e2e

check: setup  ## format, lint, types, layers, generated files, unit tests
	@$(PY) -m tools.testrun check unit

fmt: setup  ## format and fix what can be fixed
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

gen: setup  ## write all generated files again
	@$(PY) -m tools.generate

lock: setup  ## update uv.lock after a change of dependencies
	@.venv/bin/uv lock

test-unit: setup  ## unit tests (seconds, no cluster)
	@$(PY) -m tools.testrun unit

test-chart: setup  ## chart, alerts and dashboards: helm lint, helm-unittest, promtool
	@$(PY) -m tools.testrun prepare chart

test-contract: setup  ## against a real kube-apiserver
	@$(PY) -m tools.testrun prepare contract

test-engine: setup  ## real vLLM on CPU with three pipeline stages
	@$(PY) -m tools.testrun prepare engine

test-e2e: setup  ## the demo's parts on a real cluster, asserted
	@$(PY) -m tools.testrun prepare e2e

soak-bombs: setup  ## latency of structured requests next to ten grammars that never compile
	@$(PY) -m tests.engine.bomb_latency

soak-engine: setup  ## 10,000 structured requests against the patched engine (build/soak/engine.json)
	@$(PY) -m tests.engine.soak

soak-gateway: setup  ## 100,000 answers, most of them wrong, through the gateway (build/soak/gateway.json)
	@$(PY) -m tests.gateway_soak

bench-gateway: setup  ## the gateway beside other gateways -> build/bench/gateway.json (PROFILE=quick|full)
	@$(PY) -m tools.bench.gateway --profile $(PROFILE) $(if $(PICTURES),--picture)

clean:  ## remove build output (caches stay)
	rm -rf build dist
