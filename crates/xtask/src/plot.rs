//! Small charts as SVG, written by hand so that the published plots need nothing but this program.

use std::fmt::Write as _;

const W: f64 = 860.0;
const H: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;
const COLOURS: [&str; 5] = ["#1f6feb", "#d1242f", "#2da44e", "#9a6700", "#8250df"];

/// A measured value.
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The truth lies beyond: drawn hollow.
    pub(crate) beyond: bool,
}

impl Point {
    pub(crate) const fn new(x: f64, y: f64) -> Self {
        Self { x, y, beyond: false }
    }
}

/// A line: its name and its points.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
    pub(crate) dashed: bool,
}

/// What is around the lines. The x axis is logarithmic: it counts nodes.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    /// As ln(1 + y), so that zero has its place.
    pub(crate) log_y: bool,
    /// Horizontal lines and what they say.
    pub(crate) targets: &'a [(f64, &'a str)],
}

impl Chart<'_> {
    pub(crate) fn draw(&self, series: &[Series]) -> String {
        let points = || series.iter().flat_map(|s| &s.points);
        let (x0, x1) = points().fold((f64::MAX, 1.0), |(a, b), p| (p.x.min(a), p.x.max(b)));
        let top = points().map(|p| p.y).chain(self.targets.iter().map(|t| t.0)).fold(1.0, f64::max);
        let scale_y = |y: f64| if self.log_y { y.ln_1p() } else { y };
        let span = (x1.ln() - x0.ln()).max(1e-9);
        let px = |x: f64| LEFT + (x.ln() - x0.ln()) / span * (W - LEFT - RIGHT);
        let py = |y: f64| H - BOTTOM - scale_y(y) / scale_y(top * 1.08) * (H - TOP - BOTTOM);

        let mut svg = self.open();
        let mut put = |text: std::fmt::Arguments<'_>| {
            svg.write_fmt(text).expect("a string takes everything");
        };
        let mut last = f64::MAX;
        for y in self.ticks(top) {
            if last - py(y) < 18.0 {
                continue;
            }
            last = py(y);
            put(format_args!(
                r##"<line x1="{LEFT}" x2="{:.1}" y1="{last:.1}" y2="{last:.1}" stroke="#d8dee4"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
                W - RIGHT,
                LEFT - 8.0,
                last + 4.0,
                number(y)
            ));
        }
        let mut ticks: Vec<f64> = points().map(|p| p.x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let mut last = f64::MIN;
        for x in ticks {
            if px(x) - last > 36.0 {
                last = px(x);
                put(format_args!(
                    r##"<line x1="{last:.1}" x2="{last:.1}" y1="{0:.1}" y2="{1:.1}" stroke="#8c959f"/><text x="{last:.1}" y="{2:.1}" text-anchor="middle">{3}</text>"##,
                    H - BOTTOM,
                    H - BOTTOM + 5.0,
                    H - BOTTOM + 19.0,
                    number(x)
                ));
            }
        }
        for (y, says) in self.targets {
            put(format_args!(
                r##"<line x1="{LEFT}" x2="{0:.1}" y1="{1:.1}" y2="{1:.1}" stroke="#57606a" stroke-dasharray="2 3"/><text x="{2:.1}" y="{3:.1}" fill="#57606a">{says}</text>"##,
                W - RIGHT,
                py(*y),
                W - RIGHT + 6.0,
                py(*y) + 4.0,
            ));
        }
        for (i, s) in series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dash = if s.dashed { r#" stroke-dasharray="6 4""# } else { "" };
            let path: Vec<_> =
                s.points.iter().map(|p| format!("{:.1},{:.1}", px(p.x), py(p.y))).collect();
            put(format_args!(
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#,
                path.join(" ")
            ));
            for p in &s.points {
                let fill = if p.beyond { "#ffffff" } else { colour };
                put(format_args!(
                    r#"<circle cx="{:.1}" cy="{:.1}" r="3.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>"#,
                    px(p.x),
                    py(p.y)
                ));
            }
        }
        // The legend keeps clear of what the targets say.
        let lowest = self.targets.iter().map(|t| py(t.0) + 24.0).fold(TOP + 8.0, f64::max);
        let hollow = points().any(|p| p.beyond);
        for (i, s) in series.iter().enumerate() {
            let (at, colour) = (lowest + 20.0 * i as f64, COLOURS[i % COLOURS.len()]);
            let dash = if s.dashed { r#" stroke-dasharray="6 4""# } else { "" };
            put(format_args!(
                r#"<line x1="{0}" x2="{1}" y1="{at:.1}" y2="{at:.1}" stroke="{colour}" stroke-width="2"{dash}/><text x="{2}" y="{3:.1}">{4}</text>"#,
                W - RIGHT + 6.0,
                W - RIGHT + 30.0,
                W - RIGHT + 36.0,
                at + 4.0,
                s.name
            ));
        }
        if hollow {
            put(format_args!(
                r##"<text x="{}" y="{:.1}" fill="#57606a">hollow: not within so many</text>"##,
                W - RIGHT + 6.0,
                lowest + 20.0 * series.len() as f64 + 4.0
            ));
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// 1, 2, 5, 10, 20 … on a logarithmic axis; even steps of such a number on the other.
    fn ticks(&self, top: f64) -> Vec<f64> {
        if self.log_y {
            let decades = (0..9).map(|d| 10f64.powi(d));
            let all = decades.flat_map(|d| [d, 2.0 * d, 5.0 * d]);
            return std::iter::once(0.0).chain(all.take_while(|y| *y <= top)).collect();
        }
        let raw = top / 6.0;
        let base = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0]
            .into_iter()
            .map(|m| m * base)
            .find(|s| *s >= raw)
            .unwrap_or(10.0 * base);
        (0..).map(|i| f64::from(i) * step).take_while(|y| *y <= top * 1.08).collect()
    }

    fn open(&self) -> String {
        let Self { title, x, y, .. } = self;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="system-ui, sans-serif" font-size="12" fill="#24292f" role="img" aria-label="{title}"><title>{title}</title><rect width="{W}" height="{H}" fill="#ffffff"/><text x="{LEFT}" y="26" font-size="15" font-weight="600">{title}</text><text x="{:.1}" y="{:.1}" text-anchor="middle">{x}</text><text transform="translate(16 {:.1}) rotate(-90)" text-anchor="middle">{y}</text>"##,
            (LEFT + W - RIGHT) / 2.0,
            H - 12.0,
            (TOP + H - BOTTOM) / 2.0,
        )
    }
}

/// A number as people write it.
fn number(x: f64) -> String {
    if x != x.trunc() {
        return format!("{x:.2}").trim_end_matches('0').to_owned();
    }
    let digits = (x as i64).to_string();
    match digits.len() {
        0..4 => digits,
        n => format!("{},{}", &digits[..n - 3], &digits[n - 3..]),
    }
}
