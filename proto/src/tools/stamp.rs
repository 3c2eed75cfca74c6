//! Time stamps at the beginning of a line: those of ts(1) in its usual formats, and of `ping -D`.

use super::LATEST_S;

/// The date and year of stamps that have none. All stamps count as UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseDate {
    /// "2024".
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
}

impl Default for BaseDate {
    fn default() -> Self {
        Self { year: 1970, month: 1, day: 1 }
    }
}

impl BaseDate {
    /// Parses `2024-09-09`.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, month, day) = date(text)?;
        Some(Self { year, month, day })
    }
}

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * SECOND_NS;

/// Splits off a stamp at the beginning of a line. Returns it in nanoseconds since 1970, and the line after it and one blank.
///
/// Known forms are seconds since 1970 with and without a fraction (`%s`, `%.s`), the same in brackets (`ping -D`),
/// `2024-09-09T10:26:29.8`, `2024-09-09 10:26:29`, `Sep 09 10:26:29` (the default of ts), `10:26:29`, and seconds since ts began
/// (`-s '%.s'`).
pub fn strip(line: &str, base: BaseDate) -> Option<(u64, &str)> {
    let trimmed = line.trim_start();
    if let Some(inner) = trimmed.strip_prefix('[') {
        let (stamp, rest) = inner.split_once(']')?;
        // `[  5]` is a stream of iperf3.
        let long = stamp.len() > 10;
        return Some((long.then(|| epoch(stamp))??, after(rest)));
    }
    let (first, rest) = word(trimmed)?;
    if let Some(at) = epoch(first).or_else(|| since_begin(first)) {
        return Some((at, after(rest)));
    }
    if let Some((day, clock)) = first.split_once('T') {
        return Some((at(date(day)?, of_day(clock)?), after(rest)));
    }
    if let Some(of_day) = of_day(first) {
        return Some((at((base.year, base.month, base.day), of_day), after(rest)));
    }
    let (second, behind) = word(rest.trim_start())?;
    if let Some(day) = date(first) {
        return Some((at(day, of_day(second)?), after(behind)));
    }
    let month = month(first)?;
    let day = valid_date(base.year, month, second.parse().ok()?)?;
    let (clock, behind) = word(behind.trim_start())?;
    Some((at(day, of_day(clock)?), after(behind)))
}

/// Parses iperf3's start time of a test, `Mon, 09 Sep 2024 10:26:29 GMT`. Returns nanoseconds since 1970.
pub fn of_date(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip(1);
    let day = words.next()?.parse().ok()?;
    let month = month(words.next()?)?;
    let year = words.next()?.parse().ok()?;
    Some(at(valid_date(year, month, day)?, of_day(words.next()?)?))
}

/// Finds another line's stamp (`%.s`) in the middle of a line: the line was torn there.
pub fn torn_at(line: &str) -> Option<usize> {
    let bytes = line.as_bytes();
    let digits = |from: usize, to: usize| {
        bytes.get(from..to).is_some_and(|found| found.iter().all(u8::is_ascii_digit))
    };
    // Search after the first letter, because a line may begin with its own stamp.
    let begin = line.len() - line.trim_start().len();
    let letter = line.find(|c: char| c.is_ascii_alphabetic())?;
    (letter.max(begin) + 1..bytes.len()).find(|&at| {
        line.is_char_boundary(at)
            && digits(at, at + 10)
            && bytes.get(at + 10) == Some(&b'.')
            && digits(at + 11, at + 17)
            && bytes.get(at + 17).is_some_and(|&b| b == b' ')
    })
}

fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn after(rest: &str) -> &str {
    rest.strip_prefix([' ', '\t']).unwrap_or(rest)
}

fn fraction(text: &str) -> Option<(&str, u64)> {
    let Some((whole, digits)) = text.split_once('.') else { return Some((text, 0)) };
    let right =
        !digits.is_empty() && digits.len() <= 9 && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = right.then(|| digits.parse().ok())??;
    Some((whole, number * 10u64.pow(9 - digits.len() as u32)))
}

/// Parses seconds since 1970; ten digits cover the years from 2001.
fn epoch(text: &str) -> Option<u64> {
    let (whole, nanos) = fraction(text)?;
    let right = whole.len() == 10 && whole.bytes().all(|b| b.is_ascii_digit());
    let seconds: u64 = right.then(|| whole.parse().ok())??;
    (seconds < LATEST_S).then_some(seconds * SECOND_NS + nanos)
}

/// Parses the stamp of `ts -s '%.s'`: seconds and six digits.
fn since_begin(text: &str) -> Option<u64> {
    let (whole, digits) = text.split_once('.')?;
    let right = digits.len() == 6 && (1..=7).contains(&whole.len());
    let (whole, nanos) = right.then(|| fraction(text))??;
    let seconds: u64 = whole.bytes().all(|b| b.is_ascii_digit()).then(|| whole.parse().ok())??;
    Some(seconds * SECOND_NS + nanos)
}

/// Parses `10:26:29.8` to nanoseconds, less the offset of a zone after it (`Z`, `+02:00`).
fn of_day(text: &str) -> Option<i64> {
    let (clock, zone_s) = match text.find(['Z', '+', '-']) {
        Some(split) => (&text[..split], zone(&text[split..])?),
        None => (text, 0),
    };
    let (whole, nanos) = fraction(clock)?;
    let mut parts = whole.split(':');
    let mut number = |most: u64| {
        let part = parts.next().filter(|p| p.len() == 2)?;
        part.parse::<u64>().ok().filter(|n| *n <= most)
    };
    let (hours, minutes, seconds) = (number(23)?, number(59)?, number(60)?);
    if parts.next().is_some() {
        return None;
    }
    let seconds = hours * 3600 + minutes * 60 + seconds;
    Some((seconds * SECOND_NS + nanos).cast_signed() - zone_s * SECOND_NS.cast_signed())
}

fn zone(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'Z' => return (text.len() == 1).then_some(0),
        b'-' => -1,
        _ => 1,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    let right = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
    let number: i64 = right.then(|| digits.parse().ok())??;
    Some(sign * (number / 100 * 3600 + number % 100 * 60))
}

fn date(text: &str) -> Option<(i64, u32, u32)> {
    let mut parts = text.split('-');
    let year = parts.next()?.parse().ok()?;
    let month = parts.next()?.parse().ok()?;
    let day = parts.next()?.parse().ok()?;
    parts.next().is_none().then(|| valid_date(year, month, day))?
}

/// Checks that a day exists and is before [`LATEST_S`].
fn valid_date(year: i64, month: u32, day: u32) -> Option<(i64, u32, u32)> {
    if !(1970..2200).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    let next = if month == 12 { (year + 1, 1, 1) } else { (year, month + 1, 1) };
    let length = days(next) - days((year, month, 1));
    (1..=length).contains(&i64::from(day)).then_some((year, month, day))
}

fn month(text: &str) -> Option<u32> {
    const NAMES: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    NAMES.iter().position(|name| *name == text).map(|at| at as u32 + 1)
}

/// Days from 1970-01-01 in the Gregorian calendar, for years from 1970.
fn days((year, month, day): (i64, u32, u32)) -> i64 {
    // Let years begin in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = i64::from((month + 9) % 12);
    let of_year = (153 * from_march + 2) / 5 + i64::from(day) - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

fn at(date: (i64, u32, u32), of_day_ns: i64) -> u64 {
    (days(date) * DAY_NS.cast_signed() + of_day_ns).max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: BaseDate = BaseDate { year: 2024, month: 9, day: 9 };
    /// 2024-09-09 10:26:29 UTC.
    const AT: u64 = 1_725_877_589 * SECOND_NS;

    #[test]
    fn every_way_to_write_an_instant_is_the_same_instant() {
        for (stamp, nanos) in [
            ("1725877589.814789", 814_789_000),
            ("1725877589", 0),
            ("[1725877589.814789]", 814_789_000),
            ("2024-09-09T10:26:29.5", 500_000_000),
            ("2024-09-09T12:26:29+02:00", 0),
            ("2024-09-09T05:26:29-0500", 0),
            ("2024-09-09T10:26:29Z", 0),
            ("2024-09-09 10:26:29.25", 250_000_000),
            ("Sep 09 10:26:29", 0),
            ("Sep  9 10:26:29.5", 500_000_000),
            ("10:26:29", 0),
        ] {
            let line = format!("{stamp} \t ts sack");
            assert_eq!(strip(&line, BASE), Some((AT + nanos, "\t ts sack")), "{stamp}");
        }
        assert_eq!(strip("3.250000 x", BASE), Some((3_250_000_000, "x")), "ts -s");
        assert_eq!(of_date("Mon, 09 Sep 2024 10:26:29 GMT"), Some(AT));
    }

    #[test]
    fn keeps_text_that_is_no_time_stamp() {
        for line in [
            "",
            "   ",
            "[  5]   0.00-0.10   sec",
            "[SUM]",
            "tcp ESTAB 0 0",
            "\t ts sack",
            "64 bytes",
            "12.5 x",
            "25:00:00 x",
            "Sep 40 10:26:29",
            "2024-13-01 10:26:29",
            "2024-02-31 10:26:29",
            "2023-02-29T10:26:29",
            "Sep 31 10:26:29",
            "rtt:0.5/0.2",
            "10:26 x",
            "17258775890.1 x",
            "Sep",
            "2024-09-09",
            "[1725877589",
            "+1.000000 x",
            "2999-01-01 10:00:00 x",
            "9999999999.999999 x",
        ] {
            assert_eq!(strip(line, BASE), None, "{line}");
        }
    }

    #[test]
    fn finds_line_mixed_from_two_writers() {
        let line = "1725877589.814789 tcp ESTAB 0 0 10.0.5.1:551725877589.819042 tcp ESTAB 0 0";
        let at = torn_at(line).unwrap();
        assert_eq!(&line[at..at + 17], "1725877589.819042");
        assert_eq!(torn_at("1725877589.814789 tcp ESTAB 0 0 10.0.5.1:55"), None);
        assert_eq!(torn_at("\t ts sack rtt:0.542/0.213"), None);
    }

    #[test]
    fn leap_days_count() {
        assert_eq!(BaseDate::parse("2024-02-29"), Some(BaseDate { year: 2024, month: 2, day: 29 }));
        assert_eq!(BaseDate::parse("2100-02-29"), None);
        assert_eq!(BaseDate::parse("2024-12-31").map(|base| base.day), Some(31));
        assert_eq!(days((1970, 1, 1)), 0);
        assert_eq!(days((2000, 3, 1)) - days((2000, 2, 28)), 2);
        assert_eq!(days((2100, 3, 1)) - days((2100, 2, 28)), 1);
        assert_eq!(days((2024, 12, 31)) - days((2024, 1, 1)), 365);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "\\PC{0,60}", digits in "[0-9.:TZ+\\- \\[\\]]{0,40}") {
            for line in [&line, &digits] {
                if let Some((_, rest)) = strip(line, BASE) {
                    prop_assert!(line.ends_with(rest));
                }
                let _ = (torn_at(line), of_date(line));
            }
        }
    }
}
