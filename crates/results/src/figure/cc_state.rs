//! States of congestion controls, which have names instead of values.

use ccbench_proto::cc;
use ccbench_proto::plan::Plan;

use super::data::Selection;
use super::error::FigureError;
use crate::series::{Curve, Panel};

/// More names do not fit beside a frame.
const MAX_STATES: usize = 9;
/// Space above and below the outermost states.
const MARGIN: f64 = 0.3;

/// Numbers of an axis with their names.
type Ticks = Vec<(f64, String)>;

/// Returns the numbers and names of a variable's states from its unit, `0 STARTUP 1 DRAIN`; empty for other variables.
pub(super) fn states(unit: &str) -> Ticks {
    let states = cc::states_in(unit).into_iter();
    states.map(|(number, name)| (f64::from(number), name.to_owned())).collect()
}

/// Returns the ticks of a panel with few named states, and the range of its axis.
pub(super) fn ticks(panel: &Panel) -> Option<((f64, f64), Ticks)> {
    let states = states(&panel.unit);
    if states.len() > MAX_STATES {
        return None;
    }
    let ((low, _), (high, _)) = (states.first()?, states.last()?);
    Some(((low - MARGIN, high + MARGIN), states))
}

/// Returns the points of a curve. A state lasts until the next one, so connecting the points draws steps.
pub(super) fn points(panel: &Panel, curve: &Curve) -> Vec<(f64, f64)> {
    let samples = curve.t_s.iter().copied().zip(curve.value.iter().copied());
    if states(&panel.unit).is_empty() {
        return samples.collect();
    }
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (t_s, value) in samples {
        if let Some((_, before)) = points.last().copied()
            && before != value
        {
            points.push((t_s, before));
        }
        points.push((t_s, value));
    }
    points
}

/// Returns the error for trials without rows if the congestion controls of the plan are the user's own.
pub(super) fn no_states(data: &Selection) -> Option<FigureError> {
    let has = |id: u32| data.plan(id).is_some_and(has_supplied);
    data.points().into_iter().any(has).then(|| {
        data.no_data(
            "congestion controls that you supply (`file`, `module`) have no rows in `cc_state`",
        )
    })
}

fn has_supplied(plan: &Plan) -> bool {
    plan.cc.values().any(|cc| cc.supplied().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: &str = "0 STARTUP 1 DRAIN 2 DOWN";

    fn panel(unit: &str) -> Panel {
        let curve =
            Curve { name: "a/0".to_owned(), t_s: vec![0.0, 1.0, 2.0], value: vec![0.0, 2.0, 2.0] };
        Panel { title: "mode".to_owned(), unit: unit.to_owned(), samples: 3, curves: vec![curve] }
    }

    #[test]
    fn states_are_steps_between_named_ticks() {
        let panel = panel(MODE);
        let ((low, high), found) = ticks(&panel).unwrap();
        let names: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["STARTUP", "DRAIN", "DOWN"]);
        assert!(low < 0.0 && high > 2.0, "{low} {high}");
        let steps = [(0.0, 0.0), (1.0, 0.0), (1.0, 2.0), (2.0, 2.0)];
        assert_eq!(points(&panel, &panel.curves[0]), steps);
    }

    #[test]
    fn other_variables_are_lines() {
        for unit in ["", "us", "1/256", "0 STARTUP 1", "A B"] {
            let panel = panel(unit);
            assert!(ticks(&panel).is_none(), "{unit}");
            assert_eq!(points(&panel, &panel.curves[0]).len(), 3, "{unit}");
        }
        let many = (0..12).map(|n| format!("{n} S{n}")).collect::<Vec<_>>().join(" ");
        assert!(ticks(&panel(&many)).is_none());
        assert_eq!(points(&panel(&many), &panel(&many).curves[0]).len(), 4);
    }
}
