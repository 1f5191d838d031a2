"""Copies docstrings of fields into their descriptions, for JSON Schema and the reference.

pydantic can do this when a class is created (``use_attribute_docstrings``), by parsing its source.
That would take a third of the time to load all models, in every process. So the lab does it when a
schema is requested.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final
from weakref import WeakSet

from lab.core.base import Model

_SEEN: Final[WeakSet[type[Model]]] = WeakSet()


def document() -> None:
    """Describe the fields of all loaded models; existing descriptions stay."""
    models = [m for m in _below(Model) if _describe(m)]
    if not models:
        return
    everywhere = list(_below(Model))
    for model in everywhere:  # a model's built schema includes the schemas of its fields' models
        if "__pydantic_core_schema__" in vars(model):
            del model.__pydantic_core_schema__
    for model in everywhere:
        model.model_rebuild(force=True)


def _below(model: type[Model]) -> Iterator[type[Model]]:
    for child in model.__subclasses__():
        yield child
        yield from _below(child)


def _describe(model: type[Model]) -> bool:
    """Set missing descriptions; return whether there were any."""
    model.model_rebuild()
    fields = model.model_fields
    if model in _SEEN:
        return False
    _SEEN.add(model)
    changed = False
    for name, text in _docstrings(model):
        if name in fields and fields[name].description is None:
            fields[name].description = text
            changed = True
    return changed


def _docstrings(model: type[Model]) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each documented field, of the model and its bases."""
    for base in model.__mro__:
        if base is Model or not issubclass(base, Model):
            continue
        body = _bodies(base.__module__)[base.__name__]
        for statement, following in pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                yield statement.target.id, inspect.cleandoc(following.value.value)


@cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module. ``inspect.getsource`` of a class would parse
    the whole module for each class."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
