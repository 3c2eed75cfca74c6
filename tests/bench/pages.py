"""A headless Chromium for benchmarks of pages, over the WebDriver protocol of chromedriver (`scripts/setup.sh --test` installs both)."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request

ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"]
TIMEOUT_S = 120


class Browser:
    """A browser with one window. Used with `with`, which ends it."""

    def __init__(self):
        if shutil.which("chromedriver") is None:
            sys.exit("chromedriver is missing: scripts/setup.sh --test installs it")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ports = (found[1] for line in self.driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        self.url = f"http://127.0.0.1:{next(ports)}/session"
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": ARGUMENTS}}
        self.url += "/" + self.call("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call("", method="DELETE")
        self.driver.terminate()
        self.driver.wait()

    def call(self, path, body=None, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        # Not through a proxy.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        self.call("/url", {"url": url})

    def run(self, script):
        """Runs a function body in the page and returns its value."""
        return self.call("/execute/sync", {"script": script, "args": []})

    def clock_offset_s(self):
        """Returns CLOCK_MONOTONIC minus the page's `performance.now()`, and the error bound: half of the shortest of 20 round trips."""
        found = []
        for _ in range(20):
            before = time.monotonic()
            now_s = self.run("return performance.now()") / 1e3
            after = time.monotonic()
            found.append(((after - before) / 2, (before + after) / 2 - now_s))
        bound, offset = min(found)
        return offset, bound
