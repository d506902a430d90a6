"""The public names: sorted, resolvable, documented, and those of the fixed front door."""

import inspect

import pytest

import naviscope_ingest
import naviscope_ingest.endpoint
import naviscope_ingest.faults
import naviscope_ingest.logs
import naviscope_ingest.metrics
import naviscope_ingest.settings
import naviscope_ingest.testing
import naviscope_ingest.tracing
import naviscope_spi

PACKAGES = [
    naviscope_ingest,
    naviscope_spi,
    naviscope_ingest.endpoint,
    naviscope_ingest.faults,
    naviscope_ingest.logs,
    naviscope_ingest.metrics,
    naviscope_ingest.settings,
    naviscope_ingest.testing,
    naviscope_ingest.tracing,
]

FRONT_DOOR = {
    "Deferred",
    "Dependency",
    "Executed",
    "Fatal",
    "IngestRuntime",
    "IntakeHandle",
    "MemoryBus",
    "MemorySink",
    "MemoryStore",
    "Message",
    "Resource",
    "RuntimeComponents",
    "RuntimeConfig",
    "Skipped",
}


def in_order(name):
    """Sort as the linter does: constants, then classes, then functions."""
    if name.isupper():
        return 0, name
    return (1, name) if name[0].isupper() else (2, name)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_names_are_sorted_and_unique(package):
    assert list(package.__all__) == sorted(set(package.__all__), key=in_order)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_resolves(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_class_and_function_has_a_docstring(package):
    things = {name: getattr(package, name) for name in package.__all__}
    written = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert len(written) > len(things) // 2
    assert [name for name, thing in written.items() if not (thing.__dict__.get("__doc__") or thing.__doc__)] == []


@pytest.mark.parametrize("package", [naviscope_ingest, naviscope_spi], ids=lambda package: package.__name__)
def test_every_public_method_has_a_docstring(package):
    bare = [
        f"{name}.{method}"
        for name in package.__all__
        if inspect.isclass(owner := getattr(package, name))
        for method, function in vars(owner).items()
        if not method.startswith("_")
        and (inspect.isfunction(function) or isinstance(function, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(owner, method))
    ]
    assert bare == []


def test_the_front_door_is_complete():
    assert set(naviscope_ingest.__all__) >= FRONT_DOOR


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_star_import_brings_the_public_names_and_no_others(package):
    found: dict[str, object] = {}
    exec(f"from {package.__name__} import *", found)
    assert found.keys() - {"__builtins__"} == set(package.__all__)


def test_what_both_packages_export_is_the_same_thing():
    shared = set(naviscope_ingest.__all__) & set(naviscope_spi.__all__)
    assert "Message" in shared
    assert all(getattr(naviscope_ingest, name) is getattr(naviscope_spi, name) for name in shared)
