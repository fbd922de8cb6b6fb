"""The one build step that pyproject.toml cannot say: machine code of the runtime's native parts, for each platform, beside their text.

So a user's first call finds it instead of compiling it.  A package without it works as well: see thermit/runtime/native/objects.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from setuptools import Command, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent

# The package without its __init__, which imports PyTorch: nothing that is imported here needs it.
package = ModuleType("thermit")
package.__path__ = [str(ROOT / "thermit")]
sys.modules["thermit"] = package

from thermit.runtime.native import objects, parts  # noqa: E402


class BuildNative(Command):
    description = "compile the native parts of the runtime"
    user_options = [("build-lib=", None, "where the package is built")]
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        folder = Path(ROOT if self.editable_mode else str(self.build_lib), "thermit", "runtime", "native")
        folder.mkdir(parents=True, exist_ok=True)
        self.built = objects.build(parts.SOURCE, folder)

    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self.built]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


build.sub_commands = [*build.sub_commands, ("build_native", None)]
setup(cmdclass={"build_native": BuildNative})
