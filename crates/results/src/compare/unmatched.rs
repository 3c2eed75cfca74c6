//! Points without rows because one side lacks them or their trials.

/// Whether a point is present in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// The run does not have this point.
    Absent,
    /// The run has the point, but no counted trial of it.
    NoTrial,
    /// The point has rows.
    Counted,
}

/// A point that cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmatched {
    /// Levels of the shared factors.
    pub point: String,
    /// Whether the point is present in A and in B.
    pub sides: (Presence, Presence),
}

impl Unmatched {
    /// Returns why the point has no rows.
    pub const fn why(&self) -> &'static str {
        use Presence::{Absent, Counted, NoTrial};
        match self.sides {
            (Counted, Absent) => "only in A",
            (Absent, Counted) => "only in B",
            (Counted, NoTrial) => "without a counted trial in B",
            (NoTrial, Counted) => "without a counted trial in A",
            (NoTrial, Absent) => "only in A, without a counted trial",
            (Absent, NoTrial) => "only in B, without a counted trial",
            (NoTrial, NoTrial) => "without a counted trial in A and B",
            (Absent, Absent) | (Counted, Counted) => "without a common metric",
        }
    }
}

/// Maximum number of names in the text; the CSV has all of them.
const MAX_NAMES: usize = 20;

/// Returns a line for each reason, with the number of points and their names.
pub(super) fn lines(unmatched: &[Unmatched]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for one in unmatched {
        if !reasons.contains(&one.why()) {
            reasons.push(one.why());
        }
    }
    reasons.iter().map(|why| line(why, unmatched)).collect()
}

fn line(why: &str, unmatched: &[Unmatched]) -> String {
    let of_reason = || unmatched.iter().filter(|one| one.why() == why);
    let count = of_reason().count();
    let names: Vec<&str> = of_reason().take(MAX_NAMES).map(|one| one.point.as_str()).collect();
    let more = match count.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!("; and {more} more (--csv has all)"),
    };
    let points = if count == 1 { "point" } else { "points" };
    format!("not compared: {count} {points} {why}: {}{more}\n", names.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_points_by_reason() {
        let of = |point: &str, sides| Unmatched { point: point.to_owned(), sides };
        let all = [
            of("bbr, 1", (Presence::Counted, Presence::Absent)),
            of("reno, 1", (Presence::Counted, Presence::NoTrial)),
            of("bbr, 2", (Presence::Counted, Presence::Absent)),
        ];
        assert_eq!(
            lines(&all),
            "not compared: 2 points only in A: bbr, 1; bbr, 2\n\
             not compared: 1 point without a counted trial in B: reno, 1\n"
        );
        let many: Vec<Unmatched> = (0..25)
            .map(|nth| of(&nth.to_string(), (Presence::Absent, Presence::Counted)))
            .collect();
        assert!(lines(&many).ends_with("; 19; and 5 more (--csv has all)\n"), "{}", lines(&many));
    }
}
