//! Shares along a log, as SVG within a page.

use crate::page::escape;
use std::fmt::Write;

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 300.0;
/// Room for the axes' words.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const BOTTOM: f64 = 42.0;
const TOP: f64 = 14.0;
const COLOURS: [&str; 3] = ["#0072b2", "#b36b00", "#009e73"];
/// What INVENTORY H11 allows.
const BAR: f64 = 0.1;

/// A line for each series, and the bar.
pub fn shares(series: &[(&str, [f64; 10])], title: &str) -> String {
    let x = |tenth: usize| LEFT + 12.0 + tenth as f64 / 9.0 * (WIDTH - LEFT - RIGHT - 12.0);
    let y = |share: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{}</title>\n",
        escape(title)
    );
    for (share, colour) in [(0.0, "#dddddd"), (BAR, "#cc3311"), (0.5, "#dddddd"), (1.0, "#dddddd")] {
        let at = y(share);
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"{colour}\"/>", WIDTH - RIGHT);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>",
            LEFT - 6.0,
            at + 4.0,
            share * 100.0
        );
    }
    for tenth in 0..10 {
        let at = HEIGHT - BOTTOM + 16.0;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"middle\">{}</text>",
            x(tenth),
            tenth + 1
        );
    }
    for ((name, shares), colour) in series.iter().zip(COLOURS) {
        let points: Vec<String> = shares
            .iter()
            .enumerate()
            .map(|(tenth, share)| format!("{:.1},{:.1}", x(tenth), y(*share)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            x(9) + 8.0,
            y(shares[9]) + 4.0,
            escape(name)
        );
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">tenth of the log</text>",
        HEIGHT - 8.0
    );
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_drawn_with_the_bar() {
        let drawn = shares(&[("a<b", [0.05; 10]), ("c", [1.0; 10])], "t");
        assert_eq!((drawn.matches("<polyline").count(), drawn.matches("#cc3311").count()), (2, 1));
        assert!(drawn.contains("a&lt;b") && drawn.contains(">10 %<") && !drawn.contains("NaN"), "{drawn}");
    }
}
