"""An application: the workflows that are served together, and how a `module:attribute` target is found."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from ..errors import DeclarationError, DovetailError
from .graph import Graph, StageSpec
from .stage import Stage
from .trace import Workflow

__all__ = ["App", "load_target", "target_folder"]


class App:
    """Workflows that share devices: ``app = App(ocr, moderate)``. An App stands for its workflows: ``App(a, b)``."""

    def __init__(self, *parts: Workflow | App, name: str = "app") -> None:
        self.name = name
        self.workflows: dict[str, Workflow] = {}
        self.stages: dict[str, Stage] = {}
        self._specs: dict[str, StageSpec] = {}
        if not parts:
            raise DeclarationError("an App needs at least one workflow: App(my_workflow)")
        workflows: list[Workflow] = []
        for part in parts:
            if not isinstance(part, Workflow | App):
                raise DeclarationError(
                    f"App(...) takes workflows, not {part!r}; decorate the function with @workflow"
                )
            workflows += part.workflows.values() if isinstance(part, App) else [part]
        for w in workflows:
            if self.workflows.get(w.name) is w:
                continue  # two of the apps have it
            if w.name in self.workflows:
                raise DeclarationError(f"two workflows are named {w.name!r}; give one another name with name=...")
            self.workflows[w.name] = w
            for stage in w.stages.values():
                if self.stages.setdefault(stage.name, stage) is not stage:
                    raise DeclarationError(
                        f"two stages are named {stage.name!r} in this app; give one another name with name=..., or "
                        f"use the same stage object in both workflows"
                    )
            for spec in w.graph.stages:
                if self._specs.setdefault(spec.name, spec) != spec:
                    raise DeclarationError(
                        f"stage {spec.name!r} is in two workflows of which one declares a slice; declare share= and "
                        f"quota= at the stage"
                    )

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The workflows as plain data."""
        return tuple(w.graph for w in self.workflows.values())

    @property
    def specs(self) -> tuple[StageSpec, ...]:
        """All stages as plain data."""
        return tuple(self._specs.values())


def load_target(target: str) -> App:
    """The App (or lone workflow, as an App) that ``module:attribute`` names. The working directory is searched.

    Several targets with commas between them are one App.
    """
    if "," in target:
        return App(*(load_target(one) for one in target.split(",")))
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise DeclarationError(f"target {target!r} must be module:attribute, for example examples.quickstart:app")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").replace("/", ".")
        raise DeclarationError(f"target {target!r} names a file; write it as a module: {dotted}:{attribute}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise DeclarationError(
                f"there is no module {error.name!r} (target {target!r}); run from the directory that holds it, or "
                f"install it"
            ) from None
        raise
    except DovetailError as error:
        raise type(error)(*(f"in {module_name}: {error}", *error.args[1:])) from error
    try:
        found = getattr(module, attribute)
    except AttributeError:
        names = sorted(n for n, v in vars(module).items() if isinstance(v, App | Workflow))
        hint = f"it has: {', '.join(names)}" if names else "it has no App and no workflow"
        raise DeclarationError(f"module {module_name!r} has no {attribute!r}; {hint}") from None
    if isinstance(found, Workflow):
        return App(found, name=found.name)
    if not isinstance(found, App):
        raise DeclarationError(f"{target!r} is {type(found).__name__}, not an App or a workflow")
    return found


def target_folder(target: str) -> Path | None:
    """Where the module of a target that was loaded lies; None if it has no file."""
    module = sys.modules.get(target.partition(",")[0].partition(":")[0])
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).absolute().parent
