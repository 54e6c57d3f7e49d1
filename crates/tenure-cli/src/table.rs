//! Tables, times and ages as people read them.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tenure::Identity;

use crate::output::out;

/// How wide a table may be where no terminal says so.
const WIDTH: u16 = 80;
/// How long a short name may be.
const NAME: usize = 24;

/// A table without borders that fits the terminal, or 80 columns.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    table_of(header, rows, false)
}

/// As [`table`]; a `wide` one never breaks a line.
pub(crate) fn table_of<R: Into<Row>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
    wide: bool,
) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().map(|name| name.to_uppercase()));
    if wide {
        table.set_content_arrangement(ContentArrangement::Disabled);
    } else if !std::io::stdout().is_terminal() {
        table.set_width(WIDTH);
    }
    for row in rows {
        table.add_row(row);
    }
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        // What is copied into the next command is in one piece, and so is a time.
        if matches!(*name, "slot" | "started" | "took") {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// What a word of a table means, for a terminal that has colours; the word itself says it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hue {
    Good,
    Care,
    Bad,
}

pub(crate) fn colour(cell: Cell, hue: Hue) -> Cell {
    if !has_colours() {
        return cell;
    }
    cell.fg(match hue {
        Hue::Good => Color::Green,
        Hue::Care => Color::Yellow,
        Hue::Bad => Color::Red,
    })
}

/// The same for a line that is no table.
pub(crate) fn paint(text: &str, hue: Hue) -> String {
    let code = match hue {
        Hue::Good => 32,
        Hue::Care => 33,
        Hue::Bad => 31,
    };
    if has_colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A pipe gets no control codes.
fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Short names of members: each is a part of one member's identity that no other one has, which is
/// what every command takes for a member.
#[derive(Debug)]
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    /// Of all members that are shown together; `wide`: whole identities.
    pub(crate) fn of<'a>(members: impl IntoIterator<Item = &'a Identity>, wide: bool) -> Self {
        let members: BTreeMap<&str, &Identity> =
            members.into_iter().map(|member| (member.as_str(), member)).collect();
        let scopes = members.values().map(|member| member.place().split('-').next());
        let scopes: std::collections::BTreeSet<_> = scopes.collect();
        let short = |member: &Identity| {
            let whole = member.as_str();
            let (place, pid) = (member.place(), member.pid());
            // A scope that all have tells nothing.
            let host = place.split_once('-').filter(|_| scopes.len() == 1);
            let host = host.map_or(place, |(_, host)| host);
            let id = &member.uuid().to_string()[..8];
            let only = |name: &String| {
                let alike = members.keys().filter(|other| other.contains(name.as_str()));
                name.len() <= NAME && whole.contains(name.as_str()) && alike.count() == 1
            };
            let forms =
                [format!("{host}-{pid}"), format!("{host}-{pid}-{id}"), format!("{pid}-{id}")];
            let fits = forms.into_iter().find(only).filter(|_| !wide);
            (whole.to_owned(), fits.unwrap_or_else(|| whole.to_owned()))
        };
        Names(members.values().map(|member| short(member)).collect())
    }

    /// The member's name here; of a member that is not shown, its whole identity.
    pub(crate) fn short<'a>(&'a self, member: &'a Identity) -> &'a str {
        self.0.get(member.as_str()).map_or(member.as_str(), String::as_str)
    }
}

/// Prints a table without the blanks that fill its lines up.
pub(crate) fn print(table: &Table) {
    out!("{}", table.trim_fmt());
}

/// A duration in the unit a person would choose.
pub(crate) fn ago(age: Duration) -> String {
    match age.as_millis() {
        ms @ ..1_000 => format!("{ms} ms"),
        ms @ 1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        ms @ 60_000..3_600_000 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

/// `1 session`, `2 sessions`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A length of time as it is written on the command line, to the millisecond.
pub(crate) fn span(time: Duration) -> String {
    let rest = Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000));
    match time.saturating_sub(rest) {
        Duration::ZERO => "0s".to_owned(),
        time => humantime::format_duration(time).to_string(),
    }
}

/// An instant as people read it, in UTC to the millisecond.
pub(crate) fn moment(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string())
}

/// The same to the second; without the date if that is today's (in UTC).
pub(crate) fn second(at: Option<Timestamp>) -> String {
    let day = |at: Timestamp| at.to_zoned(TimeZone::UTC).date();
    let Some(at) = at else { return "-".to_owned() };
    let today = day(at) == day(Timestamp::now());
    at.strftime(if today { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%MZ" }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_unit_a_person_would_choose() {
        let ago = |ms| ago(Duration::from_millis(ms));
        assert_eq!([ago(0), ago(250), ago(1_250)], ["0 ms", "250 ms", "1.2 s"]);
        assert_eq!([ago(90_000), ago(7_200_000)], ["1 min", "2 h"]);
        let moments = [
            ("2026-01-02T03:04:05.678901+00:00", "2026-01-02 03:04:05.678Z"),
            ("2026-01-02 05:04:05+02", "2026-01-02 03:04:05.000Z"),
        ];
        for (text, read) in moments {
            assert_eq!(moment(text.parse().ok()), read);
        }
        assert_eq!(moment(None), "-");
        assert_eq!(span(Duration::ZERO), "0s");
        assert_eq!(span(Duration::new(3, 1_136_187)), "3s 1ms");
    }

    #[test]
    fn a_short_name_is_a_part_that_no_other_member_has() {
        let named = |scope: &str, host: &str, pid, id: u128| {
            Identity::new(scope, host, pid, uuid::Uuid::from_u128(id << 96)).expect("an identity")
        };
        let members = [
            named("tenure", "web", 71, 1),
            named("tenure", "web", 711, 2),
            named("tenure", "db-east", 9, 3),
            named("tenure", &"very-".repeat(12), 5, 4),
        ];
        let names = Names::of(&members, false);
        let short: Vec<&str> = members.iter().map(|member| names.short(member)).collect();
        assert_eq!(short, ["web-71-00000001", "web-711", "db-east-9", "5-00000004"]);
        let wide = Names::of(&members, true);
        assert!(members.iter().all(|member| wide.short(member) == member.as_str()));
        // Scopes that differ are part of the name.
        let members = [named("blue", "web", 7, 1), named("green", "web", 7, 2)];
        let names = Names::of(&members, false);
        assert_eq!(names.short(&members[0]), "blue-web-7");
    }
}
