"""Measures how smooth a report is in a browser: opens it, drags over the first diagram like a hand, zooms in and back out.

    python3 report_zoom.py REPORT.html [TIMES] [LIMIT in ms]

Prints the time until the page is ready, the frame times while the pointer moves, and the time of a zoom. Fails if the page becomes ready
after the limit. Needs chromedriver.
"""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

page, times = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 10
limit_ms = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))


def call(path, body=None, method="POST"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/session{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["value"]


def run(script):
    return call(f"/{session}/execute/sync", {"script": script, "args": []})


def shown(what, times_ms):
    times_ms = sorted(times_ms)
    at = lambda share: times_ms[min(len(times_ms) - 1, int(share * len(times_ms)))]
    print(f"{what}: median {at(0.5):.1f} ms, 95 % {at(0.95):.1f} ms, longest {times_ms[-1]:.1f} ms of {len(times_ms)}")


arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"]
wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
session = call("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
try:
    call(f"/{session}/url", {"url": page.as_uri()})
    ready = run("return [document.documentElement.dataset.ready, performance.getEntriesByType('navigation')[0].duration]")
    assert ready[0] == "yes", ready
    print(f"open: {ready[1]:.0f} ms; {page.stat().st_size / 1e6:.1f} MB, {run('return JSON.stringify(performance.memory.usedJSHeapSize)')} B of heap")
    assert ready[1] <= limit_ms, f"open: {ready[1]:.0f} ms > {limit_ms:.0f} ms"
    box = run("""const over = document.querySelector('#panels .u-over'); over.scrollIntoView({ block: 'center' });
        const at = over.getBoundingClientRect(); return [at.left, at.top, at.width, at.height].map(Math.round)""")
    run("""window.frames_ms = []; let before = performance.now();
        const each = now => { frames_ms.push(now - before); before = now; requestAnimationFrame(each) };
        requestAnimationFrame(each);
        window.tasks_ms = [];
        new PerformanceObserver(list => tasks_ms.push(...list.getEntries().map(entry => entry.duration))).observe({ type: 'longtask' })""")
    zooms = []
    for nth in range(times):
        left, right = box[0] + box[2] * (0.2 + 0.02 * nth), box[0] + box[2] * (0.6 - 0.01 * nth)
        height = int(box[1] + box[3] / 2)
        move = lambda x, ms: {"type": "pointerMove", "duration": ms, "x": int(x), "y": height, "origin": "viewport"}
        hand = [move(left, 0), {"type": "pointerDown", "button": 0}, move(right, 300), {"type": "pointerUp", "button": 0}]
        call(f"/{session}/actions", {"actions": [{"type": "pointer", "id": "hand", "actions": hand}]})
        # The same with a script: the cost of one zoom and of the way back, until the next frame is drawn.
        zooms += call(f"/{session}/execute/async", {"script": """const done = arguments[0], over = document.querySelector('#panels .u-over');
            const begin = performance.now();
            over.dispatchEvent(new MouseEvent('dblclick', { bubbles: true }));
            requestAnimationFrame(() => requestAnimationFrame(() => done([performance.now() - begin])))""", "args": []})
    shown("frames while a hand zooms", run("return frames_ms"))
    shown("back to all of it, until it is drawn", zooms)
    tasks = run("return tasks_ms")
    print(f"tasks longer than 50 ms: {len(tasks)}" + (f", the longest {max(tasks):.0f} ms" if tasks else ""))
finally:
    call(f"/{session}", method="DELETE")
    driver.terminate()
