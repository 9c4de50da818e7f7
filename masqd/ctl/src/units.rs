//! Quantities as people write and read them: rates in decimal multiples of bit/s, sizes in binary or decimal multiples of
//! bytes, ages.

use std::time::Duration;

/// Decimal multiples, the largest first.
const DECIMAL: [(&str, u64); 5] =
    [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000), ("", 1)];

/// Binary multiples, the largest first.
const BINARY: [(&str, u64); 5] =
    [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("", 1)];

/// Why a text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not begin with a number.
    #[error("it does not begin with a number such as 100 or 2.5")]
    Number,
    /// The unit is not known.
    #[error("the unit is not one of {0}")]
    Unit(&'static str),
    /// The value has a fraction.
    #[error("it is not a whole number of {0}")]
    Fraction(&'static str),
    /// The value does not fit into 64 bits.
    #[error("it is too large")]
    Large,
}

/// Parses a rate in bit/s: `100M`, `2.5G`, `50Mbit`, `1 Gbit/s`. Multiples are decimal; case does not matter.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    const UNITS: &str = "k, M, G, T, each with or without bit or bit/s";
    parse(text, &["", "bit", "bit/s"], &[&DECIMAL], UNITS, "bits per second")
}

/// Parses a number of bits: `10M`, `72kbit`. Multiples are decimal; case does not matter.
pub fn parse_bits(text: &str) -> Result<u64, QuantityError> {
    parse(text, &["", "bit"], &[&DECIMAL], "k, M, G, T, each with or without bit", "bits")
}

/// Parses a number of bytes: `64Mi` and `64MiB` are binary, `64M` and `64MB` decimal; case does not matter.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    const UNITS: &str = "k, M, G, T, Ki, Mi, Gi, Ti, each with or without B";
    parse(text, &["", "b"], &[&DECIMAL, &BINARY], UNITS, "bytes")
}

fn parse(
    text: &str,
    suffixes: &[&str],
    multiples: &[&[(&str, u64)]],
    units: &'static str,
    what: &'static str,
) -> Result<u64, QuantityError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor = multiples.iter().flat_map(|m| m.iter()).find_map(|(prefix, factor)| {
        let rest = unit.strip_prefix(&prefix.to_ascii_lowercase())?;
        suffixes.contains(&rest).then_some(*factor)
    });
    let factor = u128::from(factor.ok_or(QuantityError::Unit(units))?);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |d: &str| d.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || fraction.is_empty() || !digits(fraction) {
        return Err(QuantityError::Number);
    }
    let fraction = fraction.trim_end_matches('0');
    let places = u32::try_from(fraction.len()).map_err(|_| QuantityError::Large)?;
    let one = 10u128.checked_pow(places).ok_or(QuantityError::Fraction(what))?;
    let whole: u128 = whole.parse().map_err(|_| QuantityError::Large)?;
    let parts: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| QuantityError::Large)? };
    let parts = parts.checked_mul(factor).ok_or(QuantityError::Large)?;
    if parts % one != 0 {
        return Err(QuantityError::Fraction(what));
    }
    let value = whole.checked_mul(factor).and_then(|v| v.checked_add(parts / one));
    value.and_then(|v| u64::try_from(v).ok()).ok_or(QuantityError::Large)
}

/// A configured rate, exactly: `2.5 Gbit/s`.
pub fn rate(bits_per_sec: u64) -> String {
    exact(bits_per_sec, "bit/s")
}

/// A configured number of bits, exactly: `10 Mbit`.
pub fn bits(bits: u64) -> String {
    exact(bits, "bit")
}

fn exact(value: u64, unit: &str) -> String {
    let (prefix, factor) = DECIMAL.into_iter().find(|(_, f)| value >= *f).unwrap_or(("", 1));
    let mut number = (value / factor).to_string();
    if !value.is_multiple_of(factor) {
        let places = factor.ilog10() as usize;
        let fraction = format!("{:0places$}", value % factor);
        number += &format!(".{}", fraction.trim_end_matches('0'));
    }
    format!("{number} {prefix}{unit}")
}

/// A configured number of bytes, exactly: `64 MiB`, `1000 B`.
pub fn bytes(value: u64) -> String {
    let fits = |f: u64| value >= f && value.is_multiple_of(f);
    let (prefix, factor) = BINARY.into_iter().find(|(_, f)| fits(*f)).unwrap_or(("", 1));
    format!("{} {prefix}B", value / factor)
}

/// A measured rate to three digits: `2.51 Gbit/s`.
pub fn about_rate(bits_per_sec: u64) -> String {
    about(bits_per_sec, &DECIMAL, "bit/s")
}

/// A measured number of packets per second, to three digits: `1.02 M`.
pub fn about_count(count: u64) -> String {
    about(count, &DECIMAL, "").trim_end().to_owned()
}

/// A measured number of bytes to three digits: `1.21 MiB`.
pub fn about_bytes(value: u64) -> String {
    about(value, &BINARY, "B")
}

fn about(value: u64, multiples: &[(&str, u64)], unit: &str) -> String {
    let step = multiples.iter().find(|(_, f)| value >= *f && *f > 1);
    let Some((prefix, factor)) = step else { return format!("{value} {unit}") };
    let scaled = value as f64 / *factor as f64;
    let places = if scaled < 9.995 {
        2
    } else if scaled < 99.95 {
        1
    } else {
        0
    };
    format!("{scaled:.places$} {prefix}{unit}")
}

/// A share, such as 0.5, in percent: `50.0%`.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// An age in its two largest units: `3m12s`, `2h5m`, `4d3h`.
pub fn age(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m{s}s"),
        (0, _, _) => format!("{h}h{m}m"),
        _ => format!("{d}d{h}h"),
    }
}

/// Parses a number of seconds such as `2` or `0.5`, from 0.1 to 3600.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds
        .filter(|d| (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(d))
        .ok_or_else(|| "it is not a number of seconds from 0.1 to 3600".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_decimal_and_exact() {
        for (text, value) in [
            ("0", 0),
            ("100", 100),
            ("100M", 100_000_000),
            ("2.5G", 2_500_000_000),
            ("50Mbit", 50_000_000),
            ("50 mbit/s", 50_000_000),
            ("1.0000000010G", 1_000_000_001),
            (" 1k ", 1_000),
            ("1T", 1_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_rate(text), Ok(value), "{text:?}");
        }
        for number in ["", "M", ".5G", "5.", "1.2.3", "-1", "+1", "1e6"] {
            assert!(
                matches!(parse_rate(number), Err(QuantityError::Number | QuantityError::Unit(_))),
                "{number:?}"
            );
        }
        for unit in ["100MB", "1Gbps", "1Gi", "1 MM", "1 Mbit/m", "1µ", "1,5G"] {
            assert!(matches!(parse_rate(unit), Err(QuantityError::Unit(_))), "{unit:?}");
        }
        for fraction in ["0.5", "1.0001k", "0.1bit", &format!("0.{}1", "0".repeat(50))] {
            assert_eq!(parse_rate(fraction), Err(QuantityError::Fraction("bits per second")), "{fraction:?}");
        }
        for large in ["18446744073709551616", "18446745T", &"9".repeat(100)] {
            assert_eq!(parse_rate(large), Err(QuantityError::Large), "{large:?}");
        }
        assert_eq!(parse_bits("72kbit"), Ok(72_000));
        assert!(matches!(parse_bits("72kbit/s"), Err(QuantityError::Unit(_))));
    }

    #[test]
    fn bytes_are_binary_or_decimal() {
        for (text, value) in
            [("64Mi", 64 << 20), ("64MiB", 64 << 20), ("64M", 64_000_000), ("1.5gib", 3 << 29), ("512", 512)]
        {
            assert_eq!(parse_bytes(text), Ok(value), "{text:?}");
        }
        assert!(matches!(parse_bytes("64Mbit"), Err(QuantityError::Unit(_))));
    }

    #[test]
    fn quantities_are_written_in_their_largest_unit() {
        assert_eq!(rate(2_500_000_000), "2.5 Gbit/s");
        assert_eq!(rate(100_000_001), "100.000001 Mbit/s");
        assert_eq!(rate(0), "0 bit/s");
        assert_eq!(bits(72_000), "72 kbit");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(about_rate(2_512_345_678), "2.51 Gbit/s");
        assert_eq!(about_rate(12_345), "12.3 kbit/s");
        assert_eq!(about_rate(999), "999 bit/s");
        assert_eq!(about_rate(99_960), "100 kbit/s");
        assert_eq!(about_bytes(1536), "1.50 KiB");
        assert_eq!(about_bytes(7), "7 B");
        assert_eq!(about_count(7), "7");
        assert_eq!(about_count(1_020_000), "1.02 M");
        assert_eq!(percent(0.5), "50.0%");
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (192, "3m12s"), (7500, "2h5m"), (356_400, "4d3h")] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn intervals_are_positive_and_finite() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "4000", "", "x"] {
            assert!(parse_interval(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value: u64) {
            prop_assert_eq!(parse_rate(&rate(value)), Ok(value));
            prop_assert_eq!(parse_rate(&rate(value).replace(' ', "")), Ok(value));
            prop_assert_eq!(parse_bits(&bits(value)), Ok(value));
            prop_assert_eq!(parse_bytes(&bytes(value)), Ok(value));
        }

        #[test]
        fn a_multiple_is_that_many_units(number in 0u64..10_000_000, (prefix, factor) in prop::sample::select(&DECIMAL[..])) {
            prop_assert_eq!(parse_rate(&format!("{number}{prefix}bit")), Ok(number * factor));
        }

        #[test]
        fn any_text_is_a_quantity_or_refused(text in "\\PC{0,20}") {
            if let Ok(value) = parse_rate(&text) {
                prop_assert_eq!(parse_rate(&rate(value)), Ok(value));
            }
        }
    }
}
