"""Three small programs for rl.toml: a server that generates, one that ships batches, one that trains on them."""

from __future__ import annotations

import http.server
import json
import os
import random
import sys
import time
import urllib.request
from pathlib import Path

BATCHES = 5
ROLLOUTS = Path("rollouts")


class Handler(http.server.BaseHTTPRequestHandler):
    """/health, /generate and /metrics."""

    tokens = 0
    running = 0

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/health":
            body = json.dumps({"status": "ok"})
        elif self.path == "/metrics":
            body = f"generated_tokens_total {Handler.tokens}\nrunning_requests {Handler.running}\n"
        else:
            Handler.running += 1
            body = json.dumps({"tokens": random.choices(range(32), k=8)})
            Handler.tokens += 8
            Handler.running -= 1
        data = body.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, form: str, *values: object) -> None:
        """Say nothing."""


def inference(port: int) -> None:
    """Serve for ever."""
    print(f"serving on {port}")
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def orchestrator(port: int) -> None:
    """Ship batches of completions, each in one file."""
    ROLLOUTS.mkdir(exist_ok=True)
    for old in ROLLOUTS.glob("*.json"):
        old.unlink()
    print("orchestrator is up")
    for batch in range(BATCHES):
        if batch == 2 and os.environ.get("HOW") == "die":
            raise ValueError("no environment is called wordle")
        while batch == 2 and os.environ.get("HOW") == "hang":
            time.sleep(1.0)  # noqa: TID251 - somebody else's program
        completions = []
        for _ in range(16):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/generate", timeout=10.0) as answer:
                completions.append(json.load(answer)["tokens"])
        part = ROLLOUTS / f".{batch}"
        part.write_text(json.dumps(completions))
        part.rename(ROLLOUTS / f"{batch}.json")
        print(f"shipped batch {batch}")
        time.sleep(0.2)  # noqa: TID251 - somebody else's program


def trainer() -> None:
    """Train on one batch after the other, and wait for each without a limit, as some trainers do."""
    for batch in range(BATCHES):
        print("Waiting for training batch to arrive")
        path = ROLLOUTS / f"{batch}.json"
        while not path.exists():
            time.sleep(0.05)  # noqa: TID251 - somebody else's program
        mean = sum(map(sum, json.loads(path.read_text()))) / (16 * 8)
        print(f"step {batch} reward {mean:.3f}")


if __name__ == "__main__":
    {"inference": inference, "orchestrator": orchestrator, "trainer": trainer}[sys.argv[1]](*map(int, sys.argv[2:]))
