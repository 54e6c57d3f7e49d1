//! Tables a person can read, and JSON for those who cannot.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::speech::say;

/// A table without borders, as wide as the terminal.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Prints a table without the blanks that fill its lines up.
pub(crate) fn print(table: &Table) {
    say!("{}", table.trim_fmt());
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Failure::new(Exit::NotLeader, format!("no JSON could be made: {error}"))
    })?;
    say!("{text}");
    Ok(())
}

/// A duration in the unit a person would choose.
pub(crate) fn ago(ms: i64) -> String {
    match ms {
        ..1_000 => format!("{} ms", ms.max(0)),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// A timestamp without the part nobody reads.
pub(crate) fn moment(text: Option<&str>) -> String {
    let text = text.unwrap_or("-").replace('T', " ");
    match text.split_once('.') {
        Some((whole, rest)) => {
            let fraction: String = rest.chars().take_while(char::is_ascii_digit).take(3).collect();
            format!("{whole}.{fraction}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_unit_a_person_would_choose() {
        assert_eq!([ago(-5), ago(250), ago(1_250)], ["0 ms", "250 ms", "1.2 s"]);
        assert_eq!([ago(90_000), ago(7_200_000)], ["1 min", "2 h"]);
        assert_eq!(moment(Some("2026-01-02T03:04:05.678901+00:00")), "2026-01-02 03:04:05.678");
        assert_eq!(moment(None), "-");
    }
}
