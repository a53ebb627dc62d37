# Two commands, each with an environment of its own, on a machine with Python 3.11 or newer, pip and make:
#
#     make certify                         certify the reference model (no torch)
#     make certify TARGET=transformers     certify a real engine's allocator (adds torch and transformers)
#     make test                            run the tests (with torch, transformers and numba)
#
# TARGET is any target of `kvproof certify`; ARGS is handed on, e.g. make certify ARGS="--seed 7".
# The environments are made once and reused until pyproject.toml changes.  PYTHON chooses the interpreter.
#
# torch is pinned in pyproject.toml.  Where pip would fetch a torch with CUDA and the CPU build is
# enough, point pip at PyTorch's CPU wheel index (PIP_EXTRA_INDEX_URL; see the PyTorch install page).

PYTHON ?= python3
TARGET ?= reference
ARGS ?=

CERTIFY := .venv-certify
TEST := .venv-test
comma := ,

# What a target needs on top of the core: the stamp of the environment that has it.
NEEDS := $(CERTIFY)/installed$(if $(filter transformers%,$(TARGET)),-transformers)

.PHONY: certify test
.DELETE_ON_ERROR:

certify: $(NEEDS)
	$(CERTIFY)/bin/kvproof certify $(TARGET) $(ARGS)

test: $(TEST)/installed
	$(TEST)/bin/pytest -n auto $(ARGS)

$(CERTIFY)/installed: pyproject.toml
	$(call environment,$(CERTIFY),.)
	@touch $@

$(CERTIFY)/installed-transformers: $(CERTIFY)/installed
	$(call environment,$(CERTIFY),.[transformers])
	@touch $@

$(TEST)/installed: pyproject.toml
	$(call environment,$(TEST),.[gpu$(comma)transformers$(comma)numba$(comma)test])
	@touch $@

# $(call environment,FOLDER,REQUIREMENT): make the environment if it is not there, install into it (editable).
# A Python without ensurepip (some Linux packages split it off) makes an environment without pip;
# the pip beside it then installs from outside.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: '$(PYTHON)' is missing or older than Python 3.11, which kvproof needs." \
	         "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(1)/bin/python -c '' 2>/dev/null || { \
	    rm -rf $(1); echo "making $(1)"; \
	    $(PYTHON) -m venv $(1) >/dev/null 2>&1 || { rm -rf $(1); $(PYTHON) -m venv --without-pip $(1); }; }
	@echo "installing $(2) into $(1)"; \
	if $(1)/bin/python -m pip --version >/dev/null 2>&1; then pip="$(1)/bin/python -m pip"; \
	else pip="$(PYTHON) -m pip --python $(1)/bin/python"; fi; \
	$$pip install --quiet --disable-pip-version-check --editable '$(2)'
endef
