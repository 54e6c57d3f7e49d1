//! The evaluator: a pure function from a condition, samples and an instant to a vector.
//!
//! It computes what Prometheus 2 computes for the same samples, extrapolation of `rate` and `increase`
//! included; a test compares the two on random expressions. A range includes both of its ends.

use std::collections::{BTreeMap, BTreeSet};

use super::condition::{Aggregate, Condition, Expr, Grouping, Operator, Over, Round, Selector};
use super::sample::{Labels, NAME, Point, Samples, Series, written};

/// How old the latest point of a series may be, in milliseconds.
const LOOKBACK: i64 = 300_000;

/// One element of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct Element {
    /// Its labels; with a name where Prometheus keeps it.
    pub labels: Labels,
    /// What the expression is for these labels.
    pub value: f64,
}

/// Why a condition has no result at that instant. Nothing is known then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// Two elements of one side have the same labels.
    #[error(
        "{0} is there more than once on one side of an operator; aggregate it, or name labels with `on`"
    )]
    Many(String),
    /// Two elements of the result have the same labels.
    #[error("two results have the labels {0}; aggregate them")]
    Twice(String),
}

enum Value {
    Scalar(f64),
    Vector(Vec<Element>),
}

impl Condition {
    /// Evaluates it at `now`, in milliseconds since 1970 by the database's clock. Elements come in the order of their
    /// labels; none: the condition does not hold. Outside a range, a point older than 5 min does not count.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn evaluate(&self, samples: &Samples, now: i64) -> Result<Vec<Element>, EvaluateError> {
        let mut found = match evaluate(self.expr(), samples, now)? {
            Value::Vector(found) => found,
            // Refused when the condition was read.
            Value::Scalar(_) => Vec::new(),
        };
        found.sort_by(|a, b| a.labels.cmp(&b.labels));
        distinct(&found)?;
        Ok(found)
    }
}

fn evaluate(expr: &Expr, samples: &Samples, now: i64) -> Result<Value, EvaluateError> {
    Ok(match expr {
        Expr::Number(number) => Value::Scalar(*number),
        Expr::Select(selector) => Value::Vector(present(selector, samples, now)),
        Expr::Over { function, selector, range } => {
            Value::Vector(over(*function, selector, *range, samples, now))
        }
        Expr::Negate(of) => mapped(evaluate(of, samples, now)?, |value| -value)?,
        Expr::Round { function, of } => {
            let function = match function {
                Round::Abs => f64::abs,
                Round::Ceil => f64::ceil,
                Round::Floor => f64::floor,
            };
            mapped(evaluate(of, samples, now)?, function)?
        }
        Expr::Absent { of, labels } => match evaluate(of, samples, now)? {
            Value::Vector(found) if found.is_empty() => {
                Value::Vector(vec![Element { labels: labels.clone(), value: 1.0 }])
            }
            Value::Vector(_) | Value::Scalar(_) => Value::Vector(Vec::new()),
        },
        Expr::Aggregate { how, grouping, of } => match evaluate(of, samples, now)? {
            Value::Vector(found) => Value::Vector(aggregate(*how, grouping.as_ref(), found)),
            scalar @ Value::Scalar(_) => scalar,
        },
        Expr::Binary { operator, left, right, matching, as_bool } => {
            let (left, right) = (evaluate(left, samples, now)?, evaluate(right, samples, now)?);
            binary(*operator, left, right, matching, *as_bool)?
        }
    })
}

fn matching<'a>(selector: &'a Selector, samples: &'a Samples) -> impl Iterator<Item = &'a Series> {
    samples.named(selector.name).iter().filter(|series| {
        selector.matchers.iter().all(|matcher| {
            matcher.is_match(series.labels.get(&matcher.name).map_or("", String::as_str))
        })
    })
}

fn present(selector: &Selector, samples: &Samples, now: i64) -> Vec<Element> {
    let element = |series: &Series| {
        let point = series.points.iter().rev().find(|point| point.at <= now)?;
        let value = point.value.filter(|_| point.at >= now - LOOKBACK)?;
        Some(Element { labels: series.labels.clone(), value })
    };
    matching(selector, samples).filter_map(element).collect()
}

fn over(
    function: Over,
    selector: &Selector,
    range: i64,
    samples: &Samples,
    now: i64,
) -> Vec<Element> {
    let element = |series: &Series| {
        let inside = |point: &&Point| point.at >= now - range && point.at <= now;
        let points: Vec<(i64, f64)> = series
            .points
            .iter()
            .filter(inside)
            .filter_map(|point| Some((point.at, point.value?)))
            .collect();
        let value = of_range(function, &points, range, now)?;
        let mut labels = series.labels.clone();
        if function != Over::Last {
            labels.remove(NAME);
        }
        Some(Element { labels, value })
    };
    matching(selector, samples).filter_map(element).collect()
}

fn of_range(function: Over, points: &[(i64, f64)], range: i64, now: i64) -> Option<f64> {
    let values = || points.iter().map(|(_, value)| *value);
    let last = points.last()?.1;
    let pairs = || points.windows(2).map(|pair| (pair[0].1, pair[1].1));
    let count = points.len() as f64;
    Some(match function {
        Over::Rate => extrapolated(points, range, now, true)? / (range as f64 / 1000.0),
        Over::Increase => extrapolated(points, range, now, true)?,
        Over::Delta => extrapolated(points, range, now, false)?,
        Over::Changes => {
            pairs().filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan())).count() as f64
        }
        Over::Resets => pairs().filter(|(a, b)| b < a).count() as f64,
        Over::Min => values().fold(f64::NAN, f64::min),
        Over::Max => values().fold(f64::NAN, f64::max),
        Over::Sum => values().sum(),
        Over::Avg => values().sum::<f64>() / count,
        Over::Count => count,
        Over::Last => last,
    })
}

/// How much a series grew in a range, as if its points reached from end to end of it: as Prometheus does it.
fn extrapolated(points: &[(i64, f64)], range: i64, now: i64, counter: bool) -> Option<f64> {
    let ((first_at, first), (last_at, last)) = (*points.first()?, *points.last()?);
    if points.len() < 2 || last_at <= first_at {
        return None;
    }
    let mut grown = last - first;
    if counter {
        // A counter that fell began anew from zero.
        let fallen = points.windows(2).filter(|pair| pair[1].1 < pair[0].1);
        grown += fallen.map(|pair| pair[0].1).sum::<f64>();
    }
    let seconds = |from: i64, to: i64| (to - from) as f64 / 1000.0;
    let mut to_start = seconds(now - range, first_at);
    let to_end = seconds(last_at, now);
    let sampled = seconds(first_at, last_at);
    let apart = sampled / (points.len() - 1) as f64;
    if counter && grown > 0.0 && first >= 0.0 {
        // A counter was not below zero before its first point.
        to_start = to_start.min(sampled * (first / grown));
    }
    let reach = |gap: f64| if gap < apart * 1.1 { gap } else { apart / 2.0 };
    Some(grown * ((sampled + reach(to_start) + reach(to_end)) / sampled))
}

fn mapped(value: Value, function: impl Fn(f64) -> f64) -> Result<Value, EvaluateError> {
    Ok(match value {
        Value::Scalar(number) => Value::Scalar(function(number)),
        Value::Vector(mut found) => {
            for element in &mut found {
                element.value = function(element.value);
                element.labels.remove(NAME);
            }
            distinct(&found)?;
            Value::Vector(found)
        }
    })
}

fn distinct(found: &[Element]) -> Result<(), EvaluateError> {
    let mut seen = BTreeSet::new();
    match found.iter().find(|element| !seen.insert(&element.labels)) {
        Some(twice) => Err(EvaluateError::Twice(written(&twice.labels))),
        None => Ok(()),
    }
}

/// The labels by which elements are grouped or matched.
fn kept(labels: &Labels, grouping: &Grouping) -> Labels {
    let mut kept = labels.clone();
    kept.retain(|key, _| match grouping {
        Grouping::By(names) => names.contains(key),
        Grouping::Without(names) => key != NAME && !names.contains(key),
    });
    kept
}

fn aggregate(how: Aggregate, grouping: Option<&Grouping>, found: Vec<Element>) -> Vec<Element> {
    let mut groups: BTreeMap<Labels, Vec<f64>> = BTreeMap::new();
    for element in found {
        let labels = grouping.map_or_else(Labels::new, |grouping| kept(&element.labels, grouping));
        groups.entry(labels).or_default().push(element.value);
    }
    let one = |(labels, values): (Labels, Vec<f64>)| {
        let sum = || values.iter().sum::<f64>();
        let count = values.len() as f64;
        let value = match how {
            Aggregate::Sum => sum(),
            Aggregate::Avg => sum() / count,
            Aggregate::Count => count,
            Aggregate::Min => values.iter().copied().fold(f64::NAN, f64::min),
            Aggregate::Max => values.iter().copied().fold(f64::NAN, f64::max),
        };
        Element { labels, value }
    };
    groups.into_iter().map(one).collect()
}

/// The value of an operator, and whether a comparison holds.
fn apply(operator: Operator, left: f64, right: f64) -> (f64, bool) {
    match operator {
        Operator::Add => (left + right, true),
        Operator::Subtract => (left - right, true),
        Operator::Multiply => (left * right, true),
        Operator::Divide => (left / right, true),
        Operator::Modulo => (left % right, true),
        Operator::Power => (left.powf(right), true),
        Operator::Equal => (left, left == right),
        Operator::NotEqual => (left, left != right),
        Operator::Less => (left, left < right),
        Operator::LessOrEqual => (left, left <= right),
        Operator::Greater => (left, left > right),
        Operator::GreaterOrEqual => (left, left >= right),
        // Of vectors only; the parser refuses numbers.
        Operator::And | Operator::Or | Operator::Unless => (left, false),
    }
}

fn truth(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

fn binary(
    operator: Operator,
    left: Value,
    right: Value,
    matching: &Grouping,
    as_bool: bool,
) -> Result<Value, EvaluateError> {
    match (left, right) {
        (Value::Scalar(left), Value::Scalar(right)) => {
            let (value, holds) = apply(operator, left, right);
            let value = if operator.is_comparison() { truth(holds) } else { value };
            Ok(Value::Scalar(value))
        }
        (Value::Vector(found), Value::Scalar(number)) => {
            with_number(operator, found, as_bool, |value| apply(operator, value, number))
        }
        (Value::Scalar(number), Value::Vector(found)) => {
            with_number(operator, found, as_bool, |value| {
                let (computed, holds) = apply(operator, number, value);
                // A comparison filters the vector and keeps its values.
                (if operator.is_comparison() { value } else { computed }, holds)
            })
        }
        (Value::Vector(left), Value::Vector(right)) => {
            let found = match operator {
                Operator::And => set(left, right, matching, true),
                Operator::Unless => set(left, right, matching, false),
                Operator::Or => {
                    let there: BTreeSet<Labels> =
                        left.iter().map(|element| kept(&element.labels, matching)).collect();
                    let new = |element: &Element| !there.contains(&kept(&element.labels, matching));
                    let right: Vec<Element> = right.into_iter().filter(new).collect();
                    left.into_iter().chain(right).collect()
                }
                Operator::Add
                | Operator::Subtract
                | Operator::Multiply
                | Operator::Divide
                | Operator::Modulo
                | Operator::Power
                | Operator::Equal
                | Operator::NotEqual
                | Operator::Less
                | Operator::LessOrEqual
                | Operator::Greater
                | Operator::GreaterOrEqual => one_to_one(operator, left, right, matching, as_bool)?,
            };
            Ok(Value::Vector(found))
        }
    }
}

fn with_number(
    operator: Operator,
    found: Vec<Element>,
    as_bool: bool,
    of: impl Fn(f64) -> (f64, bool),
) -> Result<Value, EvaluateError> {
    let compares = operator.is_comparison();
    let mut result = Vec::new();
    for mut element in found {
        let (value, holds) = of(element.value);
        if compares && !as_bool && !holds {
            continue;
        }
        element.value = if compares && as_bool { truth(holds) } else { value };
        if !compares || as_bool {
            element.labels.remove(NAME);
        }
        result.push(element);
    }
    distinct(&result)?;
    Ok(Value::Vector(result))
}

fn set(left: Vec<Element>, right: Vec<Element>, matching: &Grouping, both: bool) -> Vec<Element> {
    let there: BTreeSet<Labels> =
        right.iter().map(|element| kept(&element.labels, matching)).collect();
    left.into_iter()
        .filter(|element| there.contains(&kept(&element.labels, matching)) == both)
        .collect()
}

fn one_to_one(
    operator: Operator,
    left: Vec<Element>,
    right: Vec<Element>,
    matching: &Grouping,
    as_bool: bool,
) -> Result<Vec<Element>, EvaluateError> {
    let many = |labels: &Labels| EvaluateError::Many(written(labels));
    if left.is_empty() || right.is_empty() {
        return Ok(Vec::new());
    }
    let mut partners = BTreeMap::new();
    for element in &right {
        let key = kept(&element.labels, matching);
        if partners.insert(key.clone(), element.value).is_some() {
            return Err(many(&key));
        }
    }
    let compares = operator.is_comparison();
    let mut matched = BTreeSet::new();
    let mut result = Vec::new();
    for element in left {
        let key = kept(&element.labels, matching);
        let Some(partner) = partners.get(&key) else { continue };
        let (value, holds) = apply(operator, element.value, *partner);
        if compares && !as_bool && !holds {
            continue;
        }
        let mut labels = element.labels;
        labels.retain(|name, _| match matching {
            Grouping::By(names) => names.contains(name),
            Grouping::Without(names) => !names.contains(name),
        });
        if !compares || as_bool {
            labels.remove(NAME);
        }
        if !matched.insert(key.clone()) {
            return Err(many(&key));
        }
        let value = if compares && as_bool { truth(holds) } else { value };
        result.push(Element { labels, value });
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::sample::labels;
    use proptest::prelude::*;

    const NOW: i64 = 1_000_000_000;

    fn series(name: &str, pairs: [(&str, &str); 2], values: &[Option<f64>]) -> Series {
        let first = NOW - 15_000 * (values.len() as i64 - 1);
        let point = |(n, value): (usize, &Option<f64>)| Point {
            at: first + 15_000 * n as i64,
            value: *value,
        };
        Series {
            labels: labels(name, pairs),
            points: values.iter().enumerate().map(point).collect(),
        }
    }

    fn samples(all: Vec<Series>) -> Samples {
        let mut samples = Samples::default();
        all.into_iter().for_each(|series| samples.add(series));
        samples
    }

    fn found(text: &str, samples: &Samples) -> Vec<(String, f64)> {
        let condition = Condition::parse(text).expect(text);
        let found = condition.evaluate(samples, NOW).expect(text);
        found.iter().map(|element| (written(&element.labels), element.value)).collect()
    }

    fn leaders() -> Samples {
        samples(vec![
            series("tenure_is_leader", [("role", "a"), ("instance", "x")], &[Some(1.0)]),
            series("tenure_is_leader", [("role", "a"), ("instance", "y")], &[Some(0.0)]),
            series("tenure_is_leader", [("role", "b"), ("instance", "x")], &[Some(0.0)]),
        ])
    }

    #[test]
    fn a_role_without_a_leader_is_found_and_one_with_a_leader_is_not() {
        let found = found("sum by (role) (tenure_is_leader) == 0", &leaders());
        assert_eq!(found, [("{role=\"b\"}".to_owned(), 0.0)]);
    }

    #[test]
    fn a_series_that_is_gone_has_no_value_and_an_old_one_neither() {
        let pairs = [("role", "a"), ("instance", "x")];
        let gone = samples(vec![series("tenure_epoch", pairs, &[Some(1.0), None])]);
        assert!(found("tenure_epoch > 0", &gone).is_empty());
        let mut old = series("tenure_epoch", pairs, &[Some(1.0)]);
        old.points[0].at = NOW - LOOKBACK - 1;
        assert!(found("tenure_epoch > 0", &samples(vec![old.clone()])).is_empty());
        old.points[0].at += 1;
        assert_eq!(found("tenure_epoch > 0", &samples(vec![old])).len(), 1);
    }

    #[test]
    fn an_increase_is_extrapolated_and_a_reset_is_no_decrease() {
        let pairs = [("role", "a"), ("instance", "x")];
        let whole: Vec<_> = (0..21).map(|n| Some(f64::from(n))).collect();
        let one = samples(vec![series("tenure_failovers_total", pairs, &whole)]);
        let value = found("increase(tenure_failovers_total[5m])", &one)[0].1;
        assert!((value - 20.0).abs() < 1e-9, "{value}");
        let value = found("rate(tenure_failovers_total[5m])", &one)[0].1;
        assert!((value - 20.0 / 300.0).abs() < 1e-12, "{value}");
        let reset = [Some(5.0), Some(6.0), Some(1.0), Some(2.0)];
        let one = samples(vec![series("tenure_failovers_total", pairs, &reset)]);
        let value = found("increase(tenure_failovers_total[45s])", &one)[0].1;
        assert!((value - 3.0).abs() < 1e-9, "{value}");
        assert_eq!(found("resets(tenure_failovers_total[45s])", &one)[0].1, 1.0);
    }

    #[test]
    fn what_matches_more_than_once_is_an_error_and_no_guess() {
        let condition = Condition::parse("tenure_is_leader == on (role) tenure_is_leader");
        let error = condition.expect("valid").evaluate(&leaders(), NOW).expect_err("twice");
        assert!(error.to_string().contains("{role=\"a\"}"), "{error}");
    }

    #[test]
    fn absence_is_told_with_the_labels_that_were_asked_for() {
        let found = found("absent(tenure_is_leader{role='z',instance=~'.+'})", &leaders());
        assert_eq!(found, [("{role=\"z\"}".to_owned(), 1.0)]);
    }

    proptest! {
        #[test]
        fn an_increase_of_a_counter_is_never_negative(
            steps in proptest::collection::vec((0_u8..4, proptest::bool::weighted(0.8)), 2..30),
            range in 15_i64..600,
        ) {
            let mut total = 0.0;
            let values: Vec<Option<f64>> = steps.iter().map(|(step, there)| {
                total += f64::from(*step);
                there.then_some(total)
            }).collect();
            let pairs = [("role", "a"), ("instance", "x")];
            let one = samples(vec![series("tenure_failovers_total", pairs, &values)]);
            for (_, value) in found(&format!("increase(tenure_failovers_total[{range}s])"), &one) {
                prop_assert!(value >= 0.0, "{value}");
                // Extrapolation adds at most what half a gap on either side would, and never doubles.
                prop_assert!(value <= 3.3 * total, "{value} of {total}");
            }
        }
    }
}
