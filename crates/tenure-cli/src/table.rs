//! Tables, times and ages as people read them.

use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;

use crate::output::out;

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

/// An instant as people read it, in UTC to the millisecond.
pub(crate) fn moment(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string())
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
    }
}
