"""Targets by name: what ``kvproof certify`` can be pointed at.

Built-in names are ``reference``, ``reference:MUTANT``, ``transformers`` and ``gpu``.  Anything else is written
``package.module:factory`` and imported.  Only :func:`resolve_builtin` may be used for a name that was read
from a file, so that opening a file never imports code it names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kvproof.model.interface import Configuration, Factory, capabilities_of
from kvproof.model.mutants import MUTANTS

REFERENCE = "reference"
"""Name of the model as a target; ``reference:NAME`` is the model with one rule broken."""
GPU = "gpu"
"""Name of the backend as a target; ``gpu:NAME`` is the backend with one line of its ordering broken."""


class TargetError(ValueError):
    """A target that cannot be found, imported or built.  The message is one line and ends with the repair."""


@dataclass(frozen=True, slots=True)
class Target:
    """A built-in target.

    ``factory`` is ``module:attribute``, imported when it is asked for.  ``needs`` names the top-level modules that
    must be installed first, ``install`` the command that does so.  ``rule`` is the rule that a mutant must break.
    ``capabilities`` is written down where building one is slow to import; ``None`` means that one is built to ask.
    """

    name: str
    description: str
    factory: str
    needs: tuple[str, ...] = ()
    install: str | None = None
    rule: str | None = None
    capabilities: tuple[str, ...] | None = None

    def missing(self) -> tuple[str, ...]:
        """Needed modules that are not installed."""
        return tuple(module for module in self.needs if not _installed(module))

    def load(self) -> Factory:
        """Import the factory.  :class:`TargetError` names what to install when something is missing."""
        if missing := self.missing():
            raise TargetError(f"target {self.name!r} needs {', '.join(missing)}: {self.install}")
        if self.rule is not None:
            return MUTANTS[self.name.partition(":")[2]].build
        try:
            return _factory_at(self.factory, self.name)
        except ImportError as error:
            raise TargetError(f"target {self.name!r} cannot be imported: {_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Row:
    """One line of ``kvproof targets``.  ``capabilities`` is empty where the target is not available.

    ``available`` says that what it needs is installed; only building it shows that the versions fit.
    """

    name: str
    description: str
    capabilities: tuple[str, ...]
    available: bool
    install: str | None
    rule: str | None


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            REFERENCE,
            "the executable model, correct by construction",
            "kvproof.model.reference:make_reference",
        ),
        Target(
            "transformers",
            "the KV cache of transformers 5.24 continuous batching, on the CPU",
            "kvproof.checks.adapters.transformers:make_transformers",
            needs=("torch", "transformers"),
            install="pip install 'kvproof[transformers]'",
            capabilities=("cache", "copies", "forks", "rows"),
        ),
        Target(
            "gpu",
            "kvproof's own backend on tensors, streams and events (simulated where there is no GPU)",
            "kvproof.gpu.backend:make_gpu",
            needs=("torch",),
            install="pip install 'kvproof[gpu]'",
        ),
    )
}
"""Built-in targets without the mutants; :func:`builtin_targets` has those as well."""


def builtin_targets() -> Mapping[str, Target]:
    """Every built-in target by name, each ``reference:MUTANT`` included."""
    mutants = {
        (name := f"{REFERENCE}:{mutant.name}"): Target(
            name, f"the model broken: {mutant.what}", TARGETS[REFERENCE].factory, rule=mutant.rule
        )
        for mutant in MUTANTS.values()
    }
    return {**TARGETS, **mutants}


def resolve_builtin(name: str) -> Factory:
    """The factory of a built-in target: the only names that a trace's header may use."""
    if name.startswith(f"{GPU}:"):
        return _gpu_mutant(name)
    targets = builtin_targets()
    target = targets.get(name)
    if target is None:
        if name.startswith(f"{REFERENCE}:"):
            raise TargetError(f"target {name!r}: the model has no such mutant; choose one of {', '.join(MUTANTS)}")
        raise TargetError(
            f"target {name!r} is not built in; choose one of {', '.join(TARGETS)}, {REFERENCE}:MUTANT, "
            "or name your own as package.module:factory"
        )
    return target.load()


def resolve(target: str) -> Factory:
    """The factory that ``target`` names: a built-in name, or ``package.module:factory``.

    A module is looked for where Python looks, and in the working directory after that.
    Raises :class:`TargetError`, whose message ends with the repair.
    """
    module, colon, attribute = target.partition(":")
    if not colon or module in (REFERENCE, GPU) or target in TARGETS:
        return resolve_builtin(target)
    if not attribute or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise TargetError(f"target {target!r} is not a name: write it as package.module:factory")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return _factory_at(target, target)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise TargetError(
                f"target {target!r}: there is no module {error.name!r}; install it, or run where it can be imported "
                f"(now: {here})"
            ) from error
        raise TargetError(
            f"target {target!r}: its module needs {error.name!r}, which is not installed; install it first"
        ) from error
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"target {target!r}: importing {module!r} raised {_line(error)}; make `import {module}` work first"
        ) from error


def _gpu_mutant(name: str) -> Factory:
    """The factory of ``gpu:MUTANT``; the mutants are listed in ``gpu/README.md``."""
    TARGETS[GPU].load()  # says what to install
    mutants = import_module("kvproof.gpu.mutants")
    if (mutant := name.partition(":")[2]) not in mutants.MUTANTS:
        raise TargetError(f"target {name!r}: there is no such mutant; choose one of {', '.join(mutants.MUTANTS)}")
    factory: Factory = mutants.make_mutant(mutant)
    return factory


def list_targets() -> list[Row]:
    """One row for every built-in target; one is built to ask for its capabilities where they are not written down."""
    return [_row(target) for target in builtin_targets().values()]


def _row(target: Target) -> Row:
    capabilities: tuple[str, ...] = ()
    available = not target.missing()
    if available:
        try:
            capabilities = target.capabilities or _ask(target)
        except TargetError:
            available = False
    return Row(target.name, target.description, capabilities, available, target.install, target.rule)


def _ask(target: Target) -> tuple[str, ...]:
    return tuple(sorted(capabilities_of(target.load()(Configuration(state_slots=2)))))


def _factory_at(place: str, target: str) -> Factory:
    """The callable at ``module:attribute``.  Import errors pass through; the rest is a :class:`TargetError`."""
    name, _, path = place.partition(":")
    found: Any = import_module(name)
    for part in path.split("."):
        if not hasattr(found, part):
            offered = ", ".join(_callables(found)) or "none"
            raise TargetError(
                f"target {target!r}: {name!r} has no {path!r}; "
                f"name a factory(configuration) there (callables: {offered})"
            )
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(
            f"target {target!r} is a {type(found).__name__}, not callable: "
            "name a function that takes a Configuration and returns an allocator"
        )
    factory: Factory = found
    return factory


def _callables(module: Any) -> Iterator[str]:
    """Names that a user may have meant: public callables that the module itself defines."""
    return (
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
