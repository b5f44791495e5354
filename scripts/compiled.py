"""The hook of a compiled wheel: modules that every event passes through, as extension modules made by mypyc.

    DOVETAIL_COMPILED=1 pip wheel --no-deps .    a wheel for this platform and this version of Python
    make compiled                                the same, unpacked into build/compiled

Without the variable nothing is compiled, and the wheel is pure Python. A compiled wheel holds the Python files too:
an extension is found before the file of its name, and where it is missing, the file is imported.

The modules are named in pyproject.toml, and tests/test_compiled.py holds them to three rules:
- No import cycle goes through them: mypyc's classes are there only once their module has been imported.
- Whoever subclasses one of their classes is one of them: an interpreted class cannot.
- Records that logs or messages hold are elsewhere: decoders need the types of fields, which mypyc does not keep.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: How it is compiled, with compilers that know these words:
#: - mypyc gives every function a name that other libraries could replace, so a compiler may neither put one into
#:   another nor call it directly. Nobody replaces them: they are hidden.
#: - mypyc looks names and fields up anew each time. `inline_caches.h` remembers where they were, as CPython does.
#: - Each module is a file of its own, so that all processors have something to compile. One file for all is four
#:   times as long.
SETUP = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

WORDS = ["-fvisibility=hidden", "-fno-semantic-interposition"]
REMEMBERS = ["-include", os.path.abspath("inline_caches.h")]  # what mypyc made, and not its own library
extensions = mypycify(
    sys.argv.pop().splitlines(), opt_level="2", debug_level="0", multi_file=True, group_name="dovetail"
)


class Together(build_ext):
    def build_extensions(self):
        compiler = self.compiler
        if compiler.compiler_type != "unix":
            return build_ext.build_extensions(self)
        for extension in self.extensions:
            extension.extra_compile_args += WORDS

        def compile(sources, output_dir, macros, include_dirs, debug, extra_postargs, depends, extra_preargs=None):
            macros, objects, extra_postargs, options, build = compiler._setup_compile(
                output_dir, macros, include_dirs, sources, depends, extra_postargs
            )
            words = compiler._get_cc_args(options, debug, extra_preargs)

            def one(result):
                source, ending = build[result]
                more = REMEMBERS if os.path.basename(source).startswith("__native_") else []
                compiler._compile(result, source, ending, words, extra_postargs + more, options)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(one, build))
            return objects

        compiler.compile = compile
        build_ext.build_extensions(self)


setup(name="dovetail", packages=[], ext_modules=extensions, cmdclass={"build_ext": Together})
"""


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extensions to a wheel."""

    PLUGIN_NAME = "compiled"

    def dependencies(self) -> list[str]:
        """What is needed to build: the compiler, and the packages whose types it reads."""
        typed = ("msgspec", "numpy")
        needed = [d for d in self.metadata.core.dependencies if d.startswith(typed)]
        return ["mypy[mypyc]>=1.13", *needed] if self._wanted() else []

    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("DOVETAIL_COMPILED", "") not in ("", "0")

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile a copy of the package; an editable install stays as it is, since what is edited must count."""
        if not self._wanted() or version == "editable":
            return
        root, work = Path(self.root), Path(self.root, "build", "mypyc")
        shutil.rmtree(work / "dovetail", ignore_errors=True)
        shutil.copytree(root / "src" / "dovetail", work / "dovetail", ignore=shutil.ignore_patterns("__pycache__"))
        (work / "setup.py").write_text(SETUP, encoding="utf-8")
        shutil.copy(root / "scripts" / "inline_caches.h", work)
        files = [f"dovetail/{name.replace('.', '/')}.py" for name in self.config["modules"]]
        words = ["--config-file", str(root / "pyproject.toml"), *files]
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "\n".join(words)]
        subprocess.run(command, cwd=work, env={**os.environ, "MYPYPATH": str(work)}, check=True)
        for pattern in ("*__mypyc*", "dovetail/**/*"):
            for path in work.glob(pattern):
                if path.suffix in (".so", ".pyd"):
                    build_data["force_include"][str(path)] = str(path.relative_to(work))
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
