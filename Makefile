# Forwards to Meson (tools/build holds the presets) and to the test runner. `make help` lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: all run test bench check format fuzz coverage soak install uninstall deb dist clean help

all: ## build the program: build/hutch
	@tools/deps build
	@tools/build release

run: ## build, then show what it does: a job, refusals, a death; a node, its sandboxes and their network
	@tools/deps build run
	@tools/build release
	@tools/demo build/hutch
	@tools/demo-node build/hutch build/run

test: ## everything; ends with "N passed, N failed, N skipped"
	@tools/deps build test
	@tools/build test asan-ubsan
	@tests/run

bench: all ## measure against bwrap, crun, runc, firejail, srt and plain fork+exec; nginx, haproxy, squid and other proxies
	@tools/deps bench
	@bench/run
	@bench/node
	@bench/egress
	@bench/state

check: ## format, clang and clang-tidy, include graph, source rules, shell syntax, spelling
	@tools/deps build test
	@tools/check

format: ## rewrite the C sources with clang-format
	@tools/check --fix-format

fuzz: ## each fuzz driver for FUZZ_SECONDS (60) seconds
	@tools/deps build test
	@tools/build fuzz
	@tools/fuzz build-fuzz

coverage: ## line coverage of unit and integration tests, as a table
	@tools/deps build test
	@tools/build release coverage
	@tools/coverage build-coverage

soak: ## the time-boxed loops of `make test` with their full counts
	@tools/deps build test
	@tools/build test asan-ubsan
	@tests/run --soak

install: all ## install to $(DESTDIR)$(PREFIX)
	@tools/install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove what install put there
	@tools/uninstall "$(DESTDIR)" "$(PREFIX)"

deb: all ## build-deb/hutch_VERSION_amd64.deb
	@packaging/build-deb

dist: all ## build-dist/: an archive with an installer, a wheel, an npm package; none of them needs a compiler
	@tools/deps dist
	@tools/build dist
	@packaging/build-dist

clean: ## remove every build directory
	rm -rf build build-*

help:
	@sed -n 's/^\([a-z]*\):[^#]*## /\1	/p' Makefile | expand -t 12
