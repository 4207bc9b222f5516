# make run     the demo: a fleet that also fails, judged before your eyes
# make test    everything that is tested
# make bench   the measurements, each beside its yardstick; writes docs/performance.md and .json
# make soak    half an hour of traffic while workers are killed; writes docs/soak.md
# make deb     a Debian package in dist/; make test-deb installs and starts it in a clean root
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

.PHONY: screenshots soak deb test-deb bootstrap-deb
.PHONY: run test bench check format build bootstrap bootstrap-test bootstrap-bench lint tidy pipelines

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
	@mkdir -p .build/bench && rm -f .build/bench/*.json
	@scripts/bench --heartline $(HEARTLINE) --json .build/bench/heartbeats.json
	@Benchmarks/pushes.py --heartline $(HEARTLINE) --json .build/bench/pushes.json
	@Benchmarks/sockets.py --heartline $(HEARTLINE) --json .build/bench/sockets.json
	@$(HEARTLINE) bench --json .build/bench/heartline.json $(ARGUMENTS)
	@scripts/performance .build/bench --page docs/performance.md --json docs/performance.json

soak: bootstrap
	@$(SWIFT) build $(FLAGS) --product heartline
	@$(HEARTLINE) soak --report docs/soak.md --json docs/soak.json $(ARGUMENTS)

# Apart from the other builds: this one is linked with the Swift runtime in it.
DEB = .build/deb
deb: bootstrap-deb
	@$(SWIFT) build $(FLAGS) --scratch-path $(DEB) --static-swift-stdlib --product heartline
	@scripts/deb $(DEB)/release/heartline Sources/Schemas/Migrations dist

test-deb: bootstrap-deb
	@scripts/test-deb dist/heartline_*.deb

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

bootstrap-deb:
	@scripts/bootstrap deb
