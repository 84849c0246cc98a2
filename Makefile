# The two commands to know: `make sweep` and `make test`. After them: .venv/bin/zerobench --help
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SWEEP  ?= quickstart
PREDICTED ?= predicted-7b
PROCESSES ?= 2
LOGIN  ?= .venv-login
DOCS   ?= .venv-docs
MINUTES ?= 9.5
EACH ?= 10
C      := $(wildcard zerobench/emulator/c/*.[ch] $(addprefix zerobench/emulator/,cpp/*.h cpp/*.cpp include/*.h \
            include/nv/target))
PACKAGES ?= estimate/memory estimate/clock estimate/time config/trial config/models config/hardware config/derived \
            config/axes config/rules config/sweep config/deepspeed report/export launch/run/outcome.py

.PHONY: sweep test test-fast test-extras mutants viewer login check format docs bench gpu-campaign clean

# A failed trial does not keep the prediction, and the whole then fails; Ctrl-C (130) ends it all.
sweep: $(VENV)/installed
	measured=0; $(BIN)/zerobench run $(SWEEP) || measured=$$?; \
	test $$measured -ne 130 || exit 130; \
	$(BIN)/zerobench plan $(PREDICTED) && exit $$measured

# Three processes where there is memory for them and bf16 is quick: most tests wait for what they start, and with two a core
# is idle two fifths of the time. A processor without bf16 multiplies it 60 times slower and is never idle.
MACHINE := /proc/meminfo /proc/cpuinfo
TOGETHER = $(if $(filter file,$(origin PROCESSES)),$(shell cat $(MACHINE) 2>/dev/null | awk '/^MemAvailable/ { room = $$2 >= 16 * 2^20 } \
             /^processor/ { cores++ } /bf16/ { quick = 1 } END { more = room && quick && cores > 1; print more ? 3 : 2 }'),$(PROCESSES))

# AGAIN=yes: up to three failed tests that start processes are tried once more, one at a time (CONTRIBUTING.md says when).
# ORDER=random: files, and the tests of each, in an order drawn anew; ORDER=<number> repeats the one that was printed.
SHUFFLE = $(if $(ORDER),--shuffle $(ORDER))
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not alone and not extra" --numprocesses $(TOGETHER) --dist loadgroup --no-loadscope-reorder $(SHUFFLE) \
		|| { test "$$?$(AGAIN)" = 1yes && $(BIN)/python -m tests.tools.again \
			&& $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -v --numprocesses 1; }
	$(BIN)/python -m pytest -m alone

# What starts no process, opens no browser and imports no training framework: under 90 seconds on two cores.
test-fast: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m fast --numprocesses $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(SHUFFLE)

# Small changes of the code, and whether the tests that mirror it notice (CONTRIBUTING.md). Call it again and it goes on.
mutants: $(VENV)/installed-dev
	$(BIN)/python benchmarks/mutants/mutants.py $(PACKAGES) --each $(EACH) --processes $(PROCESSES) --table benchmarks/mutants/kill_rates.md

# torch's viewer of its memory snapshots, which no wheel has: with it a test opens what `export --memory-viz` writes.
viewer: $(VENV)/installed-dev
	$(BIN)/python -m tests.tools.torch_viewer

# Strategies in environments of their own: Horovod is built for minutes, TensorFlow takes 1.6 GB.
test-extras: $(VENV)/installed-dev
	$(BIN)/zerobench setup horovod
	$(BIN)/zerobench setup tensorflow
	$(BIN)/python -m pytest -m extra

# For a cluster's login node: no torch, no DeepSpeed; plans by formula, submits, watches, reports (slurm/CLUSTER.md).
login: $(LOGIN)/installed

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.tools.assertions
	$(BIN)/clang-format --dry-run --Werror $(C)

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C)

# The pages of docs/ with the reference, as a site in site/. A link that leads nowhere fails it; with --quiet it would not.
docs: $(DOCS)/installed-docs
	$(DOCS)/bin/python -m mkdocs build --strict --clean

bench: $(VENV)/installed
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/show_scale.py
	$(BIN)/python benchmarks/submit_scale.py

# What only a GPU can show, in parts of ten minutes: call it again and it goes on (benchmarks/README.md).
gpu-campaign: $(VENV)/installed-dev
	$(BIN)/python benchmarks/gpu_campaign/campaign.py --minutes $(MINUTES)

clean:
	rm -rf $(VENV) $(LOGIN) $(DOCS) build dist site .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[run,report]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@

# The core and the site's own packages: no torch.
$(DOCS)/installed-docs: pyproject.toml constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --constraint constraints.txt --editable '.[report,docs]'
	touch $@

$(LOGIN)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LOGIN)
	$(LOGIN)/bin/python -m pip install --constraint constraints.txt --editable '.[report]'
	touch $@
