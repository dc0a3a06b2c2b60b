"""Run tests beside the code in one process. Shipped into the sandbox: standard library only.

The code arrives first and is imported; the tests and the key of the verdicts are read after that.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, NoReturn

from rlhf.reward.code.run_tests import Verdicts, failure, prepare, read_request, run_steps, take_output


def script_main() -> NoReturn:
    """Import the code, read the key, run the tests."""
    source, output = os.dup(0), take_output()
    first = read_request(source)
    module: Any = types.ModuleType("solution")
    sys.modules["solution"] = module
    namespace = module.__dict__ if first["together"] else {}
    why = prepare(first["modules"], first["setup"], namespace)
    broken = "" if why else failure(first["code"], module.__dict__)
    rest = read_request(source)
    verdicts = Verdicts(rest["key"], output)
    if not broken and rest["needed"] and not any(hasattr(module, name) for name in rest["needed"]):
        broken = f"it defines none of {', '.join(rest['needed'])}"
    if why or broken:
        verdicts.write("setup" if why else "code", why or f"the code does not run: {broken}")
    else:
        namespace["__name__"] = "__main__"
        run_steps(rest["steps"], namespace, verdicts, lambda: "")
    os._exit(0)
