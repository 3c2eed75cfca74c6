//! Text to [`super::Plan`]: every problem at once, each with its place.
