//! Parsers for values of options.

use std::path::Path;

use ccbench_proto::tools::stamp::BaseDate;
use ccbench_proto::trace::Format;
use ccbench_proto::units::Micros;

/// Why a value is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The value does not have the option's form.
    #[error("write {form}, as in {example}")]
    Form {
        /// The form.
        form: &'static str,
        /// An example.
        example: &'static str,
    },
    /// A part of it cannot be parsed.
    #[error("{0}")]
    Part(String),
    /// A figure cannot be that small or large.
    #[error("a figure is 30 to 600 mm wide and high")]
    FigureSize,
    /// The format is unknown.
    #[error("{0}, parquet")]
    Format(String),
}

/// Parses a seed.
pub fn whole_number(text: &str) -> Result<u64, ValueError> {
    let wrong = |_| ValueError::Part(format!("write a whole number from 0 to {}", u64::MAX));
    text.parse().map_err(wrong)
}

fn pair<'a>(
    text: &'a str,
    form: &'static str,
    example: &'static str,
) -> Result<(&'a str, &'a str), ValueError> {
    text.split_once('=').ok_or(ValueError::Form { form, example })
}

/// `--group SERVER=NAME`.
pub fn group(text: &str) -> Result<String, ValueError> {
    let (server, name) = pair(text, "SERVER=NAME", "5201=bulk")?;
    let port = server.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
    if port && !name.is_empty() {
        Ok(text.to_owned())
    } else {
        let reason = "SERVER is a port, or an address and a port, as in 10.0.3.1:5201";
        Err(ValueError::Part(reason.to_owned()))
    }
}

/// `--phase NAME=LENGTH`.
pub fn phase(text: &str) -> Result<(String, Micros), ValueError> {
    let (name, length) = pair(text, "NAME=LENGTH", "alone=60s")?;
    let length: Micros = length.parse().map_err(|e| ValueError::Part(format!("{e}")))?;
    Ok((name.to_owned(), length))
}

/// `--date YYYY-MM-DD`.
pub fn day(text: &str) -> Result<BaseDate, ValueError> {
    BaseDate::parse(text).ok_or(ValueError::Form { form: "YYYY-MM-DD", example: "2024-09-30" })
}

/// `--by FACTOR=LEVEL,LEVEL`.
pub fn levels(text: &str) -> Result<(String, String, String), ValueError> {
    let (form, example) = ("FACTOR=LEVEL,LEVEL", "scheme=cubic,bbr");
    let (factor, levels) = pair(text, form, example)?;
    let (one, other) = levels.split_once(',').ok_or(ValueError::Form { form, example })?;
    Ok((factor.to_owned(), one.to_owned(), other.to_owned()))
}

/// `--where COLUMN=VALUE`.
pub fn column(text: &str) -> Result<(String, String), ValueError> {
    let (column, value) = pair(text, "COLUMN=VALUE", "trial=2")?;
    Ok((column.to_owned(), value.to_owned()))
}

/// `--width-mm`, `--height-mm`.
pub fn millimetres(text: &str) -> Result<f64, ValueError> {
    let mm: f64 = text.parse().map_err(|e| ValueError::Part(format!("{e}")))?;
    if (30.0..=600.0).contains(&mm) { Ok(mm) } else { Err(ValueError::FigureSize) }
}

/// A format that `ccbench trace` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// A text format.
    Text(Format),
    /// Parquet with ccbench's columns.
    Parquet,
}

impl std::str::FromStr for TraceFormat {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "parquet" => Ok(Self::Parquet),
            _ => text
                .parse()
                .map(Self::Text)
                .map_err(|e: <Format as std::str::FromStr>::Err| ValueError::Format(e.to_string())),
        }
    }
}

impl TraceFormat {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text(format) => format.name(),
            Self::Parquet => "parquet",
        }
    }

    /// Whether a file may have this format: its extension is not that of another one. All text formats except JSON use `.csv`.
    pub fn fits(self, path: &Path) -> bool {
        match Self::of(path) {
            None => true,
            Some(Self::Text(Format::Ccbench)) => {
                !matches!(self, Self::Parquet | Self::Text(Format::Netem))
            }
            Some(of_extension) => self == of_extension,
        }
    }

    /// The format of a file extension.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "json" => Some(Self::Text(Format::Netem)),
            "csv" => Some(Self::Text(Format::Ccbench)),
            "up" | "down" | "mahimahi" => Some(Self::Text(Format::Mahimahi)),
            _ => None,
        }
    }
}
