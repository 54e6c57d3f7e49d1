//! A condition as validated: PromQL, as far as it is evaluated here.
//!
//! The parser is Prometheus' own grammar; what it reads becomes `Expr`, which has only what the evaluator
//! can do. Everything else, an unknown series or an unknown label is refused when the file is read: a rule
//! that could never fire is worse than none.

use std::time::Duration;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Call, Expr as Parsed, LabelModifier, VectorMatchCardinality,
    VectorSelector,
};

use super::sample::{Labels, NAME};
use super::series::{is_label, known};

/// The longest range of a selector, as in `[1h]`.
pub const LONGEST_RANGE: Duration = Duration::from_secs(3600);
/// Nothing that a person writes is deeper; the parser recurses.
const LONGEST_TEXT: usize = 4096;

/// A condition: an expression whose result is a vector. Each element of it is an alert.
#[derive(Debug, Clone)]
pub struct Condition {
    text: String,
    prometheus: String,
    expr: Expr,
}

/// An expression that the evaluator knows.
#[derive(Debug, Clone)]
pub(crate) enum Expr {
    Number(f64),
    Select(Selector),
    Over {
        function: Over,
        selector: Selector,
        range: i64,
    },
    Negate(Box<Expr>),
    Round {
        function: Round,
        of: Box<Expr>,
    },
    Absent {
        of: Box<Expr>,
        labels: Labels,
    },
    Aggregate {
        how: Aggregate,
        grouping: Option<Grouping>,
        of: Box<Expr>,
    },
    Binary {
        operator: Operator,
        left: Box<Expr>,
        right: Box<Expr>,
        matching: Grouping,
        as_bool: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Selector {
    /// One of ours, never FORGE's.
    pub(crate) name: &'static str,
    pub(crate) matchers: Vec<Matcher>,
}

/// Functions of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Rate,
    Increase,
    Delta,
    Changes,
    Resets,
    Min,
    Max,
    Avg,
    Sum,
    Count,
    Last,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Abs,
    Ceil,
    Floor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Sum,
    Min,
    Max,
    Avg,
    Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Unless,
}

/// `by`/`on` these labels, or `without`/`ignoring` them.
#[derive(Debug, Clone)]
pub(crate) enum Grouping {
    By(Vec<String>),
    Without(Vec<String>),
}

/// Why a condition was refused. Nothing was started; change the condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionError {
    /// It is no PromQL.
    #[error("{0}; write PromQL, as `sum by (role) (tenure_is_leader) == 0`")]
    Unreadable(String),
    /// It is PromQL that is not evaluated here.
    #[error("{0} is not evaluated here; docs/alerts.md lists what is")]
    Unsupported(String),
    /// A series that the tables do not have.
    #[error("there is no series `{0}`; docs/alerts.md lists them")]
    UnknownSeries(String),
    /// A label that the series does not have: such a rule would never fire.
    #[error("`{series}` has no label `{label}`; it has {has}")]
    UnknownLabel {
        /// The series that the condition names.
        series: String,
        /// The label that it asks of the series.
        label: String,
        /// The labels that the series has.
        has: String,
    },
    /// Its result is no vector.
    #[error("it compares no series; an alert needs one, as in `tenure_is_leader == 0`")]
    NoVector,
    /// A range is out of bounds.
    #[error("a range is at most 1h; shorten [{0:?}]")]
    Range(Duration),
}

impl Condition {
    /// Reads a condition: PromQL of at most 4,096 bytes, with the series of [`series::KNOWN`](super::series::KNOWN).
    ///
    /// # Errors
    /// [`ConditionError`], also for what is PromQL and could never fire here.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        if text.len() > LONGEST_TEXT {
            return Err(ConditionError::Unreadable("it is longer than 4096 bytes".to_owned()));
        }
        let mut parsed = parser::parse(text).map_err(ConditionError::Unreadable)?;
        let expr = read(&parsed)?;
        if expr.is_scalar() {
            return Err(ConditionError::NoVector);
        }
        rename(&mut parsed);
        Ok(Condition { text: text.to_owned(), prometheus: parsed.to_string(), expr })
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As PromQL for a Prometheus that scrapes the members: FORGE's names are replaced by ours.
    #[must_use]
    pub fn prometheus(&self) -> &str {
        &self.prometheus
    }

    pub(crate) fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The longest range that it looks back.
    #[must_use]
    pub fn longest_range(&self) -> Duration {
        let mut longest = 0;
        self.expr.visit(&mut |expr| {
            if let Expr::Over { range, .. } = expr {
                longest = longest.max(*range);
            }
        });
        Duration::from_millis(longest.unsigned_abs())
    }

    /// The series of which it needs more than the present.
    pub(crate) fn ranged(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        self.expr.visit(&mut |expr| {
            if let Expr::Over { selector, .. } = expr {
                names.push(selector.name);
            }
        });
        names
    }
}

impl Expr {
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Expr::Number(_) => true,
            Expr::Negate(of) => of.is_scalar(),
            Expr::Binary { left, right, .. } => left.is_scalar() && right.is_scalar(),
            Expr::Select(_)
            | Expr::Over { .. }
            | Expr::Round { .. }
            | Expr::Absent { .. }
            | Expr::Aggregate { .. } => false,
        }
    }

    fn visit(&self, see: &mut impl FnMut(&Expr)) {
        see(self);
        match self {
            Expr::Number(_) | Expr::Select(_) | Expr::Over { .. } => {}
            Expr::Negate(of)
            | Expr::Round { of, .. }
            | Expr::Absent { of, .. }
            | Expr::Aggregate { of, .. } => of.visit(see),
            Expr::Binary { left, right, .. } => {
                left.visit(see);
                right.visit(see);
            }
        }
    }
}

impl Operator {
    pub(crate) fn is_comparison(self) -> bool {
        match self {
            Operator::Equal
            | Operator::NotEqual
            | Operator::Less
            | Operator::LessOrEqual
            | Operator::Greater
            | Operator::GreaterOrEqual => true,
            Operator::Add
            | Operator::Subtract
            | Operator::Multiply
            | Operator::Divide
            | Operator::Modulo
            | Operator::Power
            | Operator::And
            | Operator::Or
            | Operator::Unless => false,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "+" => Operator::Add,
            "-" => Operator::Subtract,
            "*" => Operator::Multiply,
            "/" => Operator::Divide,
            "%" => Operator::Modulo,
            "^" => Operator::Power,
            "==" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            "and" => Operator::And,
            "or" => Operator::Or,
            "unless" => Operator::Unless,
            _ => return None,
        })
    }
}

fn unsupported(what: impl Into<String>) -> ConditionError {
    ConditionError::Unsupported(what.into())
}

fn read(parsed: &Parsed) -> Result<Expr, ConditionError> {
    match parsed {
        Parsed::NumberLiteral(number) => Ok(Expr::Number(number.val)),
        Parsed::Paren(inner) => read(&inner.expr),
        Parsed::Unary(inner) => Ok(Expr::Negate(Box::new(read(&inner.expr)?))),
        Parsed::VectorSelector(vector) => selector(vector).map(Expr::Select),
        Parsed::Aggregate(aggregate) => read_aggregate(aggregate),
        Parsed::Binary(binary) => read_binary(binary),
        Parsed::Call(call) => read_call(call),
        Parsed::MatrixSelector(_) => Err(unsupported("a range outside a function")),
        Parsed::Subquery(_) => Err(unsupported("a subquery")),
        Parsed::StringLiteral(_) => Err(unsupported("a text")),
        Parsed::Extension(_) => Err(unsupported("an extension")),
    }
}

fn selector(vector: &VectorSelector) -> Result<Selector, ConditionError> {
    let Some(name) = &vector.name else {
        return Err(unsupported("a selector without a series' name"));
    };
    let series = known(name).ok_or_else(|| ConditionError::UnknownSeries(name.clone()))?;
    if vector.offset.is_some() || vector.at.is_some() {
        return Err(unsupported("`offset` or `@`"));
    }
    if !vector.matchers.or_matchers.is_empty() {
        return Err(unsupported("`or` between matchers"));
    }
    for matcher in &vector.matchers.matchers {
        if !series.labels.contains(&matcher.name.as_str()) {
            return Err(ConditionError::UnknownLabel {
                series: name.clone(),
                label: matcher.name.clone(),
                has: series.labels.join(" and "),
            });
        }
    }
    Ok(Selector { name: series.name, matchers: vector.matchers.matchers.clone() })
}

fn grouping(modifier: &LabelModifier) -> Result<Grouping, ConditionError> {
    let labels = modifier.labels().labels.clone();
    if let Some(label) = labels.iter().find(|label| !is_label(label)) {
        return Err(ConditionError::UnknownLabel {
            series: "any series".to_owned(),
            label: label.clone(),
            has: "role, instance and schedule".to_owned(),
        });
    }
    Ok(if modifier.is_include() { Grouping::By(labels) } else { Grouping::Without(labels) })
}

fn read_aggregate(aggregate: &AggregateExpr) -> Result<Expr, ConditionError> {
    let how = match aggregate.op.to_string().as_str() {
        "sum" => Aggregate::Sum,
        "min" => Aggregate::Min,
        "max" => Aggregate::Max,
        "avg" => Aggregate::Avg,
        "count" => Aggregate::Count,
        other => return Err(unsupported(format!("`{other}`"))),
    };
    let of = Box::new(read(&aggregate.expr)?);
    if of.is_scalar() {
        return Err(unsupported("an aggregate of a number"));
    }
    let grouping = aggregate.modifier.as_ref().map(grouping).transpose()?;
    Ok(Expr::Aggregate { how, grouping, of })
}

fn read_binary(binary: &BinaryExpr) -> Result<Expr, ConditionError> {
    let name = binary.op.to_string();
    let Some(operator) = Operator::named(&name) else {
        return Err(unsupported(format!("`{name}`")));
    };
    let (left, right) = (Box::new(read(&binary.lhs)?), Box::new(read(&binary.rhs)?));
    let mut matching = Grouping::Without(Vec::new());
    let mut as_bool = false;
    if let Some(modifier) = &binary.modifier {
        as_bool = modifier.return_bool;
        match &modifier.card {
            VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => {}
            VectorMatchCardinality::ManyToOne(_) | VectorMatchCardinality::OneToMany(_) => {
                return Err(unsupported("`group_left` or `group_right`"));
            }
        }
        if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
            return Err(unsupported("`fill`"));
        }
        if let Some(labels) = &modifier.matching {
            matching = grouping(labels)?;
        }
    }
    Ok(Expr::Binary { operator, left, right, matching, as_bool })
}

fn read_call(call: &Call) -> Result<Expr, ConditionError> {
    let name = call.func.name;
    let argument = match call.args.args.as_slice() {
        [argument] => unwrapped(argument),
        _ => return Err(unsupported(format!("`{name}`"))),
    };
    let function = match name {
        "rate" => Over::Rate,
        "increase" => Over::Increase,
        "delta" => Over::Delta,
        "changes" => Over::Changes,
        "resets" => Over::Resets,
        "min_over_time" => Over::Min,
        "max_over_time" => Over::Max,
        "avg_over_time" => Over::Avg,
        "sum_over_time" => Over::Sum,
        "count_over_time" => Over::Count,
        "last_over_time" => Over::Last,
        "abs" | "ceil" | "floor" => {
            let function = match name {
                "abs" => Round::Abs,
                "ceil" => Round::Ceil,
                _ => Round::Floor,
            };
            return Ok(Expr::Round { function, of: Box::new(read(argument)?) });
        }
        "absent" => {
            let labels = match argument {
                Parsed::VectorSelector(vector) => absent_labels(&vector.matchers.matchers),
                _ => Labels::new(),
            };
            return Ok(Expr::Absent { of: Box::new(read(argument)?), labels });
        }
        other => return Err(unsupported(format!("`{other}`"))),
    };
    let Parsed::MatrixSelector(matrix) = argument else {
        return Err(unsupported(format!("`{name}` of anything but a series with a range")));
    };
    if matrix.range > LONGEST_RANGE {
        return Err(ConditionError::Range(matrix.range));
    }
    let range = i64::try_from(matrix.range.as_millis()).unwrap_or(i64::MAX);
    Ok(Expr::Over { function, selector: selector(&matrix.vs)?, range })
}

fn unwrapped(mut parsed: &Parsed) -> &Parsed {
    while let Parsed::Paren(inner) = parsed {
        parsed = &inner.expr;
    }
    parsed
}

/// The labels that an absent series would surely have; one that is asked for twice is not sure.
fn absent_labels(matchers: &[Matcher]) -> Labels {
    let sure = |matcher: &&Matcher| {
        matches!(matcher.op, MatchOp::Equal)
            && matcher.name != NAME
            && matchers.iter().filter(|other| other.name == matcher.name).count() == 1
    };
    let pair = |matcher: &Matcher| (matcher.name.clone(), matcher.value.clone());
    matchers.iter().filter(sure).map(pair).collect()
}

/// FORGE's names become ours, for export.
fn rename(parsed: &mut Parsed) {
    let ours = |vector: &mut VectorSelector| {
        if let Some(series) = vector.name.as_deref().and_then(known) {
            vector.name = Some(series.name.to_owned());
        }
    };
    match parsed {
        Parsed::VectorSelector(vector) => ours(vector),
        Parsed::MatrixSelector(matrix) => ours(&mut matrix.vs),
        Parsed::Paren(inner) => rename(&mut inner.expr),
        Parsed::Unary(inner) => rename(&mut inner.expr),
        Parsed::Aggregate(inner) => rename(&mut inner.expr),
        Parsed::Binary(inner) => {
            rename(&mut inner.lhs);
            rename(&mut inner.rhs);
        }
        Parsed::Call(call) => call.args.args.iter_mut().for_each(|argument| rename(argument)),
        Parsed::Subquery(inner) => rename(&mut inner.expr),
        Parsed::NumberLiteral(_) | Parsed::StringLiteral(_) | Parsed::Extension(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Condition::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn the_specifications_own_conditions_are_read_and_exported_under_our_names() {
        let condition = Condition::parse("sum(forge_leader_is_leader{role='scheduler'}) == 0");
        let condition = condition.expect("valid");
        assert_eq!(condition.prometheus(), "sum(tenure_is_leader{role=\"scheduler\"}) == 0");
        let condition =
            Condition::parse("rate(forge_leader_failovers_total[5m]) > 5").expect("valid");
        assert_eq!(condition.prometheus(), "rate(tenure_failovers_total[5m]) > 5");
        assert_eq!(condition.longest_range(), Duration::from_secs(300));
        assert_eq!(condition.ranged(), ["tenure_failovers_total"]);
        for text in ["forge_leader_elections_total > 3", "forge_leader_tenure_seconds < 60"] {
            assert!(Condition::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_not_evaluated_is_refused_by_name() {
        for (text, word) in [
            ("sum(nonsense) == 0", "no series `nonsense`"),
            ("tenure_acts_refused_total > 0", "no series `tenure_acts_refused_total`"),
            ("tenure_is_leader{rol='x'} == 0", "no label `rol`; it has role and instance"),
            ("sum by (rol) (tenure_is_leader) == 0", "no label `rol`"),
            ("tenure_connected{role='x'} == 0", "no label `role`; it has instance"),
            ("topk(1, tenure_epoch) > 0", "`topk`"),
            ("tenure_is_leader offset 5m == 0", "`offset` or `@`"),
            ("max_over_time(tenure_epoch[5m:1m]) > 0", "series with a range"),
            ("tenure_epoch * on (role) group_left tenure_role_paused > 0", "`group_left`"),
            ("{role='x'} == 0", "without a series' name"),
            ("rate(tenure_epoch[2h]) > 0", "at most 1h"),
            ("1 == bool 1", "compares no series"),
            ("sum(", "write PromQL"),
            ("predict_linear(tenure_epoch[5m], 60) > 0", "`predict_linear`"),
            ("histogram_quantile(0.9, tenure_epoch) > 0", "`histogram_quantile`"),
        ] {
            let error = refused(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
