//! Formats, by hand.
