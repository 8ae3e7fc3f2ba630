"""What pip runs when it installs the project: it compiles the recurrent layers' loops, where there is a C++
compiler.

Without one the project is complete and slower; `python -m seqloom.native` says why, and makes up for it
later.
"""

from __future__ import annotations

import platform
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """For a wheel, and for the editable one."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "src" / "seqloom" / "native"
        build = runpy.run_path(str(folder / "build.py"))["build"]
        try:
            made = build(folder)
        except (OSError, ValueError) as error:  # ValueError: a CXX that no shell would read
            self.app.display_warning(f"the compiled loops are left out: {error}")
            return
        build_data["artifacts"] += [f"/{path.relative_to(self.root)}" for path in made]
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-linux_{platform.machine()}"
