"""What is not part of a plain installation: packages of an extra, and modules that are loaded when they are named.

Rules of this file: it is asked before work begins, so that nothing is lost for want of a package. An error names the
package, what it is for, and the command that installs it. It imports nothing but the errors.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .errors import DovetailError

__all__ = ["has", "load", "need"]

#: Package -> its name for pip, where that is another.
_CALLED = {"grpc": "grpcio", "mlperf_loadgen": "mlcommons-loadgen", "PIL": "pillow", "sklearn": "scikit-learn"}


def has(package: str) -> bool:
    """Whether a package is installed; it is not imported."""
    return importlib.util.find_spec(package) is not None


def need(package: str, *, extra: str, for_: str) -> None:
    """Raise unless the package is installed: `for_` is what needs it, such as ``"--plot"``."""
    if not has(package):
        raise DovetailError(
            f"{for_} needs {_CALLED.get(package, package)}, which is not installed; "
            f"run: pip install 'dovetail[{extra}]'"
        )


def load(target: str) -> Any:
    """What ``module:name`` names, below this package: ``"lab.rivals.esg:make"``."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)
