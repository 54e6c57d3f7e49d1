//! Small charts as SVG, written by hand so that the published plots need nothing but this program.

use std::fmt::Write as _;

const W: f64 = 720.0;
const H: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#2da44e", "#9a6700", "#8250df", "#57606a"];

/// A line: its name and its points.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) dashed: bool,
}

/// Lines over an axis; `log_x` for group sizes.
pub(super) fn lines(
    title: &str,
    x_name: &str,
    y_name: &str,
    log_x: bool,
    series: &[Series],
) -> String {
    let xs = || series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
    let (x0, x1) = (xs().fold(f64::MAX, f64::min), xs().fold(f64::MIN, f64::max));
    let y1 = series.iter().flat_map(|s| s.points.iter().map(|p| p.1)).fold(0.0, f64::max);
    let step = nice(y1 / 5.0);
    let y1 = ((y1 / step).ceil() * step).max(step);
    let scale = |x: f64| if log_x { x.ln() } else { x };
    let span = (scale(x1) - scale(x0)).max(1e-9);
    let px = |x: f64| LEFT + (scale(x) - scale(x0)) / span * (W - LEFT - RIGHT);
    let py = |y: f64| H - BOTTOM - y / y1 * (H - TOP - BOTTOM);

    let mut svg = open(title, x_name, y_name);
    let mut y = 0.0;
    while y <= y1 + step / 2.0 {
        let _ = write!(
            svg,
            r##"<line x1="{LEFT}" x2="{:.1}" y1="{1:.1}" y2="{1:.1}" stroke="#d0d7de"/><text x="{2:.1}" y="{3:.1}" text-anchor="end">{4}</text>"##,
            W - RIGHT,
            py(y),
            LEFT - 8.0,
            py(y) + 4.0,
            number(y)
        );
        y += step;
    }
    let mut ticks: Vec<f64> = xs().collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let mut last = f64::MIN;
    for x in ticks {
        if px(x) - last > 42.0 {
            last = px(x);
            let _ = write!(
                svg,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                px(x),
                H - BOTTOM + 18.0,
                number(x)
            );
        }
    }
    for (i, s) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: Vec<_> =
            s.points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
        let dash = if s.dashed { r#" stroke-dasharray="6 4""# } else { "" };
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#,
            path.join(" ")
        );
        for (x, y) in &s.points {
            let _ = write!(
                svg,
                r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"#,
                px(*x),
                py(*y)
            );
        }
        let at = TOP + 8.0 + 20.0 * i as f64;
        let _ = write!(
            svg,
            r#"<line x1="{0}" x2="{1}" y1="{at}" y2="{at}" stroke="{colour}" stroke-width="2"{dash}/><text x="{2}" y="{3}">{4}</text>"#,
            W - RIGHT + 12.0,
            W - RIGHT + 34.0,
            W - RIGHT + 40.0,
            at + 4.0,
            s.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn open(title: &str, x_name: &str, y_name: &str) -> String {
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="system-ui, sans-serif" font-size="12" fill="#24292f" role="img" aria-label="{title}"><title>{title}</title><rect width="{W}" height="{H}" fill="#ffffff"/><text x="{LEFT}" y="24" font-size="15" font-weight="600">{title}</text><text x="{:.1}" y="{:.1}" text-anchor="middle">{x_name}</text><text transform="translate(16 {:.1}) rotate(-90)" text-anchor="middle">{y_name}</text>"##,
        (LEFT + W - RIGHT) / 2.0,
        H - 10.0,
        (TOP + H - BOTTOM) / 2.0,
    )
}

/// The next of 1, 2, 5, 10, 20 …
fn nice(raw: f64) -> f64 {
    let base = 10f64.powf(raw.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * base).find(|s| *s >= raw).unwrap_or(base * 10.0)
}

fn number(x: f64) -> String {
    if x == x.trunc() {
        let digits = format!("{}", x as i64);
        if digits.len() > 4 {
            format!("{},{}", &digits[..digits.len() - 3], &digits[digits.len() - 3..])
        } else {
            digits
        }
    } else {
        format!("{x:.2}").trim_end_matches('0').to_owned()
    }
}
