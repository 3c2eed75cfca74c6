"""Columns that had other names in earlier versions. A test of crates/results compares this list with its own and with docs/results.md."""

# By table: current names, by former names.
RENAMED = {
    "expectations": {"least": "lower_bound", "most": "upper_bound", "why": "reason"},
    "link_changes": {"asked_t_ns": "requested_t_ns"},
    "scorecard": {"most": "upper_bound", "why": "reason"},
}
