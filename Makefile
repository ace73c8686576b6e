# The short way into the build; CMakeLists.txt is the long one.
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)

# Recipes read these from the environment: a path may hold spaces and quotes, which make would paste into a command as they are.
export BUILD PREFIX DESTDIR JOBS

# A folder that `make demo` or `make test` has begun has no GPU kernels yet (QN_CUDA=LATER): they are compiled at first use, or by `make`.
later = $$([ -e "$$BUILD/CMakeCache.txt" ] || echo -DQN_CUDA=LATER)
now   = $$(! grep -qs '^QN_CUDA:STRING=LATER$$' "$$BUILD/CMakeCache.txt" || echo -DQN_CUDA=AUTO)
configure = cmake -S . -B "$$BUILD" -G Ninja -DCMAKE_INSTALL_PREFIX="$$PREFIX" --log-level=WARNING

.PHONY: all configure demo check test test-more test-all test-windows test-release fuzz soak install dist deb release clean format check-format

all: configure
	@cmake --build "$$BUILD" -j "$$JOBS"

configure:
	@cmake/need-packages.sh build
	@$(configure) $(now)

# The program alone, and two stories.
demo:
	@cmake/need-packages.sh build
	@$(configure) $(later)
	@cmake --build "$$BUILD" -j "$$JOBS" --target quern
	@tools/demo.sh "$$BUILD"

# For the edit cycle: unit tests and quern-check, without the longest.
check:
	@cmake/need-packages.sh build test
	@tests/run_suite.sh check

# The plain build and all of its tests.
test:
	@cmake/need-packages.sh build test
	@tests/run_suite.sh test

# What a change needs beyond `make test`: GPU kernels of other architectures, sanitizers, QN_FUZZ_SECONDS (3) for each fuzz target, ARM, macOS.
test-more:
	@cmake/need-packages.sh build test
	@tests/run_suite.sh more

test-all:
	@cmake/need-packages.sh build test
	@tests/run_suite.sh test more

# quern.exe, cross-compiled, under Wine: half a gigabyte of packages, not part of test-all yet.
test-windows:
	@cmake/need-packages.sh build test windows
	@tests/run_suite.sh windows

# What `make release` builds for Linux and macOS, started and compared with the plain build; Dockerfile's steps in a folder of Debian.
test-release:
	@cmake/need-packages.sh build test release
	@tests/run_suite.sh release

# Long fuzzing, under ASan and UBSan: QN_FUZZ_SECONDS (1800) of processor time for each target, QN_FUZZ_JOBS at a time. A run that is
# stopped goes on with what it found.
fuzz:
	@cmake/need-packages.sh build test
	@cmake -S . -B "$$BUILD/fuzz" --preset fuzz --log-level=WARNING
	@cmake --build "$$BUILD/fuzz" -j "$$JOBS" --target fuzz_targets
	@tests/fuzz_long.sh "$$BUILD/fuzz/tests" tests/fuzz "$$BUILD/fuzz/work"

# A thousand random requests through the scheduler in each configuration of its test: ten minutes on two cores. Then ten thousand through
# quern batch, which is killed three times: five minutes of processor time. A download of 2 GB from this machine, compared with curl's. A
# hundred thousand drawn chat templates, compared with jinja2: a quarter of an hour. Answers for 200 schemas: four minutes; 400 schemas of a
# benchmark's kinds and 5000 conditions: one. Ten thousand requests from asyncio, and two thousand through Ray, of whose two nodes one is
# killed: five minutes. A thousand through HAProxy, of whose two replicas one is killed and one stopped: two to four minutes. 100 seconds of
# clients that cut connections while models, keys and certificates change. Tasks of lm-evaluation-harness, compared with transformers. Vulkan's
# kernels and models on software drivers. And all GPU kernels for the oldest architecture.
soak: all
	@QN_SOAK=1000 "$$BUILD/tests/test_scheduler_random"
	@QN_SOAK=1 "$$BUILD/tests/test_golden_logits"
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/demo_model.sh
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/protocol_cuts.sh
	@QN_BATCH_REQUESTS=10000 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/batch_resume.sh
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/hub_large.sh
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/templates_jinja2.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_SOURCE_DIR="$$PWD" QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/corpus.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_SOURCE_DIR="$$PWD" QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/schema_kinds.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/protocol.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_SOURCE_DIR="$$PWD" QN_BIN="$$(cd "$$BUILD" && pwd)" QN_SANITIZE= bash tests/e2e/page.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_SOURCE_DIR="$$PWD" bash tests/test_python.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/haproxy.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/serve_soak.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/e2e/serve_lm_eval.sh || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/test_vulkan.sh lavapipe || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/test_vulkan.sh swiftshader || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/test_vulkan.sh spirv || [ $$? -eq 77 ]
	@QN_SOAK=1 QN_BIN="$$(cd "$$BUILD" && pwd)" bash tests/test_gpu_architectures.sh

install: all
	@cmake --install "$$BUILD"

# The source tarball of this commit, and Debian packages built from it.
dist:
	@cmake/need-packages.sh dist
	@tools/make_dist.sh "$$BUILD"

deb:
	@cmake/need-packages.sh build dist deb
	@tools/make_deb.sh "$$BUILD"

# Programs for every system in BUILD/release/out (SYSTEMS: some of them), wheels, hashes, files of package managers (tools/release).
release:
	@cmake/need-packages.sh build dist release windows
	@tools/release/make_release.sh "$$BUILD/release" $(SYSTEMS)

clean:
	@rm -rf -- "$$BUILD"

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h')

format:
	@clang-format -i $(SOURCES)

check-format:
	@clang-format --dry-run -Werror $(SOURCES)
