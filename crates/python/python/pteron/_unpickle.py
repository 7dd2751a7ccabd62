"""What pickled objects are made again with."""

from typing import Any

from ._pteron import Method, Module


def module(source: Any, options: dict[str, Any]) -> Module:
    """A program that is opened when it is first needed."""
    return Module(source, **options)


def method(module: Module, name: str) -> Method:
    """A method of it."""
    return module.method(name)
