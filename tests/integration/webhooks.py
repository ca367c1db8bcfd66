"""What tests of webhooks share: a receiver whose answers are programmed."""

import contextlib
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.integration.peers import eventually

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOOPBACK = ("127.0.0.0/8",)


class Received:
    def __init__(self, method, path, headers, body):
        self.method, self.path, self.body = method, path, body
        self.headers = {name.lower(): value for name, value in headers.items()}

    @property
    def id(self):
        return self.headers.get("webhook-id") or self.headers.get("ce-id")

    @property
    def value(self):
        return json.loads(self.body)


class Receiver:
    """An HTTP server on loopback; `answer(request)` returns a status, or (status, headers).

    `requests` has what came, `connections` how many asked for something: a peer of another test,
    whose port this was before, may connect and say nothing that is HTTP.
    """

    def __init__(self, answer=None, host="127.0.0.1", port=0, tls=None, body=b""):
        self.answer = answer or (lambda request: 204)
        self.body = body
        self.requests = []
        self.connections = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            is_counted = False

            def do_POST(self):
                receiver.connections += not self.is_counted
                self.is_counted = True
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = Received(self.command, self.path, self.headers, body)
                receiver.requests.append(request)
                answer = receiver.answer(request)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in {"content-length": str(len(receiver.body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(receiver.body)

            do_OPTIONS = do_GET = do_POST

            def handle(self):
                try:
                    super().handle()
                except OSError:
                    pass  # the client has gone

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_):
                pass

        self.server = Server((host, port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.port}/hook"
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def served(app, port=0, **limits):
    """Serve an application by uvicorn in a thread; yields the port."""
    from p2pmsg.http import bind, make_server

    server = make_server(app, **limits)
    with bind("127.0.0.1", port) as place:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            eventually(lambda: server.started)
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def post(port, body, headers, path="/", timeout=60, method="POST"):
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
