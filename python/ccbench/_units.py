"""Units of columns: their names end with them (docs/results.md)."""

# Ends of names, and units. The longest that matches counts.
_ENDS = {
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "bps": "bit/s",
    "mbit": "Mbit/s",
    "mbit_s": "Mbit/s",
    "bytes": "B",
    "pkts": "packets",
    "pct": "%",
    "ppm": "ppm",
    "hz": "Hz",
    "khz": "kHz",
    "mhz": "MHz",
}


def unit_of(column):
    """The unit in a column's name, or None."""
    parts = column.rsplit("_", 2)
    for count in (2, 1):
        if len(parts) > count:
            unit = _ENDS.get("_".join(parts[-count:]))
            if unit:
                return unit
    return None
