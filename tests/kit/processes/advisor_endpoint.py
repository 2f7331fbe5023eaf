"""An advisor's endpoint of a process's own kind, which answers each round in its own way."""

import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "a-key-that-no-log-may-show"


def said(**given):
    text = json.dumps({"reason": "fewer cost less", **given})
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Advisor:
    """Answers by the round that it is asked about, until it dies.

    ``ways`` has an answer by round, a status, or the seconds that it hangs; ``otherwise`` is for
    the rest. Nobody hears more than the answer to round ``last``, if there is one.
    """

    def __init__(self, ways, *, otherwise, last=None):
        self.asked = []
        self.ways = ways
        self.otherwise = otherwise
        self.last = last
        advisor = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                advisor.answer(self, json.loads(content))

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def environment(self, directory):
        """What a coordinator that asks it is started with; the key lies in this directory."""
        key = directory / "advisor.key"
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
        return {
            "CHORALE_COORDINATOR_ADVISOR_URL": self.url,
            "CHORALE_COORDINATOR_ADVISOR_MODEL": "scripted",
            "CHORALE_COORDINATOR_ADVISOR_KEY_FILE": str(key),
        }

    def answer(self, handler, body):
        number = int(body["messages"][1]["content"].split()[1])
        self.asked.append((number, handler.headers["Authorization"], body))
        if number == self.last:
            # Before the answer, so that the next question finds nobody.
            self.die()
        way = self.ways.get(number, self.otherwise)
        if isinstance(way, HTTPStatus):
            handler.send_error(way)
            return
        if isinstance(way, int):
            time.sleep(way)
            return
        content = json.dumps(way).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def die(self):
        self.server.shutdown()
        self.server.server_close()
