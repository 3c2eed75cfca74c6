// Runs Perfetto's trace processor: node trace_processor.mjs DIRECTORY
//
// DIRECTORY has the files of Perfetto's UI. Standard input is a TraceProcessorRpcStream with the requests; standard output is one with the
// replies. The trace processor is WebAssembly for a worker of a browser, so this script gives it what it uses of one.

import { readFileSync, writeSync } from "node:fs";
import { basename, join } from "node:path";
import { setImmediate } from "node:timers/promises";

const [directory] = process.argv.slice(2);

class XMLHttpRequest {
    open(_method, url) {
        this.path = join(directory, basename(url));
    }

    send() {
        this.response = new Uint8Array(readFileSync(this.path)).buffer;
    }
}

const worker = { location: { href: "http://localhost/" } };
const globals = {
    self: worker,
    WorkerGlobalScope: class {},
    XMLHttpRequest,
    // The script refuses to be a worker if it finds node. Standard output is for replies.
    process: undefined,
    console: { log: console.error, warn: console.error, error: console.error },
};
const script = readFileSync(join(directory, "engine_bundle.js"), "utf8");
new Function(...Object.keys(globals), script)(...Object.values(globals));
const port = {
    postMessage(reply) {
        for (let at = 0; at < reply.length; ) {
            at += writeSync(1, reply, at);
        }
    },
};
worker.onmessage({ data: port });
// The trace processor starts in a microtask.
await setImmediate();
port.onmessage({ data: new Uint8Array(readFileSync(0)) });
