"""Runs in the virtual environment of the stock client: `python sandbox_fusion_client.py URL`; prints what it reads."""

import json
import sys

from sandbox_fusion import RunCodeRequest, run_code

PROGRAMS = {
    "ok": "print(input())",
    "exit 3": "import sys; sys.exit(3)",
    "endless loop": "while True: pass",
    "memory hog": "hoard = [bytearray(16 << 20) for _ in range(64)]",
    "network": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
    "files": "open('out', 'w').write(open('in').read() * 2)",
}


def told(name: str, code: str) -> dict:
    seconds = 3 if name == "endless loop" else 30  # others may be slow on a busy machine
    request = RunCodeRequest(
        code=code, language="python", stdin="hello", run_timeout=seconds, files={"in": "YWI="}, fetch_files=["out"]
    )
    response = run_code(request, endpoint=sys.argv[1], max_attempts=1, client_timeout=60)
    run = response.run_result
    kept = {"status": response.status.value, "run": run.status.value, "code": run.return_code}
    return kept | {"stdout": run.stdout, "error": run.stderr.strip().rpartition("\n")[2], "files": response.files}


json.dump({name: told(name, code) for name, code in PROGRAMS.items()}, sys.stdout)
