"""Columns and values that had other names in earlier versions. Tests of crates/results compare these lists with their own and with
docs/results.md."""

# By table and column: current values, by former values. A reason is a code and a message.
RENAMED_VALUES = {
    "events": {"kind": {"cc_in_force": "initial_cc"}},
    "trials": {"reasons": {"cc_not_in_force": "wrong_cc"}},
}

# By table: current names, by former names.
RENAMED = {
    "expectations": {"least": "lower_bound", "most": "upper_bound", "why": "reason"},
    "link_changes": {"asked_t_ns": "requested_t_ns"},
    "link_timing": {"what": "kind"},
    "scorecard": {"most": "upper_bound", "why": "reason"},
}
