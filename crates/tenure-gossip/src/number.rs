//! Numbers in JSON text: the ones that a store can give back as they were written.
//!
//! A number is kept as a 64-bit integer or as a double. One that is neither would come back as another
//! number, without a word; so it is refused where it comes in.

/// The first number in the JSON `text` that would come back as another one. The text itself is checked
/// by the parser; here every token that begins like a number is one.
pub(crate) fn inexact(text: &[u8]) -> Option<String> {
    let (mut at, mut quoted) = (0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'-' | b'0'..=b'9' if !quoted => {
                let length = text[at..].iter().take_while(|b| is_part(**b)).count();
                let token = String::from_utf8_lossy(&text[at..at + length]);
                if !is_kept(&token) {
                    return Some(token.chars().take(64).collect());
                }
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A value as it was typed: JSON, or else text.
///
/// # Errors
/// A number that would come back as another one: what is wrong, and what to do.
pub fn typed_value(text: &str) -> Result<serde_json::Value, String> {
    let parsed = serde_json::from_str(text);
    // A number that no double reaches is no JSON to the parser; it must not become text in silence.
    let meant = match &parsed {
        Ok(_) => true,
        Err(error) => error.to_string().starts_with("number out of range"),
    };
    if let Some(number) = inexact(text.as_bytes()).filter(|_| meant) {
        return Err(format!(
            "the number {number} cannot be kept exactly; write it as text: '\"{number}\"'"
        ));
    }
    Ok(parsed.unwrap_or_else(|_| text.into()))
}

fn is_part(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

fn is_kept(token: &str) -> bool {
    if !token.contains(['.', 'e', 'E']) {
        return token.parse::<i64>().is_ok() || token.parse::<u64>().is_ok();
    }
    match token.parse::<f64>() {
        // The text that will be written for this double must mean the same decimal number. Two texts may be
        // equally short and equally near, so it is the writer of the JSON that says which.
        Ok(number) if number.is_finite() => {
            serde_json::to_string(&number).is_ok_and(|text| decimal(token) == decimal(&text))
        }
        Ok(_) | Err(_) => false,
    }
}

/// Sign, significant digits, and the exponent of the last of them; `None` if it is no number.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_end_matches('0');
    let dropped = (all.len() - digits.len()) as i64;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some((negative, String::new(), 0));
    }
    let exponent = exponent.checked_sub(fraction.len() as i64)?.checked_add(dropped)?;
    Some((negative, digits.to_owned(), exponent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_typed_is_json_or_text_and_never_another_number() {
        for (text, value) in [
            ("1.5", serde_json::json!(1.5)),
            ("[1, \"2\"]", serde_json::json!([1, "2"])),
            ("hello", serde_json::json!("hello")),
            ("10.0.0.1:7400", serde_json::json!("10.0.0.1:7400")),
            ("2026-11-16", serde_json::json!("2026-11-16")),
            ("\"1e400\"", serde_json::json!("1e400")),
            ("-", serde_json::json!("-")),
        ] {
            assert_eq!(typed_value(text), Ok(value), "{text}");
        }
        for text in ["1e400", "-1e400", "18446744073709551616", "0.30000000000000004441", "[1e400]"]
        {
            let refused = typed_value(text);
            assert!(refused.is_err(), "{text}: {refused:?}");
        }
    }

    #[test]
    fn numbers_that_come_back_as_they_were_are_kept() {
        for good in [
            "0",
            "-0",
            "-0.0",
            "1",
            "-9223372036854775808",
            "18446744073709551615",
            "0.1",
            "1.50",
            "-5.041874620443454e-29",
            "1e2",
            "1E+2",
            "12300e-2",
            "1.7976931348623157e308",
            "5e-324",
            "605983547036561.2",
            r#"{"a":[1,2.5,"1e400 \" 99999999999999999999"],"b":null}"#,
        ] {
            assert_eq!(inexact(good.as_bytes()), None, "{good}");
        }
    }

    #[test]
    fn numbers_that_would_come_back_as_others_are_named() {
        for bad in [
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "-1e999999999999999999999",
            "0.1000000000000000000001",
            "123456789.123456789123",
            "4e-324",
            "605983547036561.3",
            "1e-400",
        ] {
            assert_eq!(inexact(bad.as_bytes()).as_deref(), Some(bad));
        }
        let within = r#"{"x":"y","n":[1, 1e400 ]}"#;
        assert_eq!(inexact(within.as_bytes()).as_deref(), Some("1e400"));
    }

    proptest! {
        #[test]
        fn every_double_survives_printing_and_parsing(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let text = serde_json::to_string(&number).expect("a finite double can be written");
            prop_assert_eq!(inexact(text.as_bytes()), None);
            let back: f64 = serde_json::from_str(&text).expect("just written");
            prop_assert_eq!(back.to_bits(), number.to_bits());
        }
    }
}
