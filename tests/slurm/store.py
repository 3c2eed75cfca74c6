#!/usr/bin/env python3
"""A gateway in front of an S3 server, which can be killed without losing the server's data; and requests of scripts to the server.

store.py gateway HOST PORT SERVER_PORT    passes connections on, until it is killed
store.py bucket ENDPOINT BUCKET           makes a bucket as soon as the server answers, within a minute
store.py commits ENDPOINT BUCKET PREFIX   prints the number of committed trials

The server asks for no credentials, as moto does.
"""

import asyncio
import contextlib
import re
import sys
import time
import urllib.parse
import urllib.request

SETUP_LIMIT_S = 60
ANSWER_LIMIT_S = 5


async def copy(reader, writer):
    """Copies one direction of a connection until its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def gateway(host, port, server_port):
    async def serve(client_reader, client_writer):
        try:
            server_reader, server_writer = await asyncio.open_connection(host, server_port)
        except OSError:
            client_writer.close()
            return
        await asyncio.gather(copy(client_reader, server_writer), copy(server_reader, client_writer))
        server_writer.close()
        client_writer.close()

    async with await asyncio.start_server(serve, host, port) as server:
        await server.serve_forever()


def ask(url, method="GET"):
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
        return answer.read().decode()


def bucket(endpoint, name):
    end = time.monotonic() + SETUP_LIMIT_S
    while True:
        try:
            ask(f"{endpoint}/{name}", "PUT")
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def commits(endpoint, name, prefix):
    found, token = 0, None
    while True:
        query = {"list-type": 2, "prefix": f"{prefix}/commits/"}
        if token:
            query["continuation-token"] = token
        answer = ask(f"{endpoint}/{name}?{urllib.parse.urlencode(query)}")
        found += len(re.findall(r"<Key>[^<]*\.json</Key>", answer))
        more = re.search(r"<NextContinuationToken>([^<]+)<", answer)
        if not more:
            return found
        token = more[1]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gateway", host, port, server_port]:
            asyncio.run(gateway(host, int(port), int(server_port)))
        case ["bucket", endpoint, name]:
            bucket(endpoint, name)
        case ["commits", endpoint, name, prefix]:
            print(commits(endpoint, name, prefix))
        case _:
            sys.exit(__doc__)
