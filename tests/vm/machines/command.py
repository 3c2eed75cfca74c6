"""Runs a shell command in a machine of machines.sh: command.py SOCKET COMMAND; prints its output, and exits with its status.

SOCKET is the machine's second serial port, at which a shell reads commands (commands.sh). Exits with 125 if it does not answer.
"""

import re
import secrets
import socket
import sys


class NoAnswer(Exception):
    """The machine does not execute commands."""


def run(path, command, timeout_s=60):
    """Returns the status and the output of a command."""
    mark = secrets.token_hex(8)
    begin, end = f"@@ {mark} begins\n".encode(), re.compile(rf"@@ {mark} ended (\d+)\n".encode())
    # The parentheses keep an `exit` from ending the shell.
    line = f'echo "@@ {mark} begins"; ( {command} ) </dev/null 2>&1; echo "@@ {mark} ended $?"\n'
    with socket.socket(socket.AF_UNIX) as machine:
        machine.settimeout(timeout_s)
        text = b""
        try:
            machine.connect(path)
            machine.sendall(line.encode())
            while not (found := end.search(text)):
                part = machine.recv(65536)
                if not part:
                    raise NoAnswer("the machine has ended")
                text += part
        except OSError as error:
            raise NoAnswer(f"{path}: {error}: {text[-200:]!r}") from error
    output = text[text.index(begin) + len(begin) : found.start()]
    return int(found[1]), output.decode(errors="replace")


if __name__ == "__main__":
    try:
        status, output = run(sys.argv[1], sys.argv[2])
    except NoAnswer as error:
        print(f"no answer: {error}", file=sys.stderr)
        sys.exit(125)
    sys.stdout.write(output)
    sys.exit(status)
