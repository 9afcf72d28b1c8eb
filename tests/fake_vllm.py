"""Stands in for ``vllm serve``: its routes, one process of its own, and a fault by its first argument.

ok: none. ends: with code 3 at once. silent: answers /health, and no generation after the second. deaf: ignores SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any

FAULT = sys.argv[1]
STATE: dict[str, Any] = {"version": "default", "generated": 0}


class Routes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"weight_version": STATE["version"]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        if self.path == "/update_weight_version":
            STATE["version"] = body["new_version"]
        if self.path == "/inference/v1/generate":
            STATE["generated"] += 1
            if FAULT == "silent" and STATE["generated"] > 2:
                Event().wait()
            choice = {
                "token_ids": [4],
                "logprobs": {"content": [{"token_id": 4, "logprob": -1.0}]},
                "finish_reason": "length",
                "weight_versions": [{"version": STATE["version"], "start": 0, "end": 1}],
            }
            self.answer({"choices": [choice]})
            return
        self.answer({})

    def answer(self, what: Any) -> None:
        data = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    if FAULT == "ends":
        sys.stderr.write("no such device\n")
        sys.exit(3)
    if FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.stdout.write(f"worker {worker.pid} of {os.environ['VLLM_SERVER_DEV_MODE']}{os.environ['PYTHONPATH'][-6:]}\n")
    sys.stdout.write("x" * 200_000 + "\n")  # more than a pipe holds
    sys.stdout.flush()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Routes)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
