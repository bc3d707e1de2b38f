//! The share of users whose typical error is not above so much (S0 Figure 5, S2 Figure 5), as SVG.

use crate::page::escape;
use std::fmt::Write;

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 340.0;
/// Room for the axes' words.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const BOTTOM: f64 = 42.0;
const TOP: f64 = 24.0;
const COLOURS: [&str; 4] = ["#0072b2", "#b36b00", "#009e73", "#cc3311"];
/// Ends of the logarithmic axis: what is less or more is drawn there.
const SECONDS: (f64, f64) = (1.0, 1e6);
const TICKS: [(f64, &str); 7] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (36_000.0, "10 h"),
    (360_000.0, "100 h"),
];

fn x(seconds: f64) -> f64 {
    let (least, most) = SECONDS;
    let share = (seconds.clamp(least, most) / least).ln() / (most / least).ln();
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

fn y(share: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share)
}

/// A staircase for each series of errors in ascending order.
pub fn draw(series: &[(&str, &[f64])], title: &str) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{0}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"14\">{0}</text>\n",
        escape(title)
    );
    axes(&mut out);
    for (number, (name, errors)) in series.iter().enumerate() {
        stairs(&mut out, number, name, errors);
    }
    out + "</svg>\n"
}

fn axes(out: &mut String) {
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, end) = (y(share), WIDTH - RIGHT);
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{end:.1}\" stroke=\"#dddddd\"/>");
        let (left, down) = (LEFT - 6.0, at + 4.0);
        let percent = share * 100.0;
        let _ = writeln!(out, "<text x=\"{left}\" y=\"{down:.1}\" text-anchor=\"end\">{percent:.0} %</text>");
    }
    for (seconds, words) in TICKS {
        let (at, down) = (x(seconds), HEIGHT - BOTTOM + 16.0);
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{down}\" text-anchor=\"middle\">{words}</text>");
    }
    let (middle, down) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{down}\" text-anchor=\"middle\">users with a median absolute error of at most</text>"
    );
}

fn stairs(out: &mut String, number: usize, name: &str, errors: &[f64]) {
    let colour = COLOURS[number % COLOURS.len()];
    let mut path = format!("M{:.1} {:.1}", x(SECONDS.0), y(0.0));
    for (rank, error) in errors.iter().enumerate() {
        let _ = write!(path, "H{:.1}V{:.1}", x(*error), y((rank + 1) as f64 / errors.len() as f64));
    }
    let _ = writeln!(
        out,
        "<path d=\"{path}H{:.1}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        WIDTH - RIGHT
    );
    let (right, down) = (WIDTH - RIGHT + 8.0, TOP + 12.0 + 16.0 * number as f64);
    let _ = writeln!(out, "<text x=\"{right}\" y=\"{down}\" fill=\"{colour}\">{}</text>", escape(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_a_staircase_that_reaches_all_users() {
        let drawn = draw(&[("a<b", &[0.0, 60.0, 1e9]), ("c", &[])], "t");
        assert_eq!(drawn.matches("stroke-width=\"2\"").count(), 2);
        assert_eq!(drawn.matches(&format!("V{:.1}", y(1.0))).count(), 1);
        assert!(drawn.contains("a&lt;b") && !drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert!(drawn.contains(&format!("H{:.1}V{:.1}", x(60.0), y(2.0 / 3.0))));
    }
}
