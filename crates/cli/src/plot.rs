//! Lines over a time or another number, and bars, as SVG within a page.

use crate::page::escape;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
/// Room for the axes' words.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 130.0;
const BOTTOM: f64 = 42.0;
const TOP: f64 = 14.0;
/// Most lines that are still told apart.
pub const LINES_MAX: usize = 16;
/// Colours that people who see fewer of them can tell apart; further lines are dashed.
const COLOURS: [&str; 8] =
    ["#0072b2", "#b36b00", "#009e73", "#cc3377", "#5555aa", "#666666", "#8a7a00", "#007a8a"];

/// What a plot shows.
pub struct Plot<'a> {
    pub title: &'a str,
    /// Under the picture.
    pub below: &'a str,
    /// Decades rather than steps on the axis below.
    pub log: bool,
    /// Of the axes' numbers, for people.
    pub x_words: &'a dyn Fn(f64) -> String,
    pub y_words: &'a dyn Fn(f64) -> String,
    /// The top of the picture; without, the highest point.
    pub y_most: Option<f64>,
}

/// A name and its points, in their order. Points that are no numbers are left out.
#[derive(Clone)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

struct Scale {
    from: f64,
    to: f64,
    log: bool,
    y_most: f64,
}

impl Scale {
    fn of(plot: &Plot<'_>, lines: &[Line]) -> Scale {
        let all =
            || lines.iter().flat_map(|line| line.points.iter().copied()).filter(|point| shown(plot, *point));
        let from = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let to = all().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
        let highest = all().map(|point| point.1).fold(0.0, f64::max);
        let y_most = plot.y_most.unwrap_or(highest);
        // Nothing is drawn of nothing, but a logarithm needs numbers above 0.
        let (from, to) = if from <= to { (from, to) } else { (1.0, 10.0) };
        Scale { from, to, log: plot.log, y_most: if y_most > 0.0 { y_most } else { 1.0 } }
    }

    fn along(&self, x: f64) -> f64 {
        let at = |x: f64| if self.log { x.max(f64::MIN_POSITIVE).log10() } else { x };
        let span = at(self.to) - at(self.from);
        if span > 0.0 { (at(x) - at(self.from)) / span } else { 0.5 }
    }

    fn x(&self, x: f64) -> f64 {
        LEFT + self.along(x) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (y / self.y_most).clamp(0.0, 1.0))
    }

    /// Where the axis below has words.
    fn marks(&self) -> Vec<f64> {
        if self.to <= self.from {
            return vec![self.from];
        }
        if !self.log {
            return (0..5).map(|n| self.from + (self.to - self.from) * f64::from(n) / 4.0).collect();
        }
        let (first, last) = (self.from.log10().ceil() as i32, self.to.log10().floor() as i32);
        let decades: Vec<f64> = (first..=last).map(|n| 10f64.powi(n)).collect();
        if decades.is_empty() { vec![self.from, self.to] } else { decades }
    }
}

fn shown(plot: &Plot<'_>, (x, y): (f64, f64)) -> bool {
    x.is_finite() && y.is_finite() && (!plot.log || x > 0.0)
}

/// A line for each, with its name beside.
pub fn lines(plot: &Plot<'_>, lines: &[Line]) -> String {
    let lines = &lines[..lines.len().min(LINES_MAX)];
    let scale = Scale::of(plot, lines);
    let mut out = frame(plot, &scale);
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dashes = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let points = line.points.iter().filter(|point| shown(plot, **point));
        let points: Vec<String> =
            points.map(|(x, y)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*y))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dashes}/>",
            points.join(" ")
        );
        let y = TOP + 10.0 + 14.0 * number as f64;
        let x = WIDTH - RIGHT + 8.0;
        let _ = writeln!(
            out,
            "<path d=\"M{x} {:.1}h14\" stroke=\"{colour}\" stroke-width=\"3\"{dashes}/>",
            y - 4.0
        );
        let _ = writeln!(out, "<text x=\"{}\" y=\"{y:.1}\">{}</text>", x + 18.0, escape(&line.name));
    }
    out + "</svg>\n"
}

/// Points of which each has words of its own.
pub fn points(plot: &Plot<'_>, all: &[((f64, f64), String)]) -> String {
    let line = [Line { name: String::new(), points: all.iter().map(|(point, _)| *point).collect() }];
    let scale = Scale::of(plot, &line);
    let mut out = frame(plot, &scale);
    for (point, words) in all.iter().filter(|(point, _)| shown(plot, *point)) {
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"><title>{}</title></circle>",
            scale.x(point.0),
            scale.y(point.1),
            COLOURS[0],
            escape(words)
        );
    }
    out + "</svg>\n"
}

fn frame(plot: &Plot<'_>, scale: &Scale) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{}</title>\n",
        escape(plot.title)
    );
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let value = scale.y_most * share;
        let (at, words) = (scale.y(value), escape(&(plot.y_words)(value)));
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/>", WIDTH - RIGHT);
        let (x, y) = (LEFT - 6.0, at + 4.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{words}</text>");
    }
    for mark in scale.marks() {
        let (x, y, words) = (scale.x(mark), HEIGHT - BOTTOM + 16.0, escape(&(plot.x_words)(mark)));
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{words}</text>");
    }
    let (middle, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0);
    let below = escape(plot.below);
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{below}</text>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot<'a>(log: bool, words: &'a dyn Fn(f64) -> String) -> Plot<'a> {
        Plot { title: "a<b", below: "x & y", log, x_words: words, y_words: words, y_most: None }
    }

    #[test]
    fn lines_lie_where_their_numbers_say_and_words_are_escaped() {
        let words = |n: f64| format!("{n:.0}<");
        let line = Line { name: "<i>".into(), points: vec![(0.0, 0.0), (5.0, 20.0), (10.0, 10.0)] };
        let drawn = lines(&plot(false, &words), &[line]);
        assert!(drawn.contains("points=\"90.0,218.0 360.0,14.0 630.0,116.0\""), "{drawn}");
        assert!(
            drawn.contains("a&lt;b") && drawn.contains("&lt;i&gt;") && drawn.contains("x &amp; y"),
            "{drawn}"
        );
        assert!(drawn.contains(">20&lt;<") && !drawn.contains("<i>"), "{drawn}");
        let line =
            Line { name: "l".into(), points: vec![(0.0, 9.0), (10.0, 1.0), (100.0, 1.0), (1000.0, 1.0)] };
        let drawn = lines(&plot(true, &words), &[line]);
        // There is no 0 on this axis; 10, 100 and 1000 have the same distance.
        assert!(drawn.contains("points=\"90.0,14.0 360.0,14.0 630.0,14.0\""), "{drawn}");
    }

    #[test]
    fn nothing_and_nonsense_are_drawn() {
        let words = |n: f64| n.to_string();
        let none = Line { name: "n".into(), points: vec![(f64::NAN, 1.0), (1.0, f64::INFINITY)] };
        for log in [false, true] {
            for all in [vec![], vec![Line { name: "e".into(), points: vec![] }], vec![none.clone()]] {
                let drawn = lines(&plot(log, &words), &all);
                assert!(
                    drawn.ends_with("</svg>\n") && !drawn.contains("NaN") && !drawn.contains("inf"),
                    "{drawn}"
                );
            }
            let one = points(&plot(log, &words), &[((3.0, 2.0), "w<".into())]);
            assert!(
                one.matches("<circle").count() == 1 && one.contains("w&lt;") && !one.contains("NaN"),
                "{one}"
            );
        }
    }
}
