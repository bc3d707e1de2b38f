//! A picture with axes, as SVG.

use crate::page::escape;
use std::fmt::Write;

pub const WIDTH: f64 = 700.0;
pub const HEIGHT: f64 = 300.0;
pub const LEFT: f64 = 62.0;
pub const RIGHT: f64 = 16.0;
pub const TOP: f64 = 54.0;
pub const BOTTOM: f64 = 44.0;
/// Told apart by people who see fewer colours.
pub const BLUE: &str = "#0072b2";
pub const BROWN: &str = "#b36b00";
pub const GREEN: &str = "#009e73";
pub const RED: &str = "#cc3311";
pub const GREY: &str = "#666666";
const GRID: &str = "#e3e3e3";

pub struct Frame {
    out: String,
    height: f64,
}

impl Frame {
    pub fn new(title: &str, height: f64) -> Frame {
        let out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<title>{0}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"13\">{0}</text>\n",
            escape(title)
        );
        Frame { out, height }
    }

    /// Where a share of the width is, and one of the height, from below.
    pub fn x(&self, share: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
    }

    pub fn y(&self, share: f64) -> f64 {
        TOP + (self.height - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0))
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: &str, words: &str) {
        self.coloured(x, y, anchor, words, "#000000");
    }

    pub fn coloured(&mut self, x: f64, y: f64, anchor: &str, words: &str, colour: &str) {
        let fill = if colour == "#000000" { String::new() } else { format!(" fill=\"{colour}\"") };
        let words = escape(words);
        let _ = writeln!(
            self.out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{fill}>{words}</text>"
        );
    }

    /// A line across, with words at the left.
    pub fn across(&mut self, share: f64, words: &str) {
        let (y, end) = (self.y(share), WIDTH - RIGHT);
        let _ = writeln!(self.out, "<path d=\"M{LEFT} {y:.1}H{end:.1}\" stroke=\"{GRID}\"/>");
        self.text(LEFT - 6.0, y + 4.0, "end", words);
    }

    /// Words below, with a tick.
    pub fn below(&mut self, share: f64, words: &str) {
        let (x, y) = (self.x(share), self.y(0.0));
        let _ = writeln!(self.out, "<path d=\"M{x:.1} {y:.1}v4\" stroke=\"{GREY}\"/>");
        self.text(x, y + 17.0, "middle", words);
    }

    pub fn caption(&mut self, words: &str) {
        let (middle, y) = ((LEFT + WIDTH - RIGHT) / 2.0, self.height - 8.0);
        self.text(middle, y, "middle", words);
    }

    /// Names with their colours, one behind the other.
    pub fn legend(&mut self, names: &[(&str, &str)]) {
        let mut x = LEFT;
        for (name, colour) in names {
            let _ = writeln!(
                self.out,
                "<rect x=\"{x:.1}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
            );
            self.text(x + 14.0, 37.0, "start", name);
            // Letters are about six wide.
            x += 34.0 + 6.0 * name.chars().count() as f64;
        }
    }

    pub fn bar(&mut self, x: f64, width: f64, share: f64, colour: &str, words: &str) {
        let (top, bottom) = (self.y(share), self.y(0.0));
        self.cell(x, top, width, bottom - top, (colour, 1.0), words);
    }

    /// A filled rectangle that tells what it is to whoever points at it.
    pub fn cell(
        &mut self,
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        (colour, opacity): (&str, f64),
        words: &str,
    ) {
        let faint = if opacity < 1.0 { format!(" fill-opacity=\"{opacity:.3}\"") } else { String::new() };
        let words = escape(words);
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.1}\" height=\"{height:.2}\" fill=\"{colour}\"{faint}><title>{words}</title></rect>"
        );
    }

    /// A line through points of shares.
    pub fn line(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y))).collect();
        let _ = writeln!(
            self.out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            points.join(" ")
        );
    }

    /// A dashed line from top to bottom, with words at its side above everything else.
    pub fn mark(&mut self, share: f64, colour: &str, words: &str, row: usize) {
        let (x, bottom) = (self.x(share), self.y(0.0));
        let words_y = TOP - 20.0 + 14.0 * row as f64;
        let top = words_y - 9.0;
        let _ = writeln!(
            self.out,
            "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"{colour}\" stroke-dasharray=\"4 3\"/>"
        );
        let (anchor, at) = if share < 0.7 { ("start", x + 5.0) } else { ("end", x - 5.0) };
        self.coloured(at, words_y, anchor, words, colour);
    }

    pub fn done(self) -> String {
        self.out + "</svg>\n"
    }
}
