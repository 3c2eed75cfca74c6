//! Decimal numbers as exact integers of a smaller unit. Without floating point, the replayed value equals the file's.

/// More digits than any number of a trace has.
const MAX_DIGITS: usize = 30;

/// Why a text is not a number. Callers print the text before the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NumberError {
    #[error("is negative")]
    Negative,
    #[error("is not a number")]
    NotANumber,
    #[error("has too many digits")]
    TooManyDigits,
    #[error("is too large")]
    TooLarge,
}

/// `text` times 10^`digits`, rounded to the nearest integer. Accepts `1`, `0.5`, `.5`, `+1.`, `1e3`, `2.5e-4`.
///
/// # Errors
/// The text is not a number in range.
pub(super) fn scaled(text: &str, digits: u32) -> Result<u64, NumberError> {
    let Some(rest) = text.strip_prefix('-') else {
        return unsigned(text.strip_prefix('+').unwrap_or(text), digits);
    };
    match unsigned(rest, digits) {
        // Some programs print zero as minus zero.
        Ok(0) => Ok(0),
        Ok(_) => Err(NumberError::Negative),
        Err(_) => Err(NumberError::NotANumber),
    }
}

/// As [`scaled`], for a text without a sign.
fn unsigned(text: &str, digits: u32) -> Result<u64, NumberError> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        None => (text, 0),
        Some((mantissa, exponent)) => {
            (mantissa, exponent.parse::<i16>().map_err(|_| NumberError::NotANumber)?)
        }
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty()
        || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit())
    {
        return Err(NumberError::NotANumber);
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.len() + fraction.len() > MAX_DIGITS {
        return Err(NumberError::TooManyDigits);
    }
    let mut value: u128 = 0;
    for byte in whole.bytes().chain(fraction.bytes()) {
        value = value * 10 + u128::from(byte - b'0');
    }
    if value == 0 {
        return Ok(0);
    }
    let power = i64::from(exponent) + i64::from(digits) - fraction.len() as i64;
    let value = if power >= 0 {
        let factor = u32::try_from(power).ok().and_then(|power| 10_u128.checked_pow(power));
        factor.and_then(|factor| value.checked_mul(factor)).ok_or(NumberError::TooLarge)?
    } else {
        match u32::try_from(-power).ok().and_then(|power| 10_u128.checked_pow(power)) {
            Some(divisor) => (value + divisor / 2) / divisor,
            None => 0,
        }
    };
    u64::try_from(value).map_err(|_| NumberError::TooLarge)
}

/// `units` of 10^-`digits` as a decimal without needless zeros: the inverse of [`scaled`].
pub(super) fn text(units: u64, digits: u32) -> String {
    let one = 10_u64.pow(digits);
    let fraction = format!("{:0width$}", units % one, width = digits as usize);
    let fraction = fraction.trim_end_matches('0');
    if digits == 0 || fraction.is_empty() {
        (units / one).to_string()
    } else {
        format!("{}.{fraction}", units / one)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (given, digits, wanted) in [
            ("0.31", 9, 310_000_000),
            ("2310", 6, 2_310_000_000),
            (".5", 1, 5),
            ("+7.", 0, 7),
            ("1e3", 0, 1000),
            ("2.5e-4", 6, 250),
            ("-0.0", 3, 0),
            ("0.0000004", 6, 0),
            ("0.0000005", 6, 1),
            ("1e-400", 9, 0),
            ("18446744073709551615", 0, u64::MAX),
        ] {
            assert_eq!(scaled(given, digits), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn rejects_invalid_number() {
        for given in
            ["", ".", "NaN", "inf", "1,5", "1 2", "0x10", "1e", "--1", "1.2.3", "٣", "1e1.5"]
        {
            assert_eq!(scaled(given, 6), Err(NumberError::NotANumber), "{given}");
        }
        // As long as a line may be: the sign is not read recursively.
        for given in ["-".repeat(64 << 10), "+-".repeat(32 << 10)] {
            assert_eq!(scaled(&given, 6), Err(NumberError::NotANumber));
        }
        assert_eq!(scaled("-1", 6), Err(NumberError::Negative));
        assert_eq!(scaled("18446744073709551616", 0), Err(NumberError::TooLarge));
        assert_eq!(scaled("1e40", 0), Err(NumberError::TooLarge));
        assert_eq!(scaled(&"1".repeat(31), 0), Err(NumberError::TooManyDigits));
    }

    proptest! {
        #[test]
        fn text_reads_back(units: u64, digits in 0_u32..10) {
            prop_assert_eq!(scaled(&text(units, digits), digits), Ok(units));
        }
    }
}
