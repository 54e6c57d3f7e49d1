//! Amounts of money as people write them: a number and a unit. A bare number is no amount: a slip
//! between wei and gwei is a factor of a thousand million.

use super::node::Kind;

/// A unit of money.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    name: &'static str,
    /// How many of the chain's smallest it is, as a power of ten.
    power: u32,
    chain: Kind,
}

const UNITS: [Unit; 4] = [
    Unit { name: "wei", power: 0, chain: Kind::Ethereum },
    Unit { name: "gwei", power: 9, chain: Kind::Ethereum },
    Unit { name: "eth", power: 18, chain: Kind::Ethereum },
    Unit { name: "planck", power: 0, chain: Kind::Substrate },
];

/// How much money, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    /// In the chain's smallest unit.
    pub(crate) smallest: u128,
    /// None of zero.
    unit: Option<&'static Unit>,
}

impl Amount {
    /// Refuses a unit of another kind of chain.
    pub(crate) fn check(self, option: &str, chain: Kind) -> Result<(), String> {
        let Some(unit) = self.unit.filter(|unit| unit.chain != chain) else { return Ok(()) };
        let (name, right) = (
            unit.name,
            match chain {
                Kind::Ethereum => "give --chain substrate, or write it as 50gwei or 0.01eth",
                Kind::Substrate => {
                    "a Substrate chain counts in its smallest unit: write it as 5000000planck"
                }
            },
        );
        Err(format!("{option} is in {name}, which is no unit of this kind of chain; {right}"))
    }
}

/// `50gwei`, `0.01eth`, `1000 wei`; on Substrate `5planck`. Zero needs no unit.
pub(crate) fn amount(text: &str) -> Result<Amount, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Amount { smallest: 0, unit: None });
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim().to_ascii_lowercase());
    let help = || "write a number and its unit: 50gwei, 0.01eth, 1000wei, 5planck".to_owned();
    let unit = UNITS.iter().find(|known| known.name == unit).ok_or_else(help)?;
    let power = unit.power;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Digits beyond the smallest unit would be dropped silently.
    let fraction = fraction.trim_end_matches('0');
    let places = u32::try_from(fraction.len()).map_err(|_| help())?;
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(help());
    }
    if places > power {
        return Err(format!("{text} is less than the smallest unit there is"));
    }
    let digits = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u128>() };
    let large = || format!("{text} is more money than there is");
    let scale = |value: u128, power: u32| 10u128.checked_pow(power)?.checked_mul(value);
    let whole = digits(whole).ok().and_then(|whole| scale(whole, power)).ok_or_else(large)?;
    let rest = digits(fraction).ok().and_then(|part| scale(part, power - places));
    let smallest = whole.checked_add(rest.ok_or_else(large)?).ok_or_else(large)?;
    Ok(Amount { smallest, unit: Some(unit) })
}

/// A bound on what is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cap {
    None,
    Most(Amount),
}

impl Cap {
    /// The bound, if there is one.
    pub(crate) fn most(self) -> Option<u128> {
        match self {
            Cap::None => None,
            Cap::Most(most) => Some(most.smallest),
        }
    }
}

/// An amount, or the word `none`.
pub(crate) fn cap(text: &str) -> Result<Cap, String> {
    match text.trim() {
        "none" => Ok(Cap::None),
        text => amount(text).map(Cap::Most).map_err(|error| format!("{error}; or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_lifted_by_a_word() {
        assert_eq!(cap("none"), Ok(Cap::None));
        assert_eq!(cap("50gwei").map(Cap::most), Ok(Some(50_000_000_000)));
        assert!(cap("50").is_err() && cap("").is_err() && cap("0x1").is_err());
    }

    #[test]
    fn an_amount_is_of_its_own_kind_of_chain() {
        let fits = |text, chain| amount(text).expect("an amount").check("--tip", chain).is_ok();
        for (text, ethereum, substrate) in [
            ("0", true, true),
            ("1gwei", true, false),
            ("1ETH", true, false),
            ("7planck", false, true),
        ] {
            assert_eq!(fits(text, Kind::Ethereum), ethereum, "{text}");
            assert_eq!(fits(text, Kind::Substrate), substrate, "{text}");
        }
    }

    #[test]
    fn an_amount_has_a_unit() {
        let amounts: [(&str, u128); 9] = [
            ("0", 0),
            ("1wei", 1),
            ("50gwei", 50_000_000_000),
            ("0.01eth", 10_000_000_000_000_000),
            ("1.5 gwei", 1_500_000_000),
            (".5gwei", 500_000_000),
            ("2.ETH", 2_000_000_000_000_000_000),
            ("7planck", 7),
            ("1.500000000gwei", 1_500_000_000),
        ];
        for (text, value) in amounts {
            assert_eq!(amount(text).map(|amount| amount.smallest), Ok(value), "{text}");
        }
        for bad in ["", "1", "50", "gwei", ".gwei", "1.2.3gwei", "-1gwei", "1e9wei", "1finney"] {
            assert!(amount(bad).is_err(), "{bad}");
        }
        assert!(amount("0.5wei").is_err() && amount("1.0000000001gwei").is_err());
        assert!(amount("999999999999999999999999eth").is_err());
    }
}
