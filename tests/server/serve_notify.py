"""What quern serve tells systemd: ready, reloading and ready again, stopping, and then nothing more.

    serve_notify.py MODEL FOLDER

FOLDER is empty; files are made in it. QN_BIN names the folder of quern.
"""
import asyncio
import os
import signal
import socket
import sys
import time

from serve_process import LIMIT, Connection, Server

TEXT = "/v1/completions"


class Notified(Server):
    """A server whose states for systemd are received."""

    def __init__(self, folder, *options):
        self.path = os.path.join(folder, "notify")
        self.states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.states.bind(self.path)
        self.states.settimeout(LIMIT)
        super().__init__(None, *options, environment={"NOTIFY_SOCKET": self.path})

    def wait_until_ready(self):
        self.expect("READY=1")
        self.port = int(self.text().split("http://127.0.0.1:")[1].split("/")[0].split()[0])

    def expect(self, state):
        found = self.states.recv(1000).decode()
        assert found.split("\n")[0] == state, f"expected {state}, found {found}"

    def expect_no_more(self):
        self.states.setblocking(False)
        try:
            raise AssertionError(f"after the end: {self.states.recv(1000)}")
        except BlockingIOError:
            self.states.close()
            os.remove(self.path)

    def reload(self):
        self.process.send_signal(signal.SIGHUP)


def check_reload(folder, *options):
    with Notified(folder, *options) as server:
        for _ in range(2):
            server.reload()
            server.expect("RELOADING=1")
            server.expect("READY=1")
        server.stop()
        server.expect("STOPPING=1")
        server.expect_no_more()


def check_reload_while_draining(folder, model):
    """The log is opened again, but no state is sent: the answer that the server waits for ends when the client leaves."""
    log = os.path.join(folder, "log")
    with Notified(folder, "-m", model, "-c", "2048", "-t", "1", "--access-log", log) as server:
        async def run():
            client = Connection(server.port)
            await client.send("POST", TEXT, {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "n": 16, "stream": True})
            await client.reader.readuntil(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            server.expect("STOPPING=1")
            os.rename(log, log + ".1")
            server.reload()
            end = time.monotonic() + LIMIT
            while not os.path.exists(log):
                assert time.monotonic() < end, "the log was not opened again"
                time.sleep(0.01)
            assert server.process.poll() is None
            client.close()

        asyncio.run(run())
        assert server.process.wait(LIMIT) == 0, server.text()
        server.expect_no_more()


def main():
    model, folder = sys.argv[1:]
    empty = os.path.join(folder, "models")
    os.mkdir(empty)
    check_reload(folder, "-m", model)
    check_reload(folder, "--models-dir", empty)
    check_reload_while_draining(folder, model)


main()
