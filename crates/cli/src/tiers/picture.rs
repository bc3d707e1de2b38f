//! Curves as SVG within a page.

use crate::page::escape;
use std::fmt::Write;
use tidepool_shape::{Measured, Point};
use tidepool_types::format_size;

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 320.0;
/// Room for the axes' words.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 110.0;
const BOTTOM: f64 = 42.0;
const TOP: f64 = 14.0;
/// By pattern.
const COLOURS: [&str; 3] = ["#0072b2", "#009e73", "#b36b00"];

/// Bandwidth over processes, each doubling a step: the median, and a bar from the least to the most of the repeats.
pub fn curves(measured: &Measured, title: &str) -> String {
    let points = || measured.patterns().into_iter().flat_map(|(_, points)| points);
    let rates = || points().flat_map(|point| point.repeats.iter().copied());
    let most = rates().max().unwrap_or(0).max(1) as f64;
    let counts = || points().map(|point| point.processes);
    let (first, last) = (counts().min().unwrap_or(1).max(1), counts().max().unwrap_or(1).max(1));
    let doublings = |n: u32| f64::from(n).log2();
    let span = (doublings(last) - doublings(first)).max(1e-9);
    let x = |n: u32| LEFT + 12.0 + (doublings(n) - doublings(first)) / span * (WIDTH - LEFT - RIGHT - 12.0);
    let y = |rate: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - rate / most);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{}</title>\n",
        escape(title)
    );
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(most * share);
        let words = format!("{}/s", format_size((most * share) as u64));
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/>", WIDTH - RIGHT);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{words}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let mut marked: Vec<u32> = counts().collect();
    marked.sort_unstable();
    marked.dedup();
    for n in marked {
        let at = HEIGHT - BOTTOM + 16.0;
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"middle\">{n}</text>", x(n));
    }
    for ((name, points), colour) in measured.patterns().into_iter().zip(COLOURS) {
        line(&mut out, (name, points, colour), &x, &y);
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ =
        writeln!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">processes</text>", HEIGHT - 8.0);
    out + "</svg>\n<p>Lines: medians. Bars: from the least to the most of the repeats.</p>\n"
}

fn line(
    out: &mut String,
    (name, points, colour): (&str, &[Point], &str),
    x: &impl Fn(u32) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let Some(last) = points.last() else { return };
    let at = |point: &Point| (x(point.processes), y(point.bytes_per_s as f64));
    let all: Vec<String> = points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        all.join(" ")
    );
    for point in points {
        let (cx, cy) = at(point);
        let least = y(point.repeats.iter().copied().min().unwrap_or(0) as f64);
        let most = y(point.repeats.iter().copied().max().unwrap_or(0) as f64);
        let _ = writeln!(out, "<path d=\"M{cx:.1} {least:.1}V{most:.1}\" stroke=\"{colour}\"/>");
        let _ = writeln!(
            out,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"><title>{name}, {} processes: {}/s</title></circle>",
            point.processes,
            format_size(point.bytes_per_s)
        );
    }
    let (cx, cy) = at(last);
    let _ =
        writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>", cx + 8.0, cy + 4.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_there_and_one_alone_is_drawn() {
        let point = |n| Point::of(n, &[100, 200]).unwrap();
        let empty = Measured::new("x", "n", 0);
        let two = Measured { sequential: vec![point(1), point(64)], random: vec![point(2)], ..empty.clone() };
        let drawn = curves(&two, "a<b");
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<polyline").count()), (3, 2));
        assert!(drawn.contains("<title>a&lt;b</title>") && !drawn.contains("NaN"), "{drawn}");
        let one = curves(&Measured { strided: vec![point(4)], ..empty.clone() }, "x");
        assert!(one.contains("strided, 4 processes: 150 B/s") && !one.contains("NaN"), "{one}");
        assert!(!curves(&empty, "x").contains("NaN"));
    }
}
