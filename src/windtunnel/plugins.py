"""Finds Python objects that a configuration names as `module:attribute`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module

from windtunnel.errors import InputError, PluginError, closest


def load_object(name: str, field: str, builtin: Sequence[str]) -> object:
    """The object called `module:attribute`.

    Args:
        field: configuration field that holds the name, for errors.
        builtin: names that the field takes besides.

    Raises:
        InputError: the name is neither, or nothing is there. An exception that the module raises while it is
            imported is the cause of it.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise InputError(f"unknown {name!r}: {closest(name, builtin)}; or module:attribute", field=field)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise InputError(f"{name!r}: there is no module {error.name!r} to import", field=field) from None
        raise InputError(f"{name!r}: importing {module_name!r} failed: {error}", field=field) from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{name!r}: importing {module_name!r} failed: {error!r}", field=field) from error
    found: object = module
    place = module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = [entry for entry in vars(found) if not entry.startswith("_")] if hasattr(found, "__dict__") else []
            hint = f"; {closest(part, own)}" if own else ""
            raise InputError(f"{name!r}: {place!r} has no {part!r}{hint}", field=field)
        found = getattr(found, part)
        place += (":" if place == module_name else ".") + part
    return found


def make_object(factory: Callable[..., object], name: str, arguments: dict[str, int]) -> object:
    """What a user's class or function makes."""
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{name}: making it raised {error!r}") from error


def parameters_of(factory: Callable[..., object]) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except ValueError:  # some builtins do not tell
        return []
