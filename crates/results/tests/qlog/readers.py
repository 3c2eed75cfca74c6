"""Reads exports with the readers of their own projects: readers.py TRACE METRICS

Perfetto's Python package has the messages of its trace format, and prometheus-client a strict parser of OpenMetrics. Neither shares code with ccbench.
"""

import math
import sys
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
from prometheus_client.openmetrics.parser import text_string_to_metric_families

trace = perfetto.Trace.FromString(Path(sys.argv[1]).read_bytes())
tracks, slices, open_slices, counters = {}, {}, {}, {}
for packet in trace.packet:
    parts = [packet, packet.track_event, packet.track_descriptor, packet.track_descriptor.counter]
    assert not any(len(UnknownFieldSet(part)) for part in parts), f"a field that Perfetto does not have: {packet}"
    assert packet.trusted_packet_sequence_id, packet
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks and (not track.HasField("parent_uuid") or track.parent_uuid in tracks), track
        tracks[track.uuid] = track
        continue
    event, at_ns = packet.track_event, packet.timestamp
    track = tracks[event.track_uuid]
    if event.type == perfetto.TrackEvent.TYPE_COUNTER:
        # Shares and numbers have an empty unit.
        assert track.counter.HasField("unit_name") and math.isfinite(event.double_counter_value), event
        counters[track.uuid] = counters.get(track.uuid, 0) + 1
    elif event.type == perfetto.TrackEvent.TYPE_SLICE_BEGIN:
        # A slice that begins inside of another one would be its child.
        assert track.uuid not in open_slices and event.name and not track.HasField("counter"), event
        open_slices[track.uuid] = (event.name, at_ns)
    else:
        assert event.type == perfetto.TrackEvent.TYPE_SLICE_END, event
        name, began_ns = open_slices.pop(track.uuid)
        assert began_ns < at_ns, event
        slices.setdefault((tracks[track.parent_uuid].name if track.parent_uuid else "", track.name), []).append(name)
assert not open_slices and counters, open_slices
expected = {
    ("", "phases"): ["warm-up", "alone", "compete"],
    ("Loss recovery", "down/0"): ["open", "recovery", "open"],
    ("Loss recovery", "up/0"): ["open", "loss"],
    ("bbr3: mode", "up/0"): ["STARTUP", "DRAIN"],
}
assert slices == expected, slices

families = {family.name: family for family in text_string_to_metric_families(Path(sys.argv[2]).read_text(encoding="utf-8"))}
status = [sample.labels["ccbench_trial_status"] for sample in families["ccbench_trial_status"].samples if sample.value]
assert status == ["ok"] and families["ccbench_trial_status"].type == "stateset", status
nodes = [sample.labels["node"] for sample in families["ccbench_node_clock_error_seconds"].samples]
assert nodes == ["dst", "src"] and families["ccbench_node_clock_error_seconds"].unit == "seconds", nodes
assert all(sample.timestamp for family in families.values() for sample in family.samples), families
