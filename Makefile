# Bare `make` tells what there is.

support := tests/support

.PHONY: help demo test soak lint bench bench-full micro instructions up down

help:
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/  make \1\t\2/p' Makefile

demo: ## teapots: a service that is killed, a broker that goes away, and nothing lost
	@set -e; if docker info >/dev/null 2>&1; then eval "$$($(support)/up.sh)"; export TOA_OUTBOX_MONGODB TOA_OUTBOX_AMQP; \
	else $(support)/install.sh; fi; \
	cargo run --release --example teapots

test: ## all tests, against private servers that it installs
	@$(support)/install.sh libfaketime foreign
	cargo test --no-fail-fast

soak: ## the same in release mode, with the long runs
	@$(support)/install.sh libfaketime foreign
	SOAK=1 cargo test --release -- --nocapture

lint: ## format, clippy, documentation, compose file
	cargo fmt --check
	cargo clippy --all-targets --features micro -- -D warnings
	cargo check --no-default-features --all-targets
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	@if command -v docker-compose >/dev/null; then docker-compose config -q; fi

bench: ## how fast it is beside the raw servers, in under ten minutes; BENCH=drain for one figure
	@$(support)/install.sh
	cargo bench --bench bench

bench-full: ## the same with all figures, at their full sizes
	@$(support)/install.sh
	FULL=1 cargo bench --bench bench

micro: ## the steps of a row within the process, by the clock
	cargo bench --features micro --bench micro

instructions: ## the same by the instruction, under valgrind; busy machines may be compared
	@$(support)/install.sh valgrind
	INSTRUCTIONS=1 cargo bench --features micro --bench micro

up: ## start a MongoDB and a RabbitMQ to play with
	@$(support)/up.sh

down: ## end them and forget their data
	@$(support)/down.sh
