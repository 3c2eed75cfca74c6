//! Which acknowledgements a node records, as plans select them and as rows of `ack_counts` report it.

use crate::plan::Acks;
use crate::units::Micros;
use crate::wire::{AckMode, AckSelection};

impl AckMode {
    /// The mode that `configured` selects on a node with this number of sockets.
    pub fn of_sockets(configured: Acks, sockets: u64) -> Self {
        let (selection, interval_us) = match configured.of_sockets(sockets) {
            Acks::Every => (AckSelection::EveryAck, 0),
            Acks::Change => (AckSelection::OnChange, 0),
            Acks::AtMost(interval) => (AckSelection::Interval, interval.get()),
            // `Off` records nothing, and `Acks::of_sockets` resolves `Auto`.
            Acks::Off | Acks::Auto => (AckSelection::Unspecified, 0),
        };
        Self { selection: selection.into(), automatic: configured.is_auto(), interval_us }
    }

    /// The text of column `mode`; empty if the mode is unspecified or of a later version.
    pub fn text(&self) -> String {
        let acks = match self.selection() {
            AckSelection::Unspecified => return String::new(),
            AckSelection::EveryAck => Acks::Every,
            AckSelection::OnChange => Acks::Change,
            AckSelection::Interval => Acks::AtMost(Micros::new(self.interval_us)),
        };
        if self.automatic { format!("auto ({acks})") } else { acks.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_text::ColumnText as _;

    #[test]
    fn columns_hold_the_text_of_the_plan() {
        for text in ["every-ack", "on-change", "10ms", "1s"] {
            let mode = AckMode::of_sockets(text.parse().unwrap(), 1);
            assert_eq!((mode.text().as_str(), mode.automatic), (text, false));
            assert!(AckSelection::is_known(mode.selection), "{text}");
        }
        assert_eq!(AckMode::of_sockets(Acks::Auto, 1).text(), "auto (10ms)");
        assert_eq!(AckMode::of_sockets(Acks::Auto, 200).text(), "auto (20ms)");
        assert_eq!(AckMode { selection: 99, ..AckMode::default() }.text(), "");
    }
}
