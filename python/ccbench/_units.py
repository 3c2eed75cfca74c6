"""Units of columns, from their names (docs/results.md)."""

# Ends of names, and units. The longest that matches counts.
_ENDS = {
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "bps": "bit/s",
    "bytes_per_s": "B/s",
    "mbit": "Mbit/s",
    "mbit_s": "Mbit/s",
    "bytes": "B",
    "pkts": "packets",
    "packets": "packets",
    "pct": "%",
    "ppm": "ppm",
    "ppb": "ppb",
    "hz": "Hz",
    "khz": "kHz",
    "mhz": "MHz",
}
# Names that are units, and the first words of other names.
_NAMES = {"bits_per_second": "bit/s", "bytes": "B", "packets": "packets", "seconds": "s"}
_BEGINNINGS = {"bytes": "B", "pkts": "packets"}


def unit_of(column):
    """The unit in a column's name, or None."""
    if column in _NAMES:
        return _NAMES[column]
    words = column.split("_")
    for begin in range(1, len(words)):
        unit = _ENDS.get("_".join(words[begin:]))
        if unit:
            return unit
    return _BEGINNINGS.get(words[0]) if len(words) > 1 else None
