"""Sends a command to the monitor of a QEMU machine: monitor.py SOCKET COMMAND...; prints the answer."""

import socket
import sys

PROMPT = b"(qemu) "


def answer(monitor):
    text = b""
    while not text.endswith(PROMPT):
        part = monitor.recv(4096)
        if not part:
            sys.exit("the machine has ended")
        text += part
    return text[: -len(PROMPT)]


with socket.socket(socket.AF_UNIX) as monitor:
    monitor.settimeout(30)
    monitor.connect(sys.argv[1])
    answer(monitor)
    monitor.sendall(" ".join(sys.argv[2:]).encode() + b"\n")
    # The monitor repeats the command.
    sys.stdout.write("\n".join(answer(monitor).decode(errors="replace").splitlines()[1:]))
