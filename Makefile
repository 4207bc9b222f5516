# make run     the demo: a fleet that also fails, judged before your eyes
# make test    everything that is tested
# make bench   the measurements, each beside its yardstick
# make check   what must hold before a commit: format, house rules, build, tests, pipelines
# make format  the format that check asks for
# make screenshots  the pictures of the page in docs/images, of a demo that has run for some minutes

# Found when a recipe runs: bootstrap comes first and says what is missing.
SWIFT = $(shell scripts/find-swift)
# One build in release serves all of them.
FLAGS = -c release --explicit-target-dependency-import-check error
HEARTLINE = .build/release/heartline
# The demo's options: make run ARGUMENTS="--duration 2m"
ARGUMENTS =

.PHONY: screenshots run test bench check format build bootstrap bootstrap-test bootstrap-bench lint tidy pipelines

run: bootstrap
	@echo "Building Heartline: some minutes the first time."
	@$(SWIFT) build $(FLAGS) --product heartline
	@$(HEARTLINE) demo $(ARGUMENTS)

build: bootstrap
	@$(SWIFT) build $(FLAGS) --build-tests

test: bootstrap-test build
	@scripts/test $(SWIFT) test -c release --skip-build --disable-xctest

screenshots: bootstrap-test build
	@mkdir -p docs/images
	@HEARTLINE_SCREENSHOTS=docs/images $(SWIFT) test -c release --skip-build --disable-xctest --filter Screenshots

bench: bootstrap-bench
	@$(SWIFT) build $(FLAGS) --product heartline
	@scripts/bench --heartline $(HEARTLINE)
	@Benchmarks/pushes.py --heartline $(HEARTLINE)
	@Benchmarks/sockets.py --heartline $(HEARTLINE)
	@$(HEARTLINE) bench $(ARGUMENTS)

check: bootstrap lint tidy build pipelines test

lint: bootstrap
	@$(SWIFT) format lint --strict --parallel --recursive Sources Tests Package.swift

tidy:
	@scripts/tidy

pipelines: build
	@$(HEARTLINE) pipeline lint pipelines/*.yaml
	@$(HEARTLINE) pipeline test pipelines/*.yaml

format: bootstrap
	@$(SWIFT) format --in-place --parallel --recursive Sources Tests Package.swift

bootstrap:
	@scripts/bootstrap

bootstrap-test:
	@scripts/bootstrap test

bootstrap-bench:
	@scripts/bootstrap bench
