"""Functions that recreate pickled objects."""

from typing import Any

from ._pteron import Method, Module


def module(source: Any, options: dict[str, Any]) -> Module:
    """A program that is opened on first use."""
    return Module(source, **options)


def method(module: Module, name: str) -> Method:
    """A method of a program."""
    return module.method(name)
